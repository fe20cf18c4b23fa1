package cli

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Would is what a dry run says of the dead letters of a handler and a source that have the same fate.
type Would struct {
	Handler string `json:"handler"`
	From    string `json:"from"` // the topic or stream of the messages, such as kafka orders
	Result  string `json:"result"`
	To      string `json:"to,omitempty"`     // that a replay would publish to; empty: a ledger replays them, or nothing does
	Reason  string `json:"reason,omitempty"` // why nothing would be done
	Count   int    `json:"count"`
}

// fates counts those with the same fate.
type fates map[Would]int

func (f fates) add(d store.DeadLetter, l Line) {
	w := Would{Handler: d.Handler, From: strings.TrimSpace(d.Source.Kind + " " + d.Source.Name), Result: l.Result, To: l.to}
	if l.Result != store.OutcomeReplayed && l.Result != resultDiscarded {
		w.Reason = l.Reason
	}
	f[w]++
}

// list returns them, most first, at most maxLines.
func (f fates) list() []Would {
	var all []Would
	for w, n := range f {
		w.Count = n
		all = append(all, w)
	}
	sorted.By(all, func(a, b Would) int {
		return cmp.Or(b.Count-a.Count, strings.Compare(a.Handler, b.Handler), strings.Compare(a.From, b.From), strings.Compare(a.Result, b.Result),
			strings.Compare(a.To, b.To), strings.Compare(a.Reason, b.Reason))
	})
	return all[:min(len(all), maxLines)]
}

// text says what would be done to each of them.
func (w Would) text() string {
	text := would(w.Result)
	switch {
	case w.Result == store.OutcomeReplayed && w.To != "":
		text += " to " + w.To
	case w.Result == store.OutcomeReplayed:
		text += " by its ledger"
	case w.Reason != "":
		text += ": " + w.Reason
	}
	return OneLine(text, reasonWidth)
}

// wouldTable has the fates for people, and its last row says how many are left out.
func wouldTable(all []Would) operate.Table {
	t := operate.Table{Columns: []string{"COUNT", "HANDLER", "FROM", "WOULD"}}
	for _, w := range all[:min(len(all), maxNamed)] {
		t.Rows = append(t.Rows, []string{fmt.Sprint(w.Count), OneLine(w.Handler, errorWidth), OneLine(w.From, errorWidth), strings.TrimPrefix(w.text(), "would ")})
	}
	if more := len(all) - len(t.Rows); more > 0 {
		t.Rows = append(t.Rows, []string{"…", fmt.Sprintf("and %d more", more), "", ""})
	}
	return t
}
