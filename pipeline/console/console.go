package console

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Contributor is what a plugin offers (pipeline.Registry.Offer) that has pages. Console is called once,
// after all plugins were registered, and opens nothing.
type Contributor interface {
	Console() []Page
}

// Page is one address of the console. Pages with the same path are one page with the panels of all of
// them, and the first one with a title names it.
type Page struct {
	// Path is the address below the root, such as topics. Empty: the home page.
	Path string
	// Title is the name of the page, in the navigation too.
	Title string
	// Order is the place in the navigation. The home page is the first one, and equal pages are
	// sorted by title.
	Order int
	// Hidden pages are not in the navigation, because a link leads to them, such as one from a table
	// to the page of a row.
	Hidden bool
	// Places are the kinds of places (pipeline.Endpoint.Kind) that the page is about. Their boxes in the graph lead to it, so
	// no other page may have them.
	Places []string
	// PlaceLink returns the address about one of these places, like Cell.Link. Empty: there is none. Nil: the page
	// is about all of them.
	PlaceLink func(*pipeline.Registry, pipeline.Endpoint) string
	Panels    []Panel
}

// Panel is a part of a page that is loaded by itself.
type Panel struct {
	// Name is unique on the page and is the last part of the address of the JSON.
	Name  string
	Title string
	// Asked is for what costs too much to be read with the page: a person presses a button, and may
	// wait longer than for other panels.
	Asked bool
	// Still is for what is read with the page alone, and not again while somebody looks at it, because a
	// reader goes through it and it may cost much.
	Still bool
	// Every is for what costs a server much: a page that is read again while somebody looks at it reads this at most
	// so often, and says how old it is. Whoever opens or reloads the page still gets what is read then. 0: with each page.
	Every time.Duration
	// Values are the names of the values of the address that Load and Reveal read, such as id. They see no
	// others, because each other value would be a read of its own, and anybody may add one to an address.
	Values []string
	// Actions are the names of actions (operate.Action) about what the panel shows, of any plugin. The
	// page leads to their forms, and what its address has for a field of the action, such as id, is
	// filled in. An action that the process does not have is left out.
	Actions []string
	// Reveal records that a person sees what is masked in the panel, and why (Use.Who and Use.Why), where
	// the changes of the thing are recorded, too. Nothing is shown if it fails; ErrNothing says that there is
	// no such thing. Nil: nobody sees what is masked.
	Reveal func(context.Context, Query, operate.Use) error
	// Load returns what the panel shows. Its context ends with a limit, and one load runs at a time
	// for equal inputs. The error is shown in place of the panel; ErrNothing says that there is no
	// panel at all. It is safe for concurrent use.
	Load func(context.Context, Query) (Block, error)
}

// ErrNothing is returned by a Load whose panel does not apply, such as one about a feature that is not
// configured. The page then leaves the panel out.
var ErrNothing = errors.New("nothing to show")

// Query says what a panel is about.
type Query struct {
	// Input has those values of the address that are in Panel.Values, such as the id of a row. Anybody may have
	// written them.
	operate.Input
	Registry *pipeline.Registry
}

// QueryOf returns what the panel sees of the values of an address, for the console and for tests of Load.
func (p Panel) QueryOf(values operate.Input, reg *pipeline.Registry) Query {
	seen := operate.Input{}
	for _, name := range p.Values {
		if given, found := values[name]; found {
			seen[name] = given
		}
	}
	return Query{Input: seen, Registry: reg}
}

// OfReport returns the Load of a panel that shows the answer of a report. in has the fields that do not
// have their defaults.
func OfReport(r operate.Report, in operate.Input) func(context.Context, Query) (Block, error) {
	full := r.Complete(in)
	return func(ctx context.Context, q Query) (Block, error) {
		a, err := r.Read(ctx, q.Registry, full)
		if a.Value == nil && err != nil {
			return nil, err
		}
		if err != nil { // what is known is shown, too
			a.Checks = append(a.Checks, operate.Check{Name: r.Name, Level: operate.Fail, Text: err.Error()})
		}
		return Answer(a), nil
	}
}

// shape is that of paths and names: they are parts of addresses, and api is one of the console itself.
var shape = regexp.MustCompile(`^[a-z][a-z0-9-]*(/[a-z][a-z0-9-]*)?$`)

// Validate reports the mistakes of a page all at once.
func (p Page) Validate() error {
	var errs []error
	fail := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("page %q: "+format, append([]any{p.Path}, args...)...))
	}
	if p.Path != "" && !shape.MatchString(p.Path) {
		fail("the path must be one or two words of lower-case letters, digits and -, with / between them")
	}
	seen := map[string]bool{}
	for i, panel := range p.Panels {
		switch {
		case !shape.MatchString(panel.Name):
			fail("the name of panel %d must be lower-case letters, digits and -, got %q", i, panel.Name)
		case seen[panel.Name]:
			fail("two panels have the name %q", panel.Name)
		case panel.Load == nil:
			fail("panel %s: Load is nil", panel.Name)
		case slices.Contains(panel.Values, "") || slices.Contains(panel.Values, "panel"):
			fail("panel %s: Values has %q, which no panel can read", panel.Name, panel.Values)
		}
		seen[panel.Name] = true
	}
	return errors.Join(errs...)
}
