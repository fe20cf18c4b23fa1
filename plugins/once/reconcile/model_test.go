package reconcile

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// drawn is what a random book says of one effect.
type drawn struct {
	effect *Effect
	lines  []Line
}

// TestAnyBook compares random ledgers with random books, in both formats, and a model in a map.
func TestAnyBook(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	// A ledger accepts no others, and CSV reads a carriage return with a newline as a newline.
	ids := rapid.StringN(1, 8, 30).Filter(func(id string) bool { return !strings.ContainsFunc(id, unicode.IsControl) })
	rapid.Check(t, func(t *rapid.T) {
		byKey, asJSON := rapid.Bool().Draw(t, "by key"), rapid.Bool().Draw(t, "JSON")
		model := map[string]*drawn{}
		var effects []Effect
		var lines []Line
		for _, id := range rapid.SliceOfNDistinct(ids, 0, 30, rapid.ID).Draw(t, "ids") {
			d := &drawn{}
			if rapid.IntRange(0, 9).Draw(t, "in the ledger") > 0 {
				d.effect = drawEffect(t, id)
				effects = append(effects, *d.effect)
			}
			for range rapid.SampledFrom([]int{0, 1, 1, 1, 2, 3}).Draw(t, "lines") {
				l := Line{Text: id, Times: rapid.SampledFrom([]int64{1, 1, 1, 2}).Draw(t, "times"), HasSum: rapid.Bool().Draw(t, "has sum")}
				l.Receipt = rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "receipt")
				if l.HasSum {
					l.Sum = rapid.Int64Range(-1, 1).Draw(t, "sum")
				}
				d.lines = append(d.lines, l)
				if byKey {
					l.Text = "key of " + id
				}
				lines = append(lines, l)
			}
			if d.effect == nil && len(d.lines) == 0 {
				continue
			}
			name := id
			if d.effect == nil && byKey {
				name = "key of " + id
			}
			model[name] = d
		}
		others := rapid.IntRange(0, 3).Draw(t, "lines of other groups")
		for i := range others {
			lines = append(lines, Line{Text: fmt.Sprint("of another ", i), Group: "zeta", Times: 1})
		}
		effects, lines = rapid.Permutation(effects).Draw(t, "effects in order"), rapid.Permutation(lines).Draw(t, "lines in order")

		in := inputOf(bookOf(t, dir, textOfBook(t, lines, byKey, asJSON)), effects...)
		in.Sums = true
		in.Each = func(p Pair, _ []Bucket) error {
			require.Equal(t, model[p.Name].effect, p.Effect, "what was sorted")
			return nil
		}
		r, got := compared(t, in)
		balanced := true
		counts := map[Bucket]int64{}
		for name, d := range model {
			want := d.buckets()
			require.Equal(t, want, got[name], name)
			for _, b := range want {
				counts[b]++
				balanced = balanced && (b == Matched || b == Later || b == Failed)
			}
			delete(got, name)
		}
		require.Empty(t, got)
		for b, n := range r.Buckets {
			require.Equal(t, counts[b], n, b)
			require.LessOrEqual(t, int64(len(r.Examples[b])), n)
		}
		require.Equal(t, balanced, r.Balanced)
		require.EqualValues(t, len(model), r.Effects)
		require.EqualValues(t, len(effects), r.Accepted)
		require.EqualValues(t, len(lines), r.Lines)
		require.EqualValues(t, others, r.OtherGroups)
		require.Equal(t, r.Accepted, r.Done+r.Failed+r.Unknown+r.Cancelled+r.Pending+r.Unclear)
	})
}

func drawEffect(t *rapid.T, id string) *Effect {
	at := func(what string) time.Time {
		return written.Add(time.Duration(rapid.IntRange(-20, 20).Draw(t, what)) * time.Second)
	}
	e := &Effect{ID: id, AcceptedAt: at("accepted"), HasSum: rapid.Bool().Draw(t, "effect has sum")}
	e.State = rapid.SampledFrom([]rules.State{rules.Pending, rules.Sending, rules.Errored, rules.Ambiguous, rules.Success, rules.Success, rules.Success, rules.Failed, rules.Unknown, rules.Cancelled}).Draw(t, "state")
	if e.HasSum {
		e.Sum = rapid.Int64Range(-1, 1).Draw(t, "sum of the effect")
	}
	if e.State.Settled() {
		e.SettledAt = at("settled")
	} else {
		e.PerhapsDone, e.Sent = rapid.Bool().Draw(t, "perhaps done"), rapid.Bool().Draw(t, "sent")
	}
	if e.State == rules.Success {
		e.Receipt = rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "receipt of the effect")
	}
	return e
}

// buckets is the table of the README.
func (d *drawn) buckets() (in []Bucket) {
	times, receipts, sums := int64(0), map[string]bool{}, map[int64]bool{}
	for _, l := range d.lines {
		times += l.Times
		receipts[l.Receipt] = true
		if l.HasSum {
			sums[l.Sum] = true
		}
	}
	e := d.effect
	old := e != nil && e.AcceptedAt.Before(written.Add(-9*time.Second-999*time.Millisecond))
	oldDone := e != nil && e.SettledAt.Before(written.Add(-9*time.Second-999*time.Millisecond))
	switch {
	case e == nil:
		in = append(in, InBookNotLedger)
	case times > 0:
		switch {
		case e.State == rules.Failed:
			in = append(in, InBookFailed)
		case e.State == rules.Cancelled:
			in = append(in, InBookCancelled)
		case e.State == rules.Unknown:
			in = append(in, InBookUnknown)
		case e.State != rules.Success && e.PerhapsDone:
			in = append(in, InBookUnclear)
		case e.State != rules.Success && e.Sent:
			in = append(in, InBookRefused)
		case e.State != rules.Success:
			in = append(in, InBookPending)
		}
	case e.State == rules.Failed:
		in = append(in, Failed)
	case e.State == rules.Unknown && (!old || !oldDone):
		in = append(in, UnknownLater)
	case e.State == rules.Unknown:
		in = append(in, Unknown)
	case e.State == rules.Cancelled:
	case !old || e.State == rules.Success && !oldDone:
		in = append(in, Later)
	case e.State == rules.Success:
		in = append(in, DoneNotInBook)
	case e.PerhapsDone:
		in = append(in, Unclear)
	default:
		in = append(in, Pending)
	}
	if times > 1 {
		in = append(in, InBookTwice)
	}
	delete(receipts, "")
	if e != nil && e.Receipt != "" && len(receipts) > 0 && !receipts[e.Receipt] {
		in = append(in, ReceiptDiffers)
	}
	if e != nil && e.HasSum && (len(sums) > 1 || len(sums) == 1 && !sums[e.Sum]) {
		in = append(in, SumDiffers)
	}
	if in == nil {
		in = []Bucket{Matched}
	}
	return in
}

func textOfBook(t *rapid.T, lines []Line, byKey, asJSON bool) string {
	name := columnID
	if byKey {
		name = columnKey
	}
	number := func(n int64, has bool) string {
		if !has {
			return ""
		}
		return strconv.FormatInt(n, 10)
	}
	var out strings.Builder
	if asJSON && len(lines) > 0 {
		for _, l := range lines {
			members := map[string]any{name: l.Text, "times": l.Times, "created": written, "group": nil}
			if l.Group != "" {
				members["group"] = l.Group
			}
			if l.HasSum {
				members["sum"] = l.Sum
			}
			if l.Receipt != "" {
				members["receipt"] = l.Receipt
			}
			text, err := json.Marshal(members)
			require.NoError(t, err)
			fmt.Fprintf(&out, "%s\n", text)
		}
		return out.String()
	}
	w := csv.NewWriter(&out)
	require.NoError(t, w.Write([]string{"created", name, "group", "sum", "receipt", "times"}))
	for _, l := range lines {
		require.NoError(t, w.Write([]string{"x", l.Text, l.Group, number(l.Sum, l.HasSum), l.Receipt, number(l.Times, l.Times > 1)}))
	}
	w.Flush()
	return out.String()
}
