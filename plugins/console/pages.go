package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// homeName is the name of the home page in the API. No page has it as its path.
const homeName = "home"

// readNote is the id of the note on each page that says when it was read. No panel has it as its name.
const readNote = "read"

// page is a page of all plugins that contribute to it.
type page struct {
	console.Page
	names []string // of panels
}

// collect returns the pages in the order of the navigation. The home page is the first.
func collect(reg *pipeline.Registry) ([]page, error) {
	var pages []page
	var errs []error
	add := func(p console.Page) {
		i := slices.IndexFunc(pages, func(other page) bool { return other.Path == p.Path })
		if i < 0 {
			pages = append(pages, page{Page: p})
			return
		}
		if pages[i].Title == "" {
			pages[i].Title, pages[i].Order = p.Title, p.Order
		}
		pages[i].Places = append(slices.Clip(pages[i].Places), p.Places...)
		if pages[i].PlaceLink == nil {
			pages[i].PlaceLink = p.PlaceLink
		}
		pages[i].Panels = append(slices.Clip(pages[i].Panels), p.Panels...)
	}
	contributors := pipeline.Offers[console.Contributor](reg)
	// The console's own panels come first.
	sorted.By(contributors, func(a, b console.Contributor) int { return rankOf(a) - rankOf(b) })
	for _, c := range contributors {
		for _, p := range c.Console() {
			add(p)
		}
	}
	claimed := map[string]string{} // the pages of kinds of places
	for i, p := range pages {
		errs = append(errs, p.Validate())
		for _, kind := range p.Places {
			if other, taken := claimed[kind]; taken && other != p.Path {
				errs = append(errs, fmt.Errorf("page %q: the page %q is about places of the kind %s already", p.Path, other, kind))
			}
			claimed[kind] = p.Path
		}
		if p.Title == "" {
			errs = append(errs, fmt.Errorf("page %q has no title", p.Path))
		}
		if p.Path == homeName || p.Path == "api" || p.Path == "assets" || p.Path == actionsPath || strings.HasPrefix(p.Path, actionsPath+"/") {
			errs = append(errs, fmt.Errorf("page %q: the console itself uses this path", p.Path))
		}
		for _, panel := range p.Panels {
			if panel.Name == readNote {
				errs = append(errs, fmt.Errorf("page %q: panel %q: the console itself uses this name", p.Path, panel.Name))
			}
			pages[i].names = append(pages[i].names, panel.Name)
		}
	}
	sorted.By(pages, func(a, b page) int {
		return cmp.Or(len(a.Path[:min(1, len(a.Path))])-len(b.Path[:min(1, len(b.Path))]), a.Order-b.Order, strings.Compare(a.Title, b.Title))
	})
	return pages, errors.Join(errs...)
}

// checkPrefix reports a prefix that begins like an address of the console, because a request for it would have
// two meanings.
func checkPrefix(prefix string, pages []page) error {
	first, _, _ := strings.Cut(strings.TrimPrefix(prefix, "/"), "/")
	taken := []string{"api", "assets", actionsPath, exportPath}
	for _, p := range pages {
		word, _, _ := strings.Cut(p.Path, "/")
		taken = append(taken, word)
	}
	if first != "" && slices.Contains(taken, first) {
		return fmt.Errorf("must begin otherwise than with /%s, which is an address of the console itself, such as /millrace, got %q", first, prefix)
	}
	return nil
}

func rankOf(c console.Contributor) int {
	if _, own := c.(*Plugin); own {
		return 0
	}
	return 1
}

// find returns the page at a path.
func (s *server) find(path string) (page, bool) {
	i := slices.IndexFunc(s.pages, func(p page) bool { return p.Path == path })
	if i < 0 {
		return page{}, false
	}
	return s.pages[i], true
}

// State of a panel.
const (
	stateOK     = "ok"
	stateFailed = "failed" // the load has failed
	stateLate   = "late"   // the load has not ended in time, and Block is that of an earlier one, or nil
	stateAsked  = "asked"  // it is loaded when a person asks for it
)

// shown is a panel that was loaded.
type shown struct {
	Name, Title string
	Live        bool // it is read again while somebody looks at the page
	State       string
	Problem     string        // of a panel that failed or is late
	Block       console.Block // nil: there is none
	At          time.Time     // when Block was read
	Actions     []string      // names
	Offers      []offered     // Actions as links
	Reveal      revealing     // of what is masked
	hidden      int           // values that are masked
}

// load loads the panels of a page side by side, and masks them. Those that are asked for are loaded only if
// the selection does.
func (s *server) load(ctx context.Context, p page, values url.Values, which selection) []shown {
	results := make([]*shown, len(p.Panels))
	var loading sync.WaitGroup
	for i, panel := range p.Panels {
		switch {
		case which.only != "" && panel.Name != which.only, which.again && panel.Still:
		case panel.Asked && panel.Name != which.asked:
			results[i] = &shown{Name: panel.Name, Title: panel.Title, State: stateAsked, Actions: panel.Actions}
		default:
			loading.Go(func() { results[i] = s.loadPanel(ctx, p, panel, values, s.paceOf(p, panel, which)) })
		}
	}
	loading.Wait()
	all := []shown{}
	for _, r := range results {
		if r == nil {
			continue
		}
		if which.revealed == "" || which.revealed != r.Name {
			s.mask(r)
		} else if r.Block != nil {
			r.Block = masks{}.block(r.Block)
		}
		all = append(all, *r)
	}
	return all
}

// The most runs of panels at once. A run goes on when whoever wanted it has gone.
const (
	maxAsked    = 4  // of those that a person asks for, each of which may open connections of its own
	maxOfPerson = 16 // of the others that one person has begun
)

func (s *server) paceOf(p page, panel console.Panel, which selection) pace {
	paced := s.panels
	switch {
	case panel.Asked:
		paced = s.asked
		paced.shares = []share{{"panel " + p.Path + " " + panel.Name, 1}, {"asked", maxAsked}}
		return paced
	case which.again:
		paced.fresh = max(paced.fresh, panel.Every)
	}
	paced.shares = ofPerson(which.who)
	return paced
}

func ofPerson(name string) []share { return []share{{"person " + name, maxOfPerson}} }

// loadPanel returns nil for a panel that has nothing to show.
func (s *server) loadPanel(ctx context.Context, p page, panel console.Panel, values url.Values, paced pace) *shown {
	query := panel.QueryOf(operate.Input(values), s.registry)
	key := p.Path + " " + panel.Name + " " + url.Values(query.Input).Encode()
	r, late := s.loads.get(ctx, key, paced, func(ctx context.Context) (any, error) { return panel.Load(ctx, query) })
	one := &shown{Name: panel.Name, Title: panel.Title, Live: !panel.Asked && !panel.Still, State: stateOK, At: r.at, Actions: panel.Actions}
	one.Block, _ = r.value.(console.Block)
	switch {
	case late:
		one.State, one.Problem = stateLate, fmt.Sprintf("No answer within %s.", paced.wait)
		if paced.run > paced.wait {
			one.Problem += fmt.Sprintf(" The read goes on for up to %s; the next update, or Reload, shows what came.", paced.run)
		}
		if r.err != nil {
			one.Problem += " The last answer was: " + r.err.Error()
		}
	case errors.Is(r.err, console.ErrNothing):
		return nil
	case r.err != nil:
		one.State, one.Problem = stateFailed, r.err.Error()
	}
	return one
}
