package deadletter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Addresses of the pages.
const (
	lettersPage = "dead-letters"
	groupPage   = "dead-letters/group"
	letterPage  = "dead-letters/letter"
)

// shownLetters is the number of rows of a page.
const shownLetters = 200

// Console implements console.Contributor: the groups of dead letters that wait for a person, the letters of
// a group, and one letter with its payload.
func (p *Plugin) Console() []console.Page {
	actions := []string{"deadletter replay", "deadletter discard"}
	return []console.Page{
		{Path: lettersPage, Title: "Dead letters", Order: 30, Panels: []console.Panel{
			{Name: "groups", Title: "Groups of equal errors", Load: p.showGroups, Actions: actions},
		}},
		{Path: groupPage, Title: "Dead letters of one group", Hidden: true, Panels: []console.Panel{
			{Name: "letters", Title: "Dead letters, newest first", Load: p.showLetters, Actions: actions},
		}},
		{Path: letterPage, Title: "Dead letter", Hidden: true, Panels: []console.Panel{
			{Name: "letter", Title: "Dead letter", Load: p.showLetter, Reveal: p.reveal, Actions: actions},
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

func (p *Plugin) showGroups(ctx context.Context, _ console.Query) (console.Block, error) {
	s, instead, err := p.opened()
	if s == nil {
		return instead, err
	}
	filter := store.Filter{States: store.Waiting()}
	total, err := s.Count(ctx, filter)
	if err != nil {
		return nil, err
	}
	groups, err := s.Groups(ctx, filter, shownLetters)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Error", "Count", "Class", "Route", "First failed", "Last failed", "Example"),
		Empty:   "No dead letter waits for a person.",
	}
	for _, g := range groups {
		count := console.Count(g.Count).In(operate.Warn)
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(g.Error).At(link(groupPage, "fingerprint", g.Fingerprint)), count, console.Word(g.Class), console.Word(g.Handler),
			console.Moment(g.FirstFailed), console.Moment(g.LastFailed), console.Word(g.Example).At(link(letterPage, "id", g.Example)),
		})
	}
	if len(groups) == shownLetters {
		t.Note = fmt.Sprintf("Only the %d largest groups are shown.", shownLetters)
	}
	return console.Blocks{console.Stats{{Name: "Waiting for a person", Cell: console.Count(total)}}, t}, nil
}

func (p *Plugin) showLetters(ctx context.Context, q console.Query) (console.Block, error) {
	s, instead, err := p.opened()
	if s == nil {
		return instead, err
	}
	fingerprint := q.Text("fingerprint")
	if fingerprint == "" {
		return console.Text("Choose a group on the page of dead letters."), nil
	}
	letters, total, err := s.List(ctx, store.Filter{States: store.Waiting(), Fingerprint: fingerprint}, shownLetters)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("ID", "State", "Failed", "About", "Attempts", "Error"),
		Empty:   "No dead letter of this group waits for a person any more.",
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
	if more := total - int64(len(letters)); more > 0 {
		t.Note = fmt.Sprintf("… and %d more. The command deadletter list shows them with --fingerprint %s.", more, fingerprint)
	}
	return t, nil
}

func (p *Plugin) showLetter(ctx context.Context, q console.Query) (console.Block, error) {
	s, instead, err := p.opened()
	if s == nil {
		return instead, err
	}
	id := q.Text("id")
	d, actions, err := s.Get(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return console.Text(fmt.Sprintf("No dead letter has the id %q. It may have been pruned.", id)), nil
	} else if err != nil {
		return nil, err
	}
	record := console.Record{
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
			{Name: "Trace", Cell: console.Word(d.TraceParent)},
			{Name: "Message", Cell: console.Word(d.UUID)},
			{Name: "Key", Cell: console.Word(d.Key)},
		},
		Folds: []console.Fold{{Title: "Headers", Headers: d.Headers}, {Title: "Payload", Payload: d.Payload}},
	}
	t := console.Table{Columns: console.Columns("When", "Action", "Generation", "Outcome", "Who", "Why", "Detail"), Empty: "Nobody has replayed, discarded or revealed it."}
	for _, a := range actions {
		t.Rows = append(t.Rows, []console.Cell{
			console.Moment(a.At), console.Word(a.Action), console.Count(a.Generation), console.Word(a.Outcome), console.Word(a.Who), console.Word(a.Why), console.Word(a.Detail),
		})
	}
	return console.Blocks{record, t}, nil
}

// reveal records that a person sees what is masked of a dead letter.
func (p *Plugin) reveal(ctx context.Context, q console.Query, use operate.Use) error {
	s, _, err := p.opened()
	switch {
	case err != nil:
		return err
	case s == nil:
		return console.ErrNothing
	}
	err = s.RecordReveal(ctx, q.Text("id"), store.By{Who: use.Who, Why: use.Why})
	if errors.Is(err, store.ErrNotFound) {
		return console.ErrNothing
	}
	return err
}

func link(page, name, value string) string { return page + "?" + url.Values{name: {value}}.Encode() }

var _ console.Contributor = (*Plugin)(nil)
