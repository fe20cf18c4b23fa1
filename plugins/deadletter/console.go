package deadletter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Addresses of the pages.
const (
	lettersPage = "dead-letters"
	groupPage   = "dead-letters/group"
	letterPage  = "dead-letters/letter"
	comparePage = "dead-letters/compare"
)

// shownLetters is the number of rows of a page.
const shownLetters = 200

// Console implements console.Contributor: the groups of dead letters that wait for a person, the letters of
// a group, one letter with its payload, and two of them side by side.
func (p *Plugin) Console() []console.Page {
	actions := []string{"deadletter replay", "deadletter discard"}
	return []console.Page{
		{Path: lettersPage, Title: "Dead letters", Order: 30, Panels: []console.Panel{
			{Name: "groups", Title: "Groups of equal errors", Values: []string{"handler", "count", "before"}, Load: p.showGroups, Actions: actions},
		}},
		{Path: groupPage, Title: "Dead letters of one group", Hidden: true, Panels: []console.Panel{
			{Name: "letters", Title: "Dead letters, newest first", Values: []string{"fingerprint", "plugin", "handler", "subject", "before"}, Load: p.showLetters, Actions: actions},
		}},
		{Path: letterPage, Title: "Dead letter", Hidden: true, Panels: []console.Panel{
			{Name: "letter", Title: "Dead letter", Values: []string{"id"}, Load: p.showLetter, Reveal: p.reveal, Actions: actions},
		}},
		{Path: comparePage, Title: "Two dead letters", Hidden: true, Panels: []console.Panel{
			{Name: "letters", Title: "Side by side", Values: []string{"id"}, Load: p.compareLetters, Reveal: p.revealPair, Actions: actions},
		}},
	}
}

// opened returns the store, or the sentence that says why there is none.
func (p *Plugin) opened() (*store.Store, console.Block, error) {
	if p.config.Store.DSN.IsZero() {
		return nil, console.Text("Dead letters are in their topics and streams alone, because " + storeSetting + " is not set. With a store this page groups them."), nil
	}
	if s := p.store.Load(); s != nil {
		return s, nil, nil
	}
	return nil, nil, errStoreNotOpen
}

func (p *Plugin) showGroups(ctx context.Context, q console.Query) (console.Block, error) {
	s, instead, err := p.opened()
	if s == nil {
		return instead, err
	}
	filter := store.Filter{States: store.Waiting(), Handler: q.Text("handler")}
	total, err := s.Count(ctx, filter)
	if err != nil {
		return nil, err
	}
	after := store.Place{Count: int64(q.Number("count")), Example: q.Text("before")}
	groups, err := s.Groups(ctx, filter, after, shownLetters+1)
	if errors.Is(err, store.ErrNotFound) {
		return cutOff(after.Example, link(lettersPage, "handler", filter.Handler)), nil
	} else if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Error", "Count", "Class", "Route", "First failed", "Last failed", "Example"),
		Empty:   "No dead letter waits for a person.",
	}
	stats := console.Stats{{Name: "Waiting for a person", Cell: console.Count(total)}}
	if filter.Handler != "" {
		t.Empty = "No dead letter of this route waits for a person."
		stats = append(stats, console.Stat{Name: "Of the route", Cell: console.Word(filter.Handler)}, console.Stat{Name: "Of all routes", Cell: console.Word("all dead letters").At(lettersPage)})
	}
	if after.Example != "" {
		t.Empty = "There is no smaller group."
		stats = append(stats, console.Stat{Name: "Largest groups", Cell: console.Word("first page").At(link(lettersPage, "handler", filter.Handler))})
	}
	if len(groups) > shownLetters {
		groups = groups[:shownLetters]
		last := groups[shownLetters-1]
		t.Note = "The groups that follow are smaller or older."
		t.Next = link(lettersPage, "handler", filter.Handler, "count", strconv.FormatInt(last.Count, 10), "before", last.Example)
	}
	for _, g := range groups {
		count := console.Count(g.Count).In(operate.Warn)
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(g.Error).At(link(groupPage, "fingerprint", g.Fingerprint, "handler", filter.Handler)), count, console.Word(g.Class), console.Word(g.Handler),
			console.Moment(g.FirstFailed), console.Moment(g.LastFailed), console.Word(g.Example).At(link(letterPage, "id", g.Example)),
		})
	}
	return console.Blocks{stats, t}, nil
}

// cutOff is shown when the dead letter that a page goes on after is gone. Any other rows would be a page that
// nobody has asked for.
func cutOff(id, first string) console.Block {
	return console.Blocks{
		console.Text(fmt.Sprintf("This page goes on after the dead letter %q, which no longer exists. It may have been pruned.", id)),
		console.Stats{{Name: "Begin again", Cell: console.Word("first page").At(first)}},
	}
}

// listed is what the page of a list selects.
func listed(q console.Query) store.Filter {
	return store.Filter{States: store.Waiting(), Fingerprint: q.Text("fingerprint"), Plugin: q.Text("plugin"), Handler: q.Text("handler"), Under: q.Text("subject"), Before: q.Text("before")}
}

// listAfter is the address of the page of a list after a dead letter. An empty id: the first page.
func listAfter(f store.Filter, id string) string {
	return link(groupPage, "fingerprint", f.Fingerprint, "plugin", f.Plugin, "handler", f.Handler, "subject", f.Under, "before", id)
}

func (p *Plugin) showLetters(ctx context.Context, q console.Query) (console.Block, error) {
	s, instead, err := p.opened()
	if s == nil {
		return instead, err
	}
	f := listed(q)
	if f.Fingerprint == "" && f.Under == "" {
		return console.Text("Choose a group on the page of dead letters."), nil
	}
	letters, left, err := s.List(ctx, f, shownLetters)
	if errors.Is(err, store.ErrNotFound) {
		return cutOff(f.Before, listAfter(f, "")), nil
	} else if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("ID", "State", "Failed", "About", "Attempts", "Error"),
		Empty:   "None of these dead letters waits for a person any more.",
	}
	stats := console.Stats{{Name: "Waiting for a person", Cell: console.Count(left)}}
	if f.Before != "" {
		t.Empty = "None that was stored before waits for a person."
		stats = console.Stats{{Name: "Waiting from here on", Cell: console.Count(left)}, {Name: "Newest", Cell: console.Word("first page").At(listAfter(f, ""))}}
	}
	for _, d := range letters {
		about := d.Subject
		if about == "" {
			about = d.Source.String()
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(d.ID).At(link(letterPage, "id", d.ID)), console.Word(string(d.State)), console.Moment(d.Failed), console.Word(about),
			console.Count(d.Attempts), console.Word(d.Error),
		})
	}
	if more := left - int64(len(letters)); more > 0 && len(letters) > 0 {
		t.Note = fmt.Sprintf("… and %d older ones.", more)
		t.Next = listAfter(f, letters[len(letters)-1].ID)
	}
	return console.Blocks{stats, t}, nil
}

func (p *Plugin) showLetter(ctx context.Context, q console.Query) (console.Block, error) {
	s, instead, err := p.opened()
	if s == nil {
		return instead, err
	}
	id := q.Text("id")
	d, actions, err := s.Get(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return gone(id), nil
	} else if err != nil {
		return nil, err
	}
	older, newer, err := s.Neighbors(ctx, d)
	if err != nil {
		return nil, err
	}
	record := recordOf(d)
	record.Fields = append(record.Fields, console.Stat{Name: "Compare with", Cell: comparisons(d.ID, older, newer)})
	t := console.Table{Columns: console.Columns("When", "Action", "Generation", "Outcome", "Who", "Why", "Detail"), Empty: "Nobody has replayed, discarded or revealed it."}
	for _, a := range actions {
		t.Rows = append(t.Rows, []console.Cell{
			console.Moment(a.At), console.Word(a.Action), console.Count(a.Generation), console.Word(a.Outcome), console.Word(a.Who), console.Word(a.Why), console.Word(a.Detail),
		})
	}
	return console.Blocks{record, t}, nil
}

// gone says that there is no dead letter of an id.
func gone(id string) console.Text {
	return console.Text(fmt.Sprintf("No dead letter has the id %q. It may have been pruned.", id))
}

// recordOf is a dead letter with its message.
func recordOf(d store.DeadLetter) console.Record {
	trace := console.Word(d.TraceParent)
	trace.Trace, _ = pipeline.TraceOf(d.TraceParent)
	return console.Record{
		Fields: console.Stats{
			{Name: "ID", Cell: console.Word(d.ID)},
			{Name: "State", Cell: console.Word(string(d.State))},
			{Name: "Generation", Cell: console.Count(d.Generation)},
			{Name: "About", Cell: console.Word(d.Subject)},
			{Name: "Class", Cell: console.Word(d.Class)},
			{Name: "Error", Cell: console.Word(d.Error)},
			{Name: "Fingerprint", Cell: console.Word(d.Fingerprint).At(link(groupPage, "fingerprint", d.Fingerprint))},
			{Name: "Route", Cell: console.Word(d.Handler)},
			{Name: "From", Cell: console.Word(strings.TrimSpace(d.Source.Kind + " " + d.Source.String()))},
			{Name: "Dead-letter topic", Cell: console.Word(d.Topic)},
			{Name: "Attempts", Cell: console.Count(d.Attempts)},
			{Name: "First failed", Cell: console.Moment(d.FirstFailed)},
			{Name: "Last failed", Cell: console.Moment(d.Failed)},
			{Name: "Trace", Cell: trace},
			{Name: "Message", Cell: console.Word(d.UUID)},
			{Name: "Key", Cell: console.Word(d.Key)},
		},
		Folds: []console.Fold{{Title: "Headers", Headers: d.Headers}, {Title: "Payload", Payload: d.Payload}},
	}
}

// reveal records that a person sees what is masked of a dead letter.
func (p *Plugin) reveal(ctx context.Context, q console.Query, use operate.Use) error {
	return p.recordReveal(ctx, use, q.Text("id"))
}

func (p *Plugin) recordReveal(ctx context.Context, use operate.Use, ids ...string) error {
	s, _, err := p.opened()
	switch {
	case err != nil:
		return err
	case s == nil:
		return console.ErrNothing
	}
	err = s.RecordReveal(ctx, store.By{Who: use.Who, Why: use.Why}, ids...)
	if errors.Is(err, store.ErrNotFound) {
		return console.ErrNothing
	}
	return err
}

// link is the address of a page with values: a name, its value, and so on. Those that are empty are left out.
func link(page string, namesAndValues ...string) string {
	values := url.Values{}
	for pair := range slices.Chunk(namesAndValues, 2) {
		if pair[1] != "" {
			values.Add(pair[0], pair[1])
		}
	}
	if len(values) == 0 {
		return page
	}
	return page + "?" + values.Encode()
}

var _ console.Contributor = (*Plugin)(nil)
