package once

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// nextOfGroup says what explain says of the first of the effects of a group that wait, and nothing if none does.
func nextOfGroup(ctx context.Context, l *ledger.Ledger, waiting []ledger.Waiting) (string, error) {
	if len(waiting) == 0 {
		return "", nil
	}
	x, err := l.Explain(ctx, waiting[0].Key)
	if err != nil {
		return "", err
	}
	then, err := next(ctx, l, x)
	return fmt.Sprintf("of %s, which has waited longest: %s", x.ID, then), err
}

// showWaiting shows what the group in the address waits for, and its effects that are not settled.
func showWaiting(ctx context.Context, l *ledger.Ledger, q console.Query) (console.Block, error) {
	waiting, more, err := l.Waiting(ctx, ledger.Group{Kind: q.Text("kind"), Name: q.Text("group")}, shownRows)
	if errors.Is(err, ledger.ErrNotFound) {
		return nil, console.ErrNothing
	} else if err != nil {
		return nil, err
	}
	then, err := nextOfGroup(ctx, l, waiting)
	if err != nil {
		return nil, err
	}
	t := console.Table{Columns: console.Columns("ID", "State", "Next", "Class", "Answer"), Empty: "No effect waits or is being called."}
	for _, w := range waiting {
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(w.ID).At(linkTo(effectPage, w.Key)), effectState(w.State), nextCell(w), console.Word(w.Class), console.Word(w.Error),
		})
	}
	if more {
		t.Note = fmt.Sprintf("Only the %d that have waited longest are shown.", shownRows)
	}
	return console.Blocks{console.Stats{{Name: "Next", Cell: console.Word(cmp.Or(then, "nothing"))}}, t}, nil
}

func nextCell(w ledger.Waiting) console.Cell {
	switch {
	case w.Calling:
		return console.Word("is being called")
	case w.At.IsZero():
		return console.Word("when its group is resumed").In(operate.Warn)
	}
	return console.Until(w.At)
}
