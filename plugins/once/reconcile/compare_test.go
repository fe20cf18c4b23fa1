package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

var written = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func effect(id string, s rules.State) Effect {
	e := Effect{ID: id, State: s, AcceptedAt: written.Add(-time.Hour)}
	if s.Settled() {
		e.SettledAt = written.Add(-time.Minute)
	}
	if s == rules.Success {
		e.Receipt = "r-" + id
	}
	return e
}

func inputOf(book string, effects ...Effect) Input {
	return Input{
		Kind: "invoice", Group: "acme", Book: book, AsOf: written, Lag: 10 * time.Second, inMemory: 3,
		Key: func(id string) string { return "key of " + id },
		Of: func(key string) (kind, group string, ok bool) {
			if group, ok = strings.CutPrefix(key, "other kind "); ok {
				return "parcel", group, true
			}
			group, ok = strings.CutPrefix(key, "other group ")
			return "invoice", group, ok
		},
		Effects: func(_ bool, each func(Effect) error) error {
			for _, e := range effects {
				if err := each(e); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func bookOf(t require.TestingT, dir, text string) string {
	path := filepath.Join(dir, "book")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// compared returns the buckets of each effect.
func compared(t require.TestingT, in Input) (Report, map[string][]Bucket) {
	got := map[string][]Bucket{}
	each := in.Each
	in.Each = func(p Pair, b []Bucket) error {
		require.NotContains(t, got, p.Name)
		got[p.Name] = b
		if each == nil {
			return nil
		}
		return each(p, b)
	}
	r, err := Compare(context.Background(), in)
	require.NoError(t, err)
	return r, got
}

func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	sending := effect("17", rules.Sending)
	sending.PerhapsDone = true
	late, lateDone, lateUnknown := effect("17", rules.Pending), effect("17", rules.Success), effect("17", rules.Unknown)
	late.AcceptedAt, lateDone.SettledAt, lateUnknown.SettledAt = written, written.Add(-time.Second), written
	refused := effect("17", rules.Errored)
	refused.Sent = true
	sum := effect("17", rules.Success)
	sum.Sum, sum.HasSum = 500, true
	for name, tt := range map[string]struct {
		effect   Effect
		lines    string
		balanced bool
		in       []Bucket
	}{
		"done and once in the book":     {effect("17", rules.Success), "17,r-17,,", true, []Bucket{Matched}},
		"a book without receipts":       {effect("17", rules.Success), "17,,,", true, []Bucket{Matched}},
		"cancelled":                     {effect("17", rules.Cancelled), "", true, []Bucket{Matched}},
		"failed":                        {effect("17", rules.Failed), "", true, []Bucket{Failed}},
		"lost":                          {effect("17", rules.Success), "", false, []Bucket{DoneNotInBook}},
		"not done yet":                  {effect("17", rules.Errored), "", false, []Bucket{Pending}},
		"perhaps done":                  {sending, "", false, []Bucket{Unclear}},
		"unknown":                       {effect("17", rules.Unknown), "", false, []Bucket{Unknown}},
		"accepted later":                {late, "", true, []Bucket{Later}},
		"done later":                    {lateDone, "", true, []Bucket{Later}},
		"done later, and in the book":   {lateDone, "17,r-17,,", true, []Bucket{Matched}},
		"never called for":              {effect("17", rules.Pending), "17,,,", false, []Bucket{InBookPending}},
		"the answer is not stored":      {sending, "17,,,", false, []Bucket{InBookUnclear}},
		"unknown later":                 {lateUnknown, "", false, []Bucket{UnknownLater}},
		"unknown later, in the book":    {lateUnknown, "17,,,", false, []Bucket{InBookUnknown}},
		"refused, and in the book":      {refused, "17,,,", false, []Bucket{InBookRefused}},
		"refused":                       {refused, "", false, []Bucket{Pending}},
		"unknown, and in the book":      {effect("17", rules.Unknown), "17,,,", false, []Bucket{InBookUnknown}},
		"failed, and in the book":       {effect("17", rules.Failed), "17,,,", false, []Bucket{InBookFailed}},
		"cancelled, and in the book":    {effect("17", rules.Cancelled), "17,,,", false, []Bucket{InBookCancelled}},
		"doubled":                       {effect("17", rules.Success), "17,r-17,,\n17,r-18,,", false, []Bucket{InBookTwice}},
		"doubled, in one line":          {effect("17", rules.Success), "17,r-17,,2", false, []Bucket{InBookTwice}},
		"another receipt":               {effect("17", rules.Success), "17,r-18,,", false, []Bucket{ReceiptDiffers}},
		"another sum":                   {sum, "17,r-17,501,", false, []Bucket{SumDiffers}},
		"the same sum":                  {sum, "17,r-17,500,", true, []Bucket{Matched}},
		"unknown, doubled, another sum": {Effect{ID: "17", State: rules.Unknown, Sum: 1, HasSum: true}, "17,x,1,\n17,y,2,", false, []Bucket{InBookUnknown, InBookTwice, SumDiffers}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := inputOf(bookOf(t, t.TempDir(), "id,receipt,sum,times\n"+tt.lines+"\n"), tt.effect)
			in.Sums = true
			r, got := compared(t, in)
			require.Equal(t, map[string][]Bucket{"17": tt.in}, got)
			require.Equal(t, tt.balanced, r.Balanced)
			require.Equal(t, !tt.balanced, r.Answer().Failed(), "the exit code")
		})
	}
	r, got := compared(t, inputOf(bookOf(t, t.TempDir(), "id\n18\n"), effect("17", rules.Success)))
	require.Equal(t, map[string][]Bucket{"17": {DoneNotInBook}, "18": {InBookNotLedger}}, got)
	require.False(t, r.Balanced)
}

// Two effects with one idempotency key are a mistake of the kind, and no finding about the book.
func TestTwoEffectsWithOneKey(t *testing.T) {
	t.Parallel()
	in := inputOf(bookOf(t, t.TempDir(), "key\nk\n"), effect("1", rules.Success), effect("2", rules.Success))
	in.Key = func(string) string { return "k" }
	_, err := Compare(t.Context(), in)
	require.ErrorContains(t, err, "the idempotency keys of two effects are the same")
	in.Key = nil
	_, err = Compare(t.Context(), in)
	require.ErrorIs(t, err, ErrNoKeys)
}

// A key that names another group or kind is not of this one, and a key that does not tell is compared.
func TestKeysOfOtherGroups(t *testing.T) {
	t.Parallel()
	r, got := compared(t, inputOf(bookOf(t, t.TempDir(), "key\nother group zeta\nother kind acme\nkey of 1\n9f2c\n"), effect("1", rules.Success)))
	require.Equal(t, map[string][]Bucket{"1": {Matched}, "9f2c": {InBookNotLedger}}, got)
	require.EqualValues(t, 2, r.OtherGroups)
	require.Contains(t, r.Answer().Notes[0], ": 4 lines, compared by key; 2 lines of other groups or kinds.")
	r, got = compared(t, inputOf(bookOf(t, t.TempDir(), "key,group\nother kind acme,acme\nother group zeta,acme\n")))
	require.Equal(t, map[string][]Bucket{"other group zeta": {InBookNotLedger}}, got, "the column says the group, but not the kind")
	require.EqualValues(t, 1, r.OtherGroups)
}

// The checks name the effects that break the books, and what to do about each kind, as a shell takes it.
func TestTheChecksNameTheEffects(t *testing.T) {
	t.Parallel()
	var effects []Effect
	for i := range 7 {
		effects = append(effects, effect(fmt.Sprint("it's ", i), rules.Unknown))
	}
	in := inputOf(bookOf(t, t.TempDir(), "id\nx\n"), append(effects, effect("x", rules.Success), effect("y", rules.Failed))...)
	in.Group = "a b"
	r, _ := compared(t, in)
	checks := r.Checks()
	require.Len(t, checks, 2, "a failed effect that is not in the book breaks nothing")
	require.Equal(t, "ledger and book agree, but effects are not settled, or UNKNOWN: 7", checks[0].Text)
	require.Regexp(t, `^effects (it's \d ){5}… \(7 in all\)$`, checks[1].Text)
	require.Regexp(t, `once resolve --kind invoice --group 'a b' --id 'it'\\''s \d' --not-done$`, checks[1].Remedy)
}

// Many effects, under a ceiling that a few words per effect would exceed.
func TestMemoryStaysSmall(t *testing.T) { //nolint:paralleltest // it measures the heap, so nothing else may run
	n, ceiling := 500_000, int64(24<<20)
	if testing.Short() {
		n = 100_000 // the race detector is slow
	}
	path := filepath.Join(t.TempDir(), "book")
	f, err := os.Create(path)
	require.NoError(t, err)
	fmt.Fprintln(f, "key,receipt")
	for i := range n {
		fmt.Fprintf(f, "key of n%d,r-n%[1]d\n", (i*7919)%n)
	}
	require.NoError(t, f.Close())
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most, steps := heap(), int64(0), 0
	measure := func() {
		if steps++; steps%50_000 == 0 {
			most = max(most, heap()-before)
		}
	}
	in := inputOf(path)
	in.inMemory = 0
	in.Effects = func(_ bool, each func(Effect) error) error {
		for i := range n {
			measure()
			if err := each(effect(fmt.Sprint("n", i), rules.Success)); err != nil {
				return err
			}
		}
		return nil
	}
	in.Each = func(Pair, []Bucket) error { measure(); return nil }
	r, err := Compare(t.Context(), in)
	require.NoError(t, err)
	require.EqualValues(t, n, r.Buckets[Matched])
	require.True(t, r.Balanced)
	require.Less(t, most, ceiling, "bytes of heap")
	t.Logf("%d KB of heap at most", most>>10)
}

func TestAnErrorLeavesNoFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	broken := errors.New("the database is away")
	in := inputOf(bookOf(t, t.TempDir(), "id\n"+strings.Repeat("x\n", 50)))
	in.Effects = func(_ bool, each func(Effect) error) error {
		for i := range 50 {
			if err := each(effect(fmt.Sprint(i), rules.Success)); err != nil {
				return err
			}
		}
		return broken
	}
	_, err := Compare(t.Context(), in)
	require.ErrorIs(t, err, broken)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Compare(ctx, in)
	require.ErrorIs(t, err, context.Canceled)
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left, fmt.Sprint(left))
}

// A spreadsheet that opens the file of a comparison runs nothing.
func TestALineHasNoFormulas(t *testing.T) {
	t.Parallel()
	e := effect("=1", rules.Success)
	e.Receipt, e.Sum, e.HasSum = `=HYPERLINK("http://x")`, -5, false
	p := Pair{Name: "@id", Effect: &e, Entry: &Entry{Line: 7, Times: 2, Receipt: "+r"}}
	line := p.Line("invoice", "-g", []Bucket{InBookTwice, ReceiptDiffers})
	require.Len(t, line, len(PairColumns()))
	for _, cell := range line {
		require.NotRegexp(t, `^[=+@\t\r-]`, cell)
	}
	require.Equal(t, []string{"in_book_twice receipt_differs", "SUCCESS", "7", "2"}, []string{line[3], line[4], line[9], line[10]})
}

// The totals that the ledger keeps must be those of its effects, unless they changed while those were read.
func TestTheKeptTotalsAreThoseOfTheEffects(t *testing.T) {
	t.Parallel()
	in := inputOf(bookOf(t, t.TempDir(), "id,receipt\na,r-a\n"), effect("a", rules.Success), effect("b", rules.Failed), effect("c", rules.Cancelled))
	right := Kept{Accepted: 3, Done: 1, Failed: 1, Cancelled: 1}
	var reads []Kept
	in.Kept = func() (k Kept, _ error) {
		k, reads = reads[0], reads[1:]
		return k, nil
	}
	for _, wrong := range []Kept{{Accepted: 4, Done: 1, Failed: 1, Cancelled: 1}, {3, 2, 1, 0, 0}, {3, 1, 0, 1, 1}, {3, 1, 1, 1, 1}} {
		reads = []Kept{right, right}
		r, err := Compare(t.Context(), in)
		require.NoError(t, err)
		require.True(t, r.Balanced)
		require.Equal(t, &right, r.Kept)

		reads = []Kept{wrong, right}
		r, err = Compare(t.Context(), in)
		require.NoError(t, err)
		require.True(t, r.Balanced, "they changed meanwhile")
		require.Nil(t, r.Kept)

		reads = []Kept{wrong, wrong}
		r, err = Compare(t.Context(), in)
		require.NoError(t, err)
		require.False(t, r.Balanced)
		checks := r.Checks()
		require.Equal(t, "totals", checks[len(checks)-1].Name)
		require.Equal(t, operate.Fail, r.Verdict().Level)
	}
	in.Kept = func() (Kept, error) { return Kept{}, io.ErrUnexpectedEOF }
	_, err := Compare(t.Context(), in)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
}
