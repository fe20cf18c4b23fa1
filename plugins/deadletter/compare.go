package deadletter

import (
	"context"
	"errors"
	"slices"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// comparisons leads from a dead letter to the pages that compare it with those before and after it in its group. An
// empty id: there is none.
func comparisons(id, older, newer string) console.Cell {
	var with []console.Cell
	if older != "" {
		with = append(with, console.Word("the one before it in its group").At(link(comparePage, "id", older, "id", id)))
	}
	if newer != "" {
		with = append(with, console.Word("the one after it in its group").At(link(comparePage, "id", id, "id", newer)))
	}
	if len(with) == 0 {
		return console.Word("no other is in its group")
	}
	return console.Lines(with...)
}

func isPair(ids []string) bool { return len(ids) == 2 && !slices.Contains(ids, "") && ids[0] != ids[1] }

// revealPair is reveal for both dead letters of a comparison.
func (p *Plugin) revealPair(ctx context.Context, q console.Query, use operate.Use) error {
	ids := q.List("id")
	if !isPair(ids) {
		return console.ErrNothing
	}
	return p.recordReveal(ctx, use, ids...)
}

// compareLetters shows two dead letters side by side, in the order of the address.
func (p *Plugin) compareLetters(ctx context.Context, q console.Query) (console.Block, error) {
	s, instead, err := p.opened()
	if s == nil {
		return instead, err
	}
	ids := q.List("id")
	find := console.Find{Page: comparePage, Fields: []operate.Field{{Name: "id", Required: true}, {Name: "id", Required: true}}}
	for i, id := range ids[:min(len(ids), len(find.Fields))] {
		find.Fields[i].Default = id
	}
	if !isPair(ids) {
		return console.Blocks{find, console.Text("Give the ids of two different dead letters.")}, nil
	}
	blocks := console.Blocks{find}
	var found []store.DeadLetter
	for _, id := range ids {
		d, _, err := s.Get(ctx, id)
		switch {
		case errors.Is(err, store.ErrNotFound):
			blocks = append(blocks, gone(id))
		case err != nil:
			return nil, err
		default:
			found = append(found, d)
		}
	}
	if len(found) < 2 {
		for _, d := range found {
			blocks = append(blocks, console.Stats{{Name: "The other one", Cell: console.Word(d.ID).At(link(letterPage, "id", d.ID))}})
		}
		return blocks, nil
	}
	sides := [2]console.Record{recordOf(found[0]), recordOf(found[1])}
	for i, d := range found {
		sides[i].Fields[0].Cell = console.Word(d.ID).At(link(letterPage, "id", d.ID))
	}
	return append(blocks, console.Comparison{Titles: [2]string{"First", "Second"}, Sides: sides}), nil
}
