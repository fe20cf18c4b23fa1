package reconcile

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Report is the result of a comparison.
type Report struct {
	Kind    string    `json:"kind"`
	Group   string    `json:"group"`
	Book    string    `json:"book"`
	AsOf    time.Time `json:"as_of"` // when the book was written
	Lag     float64   `json:"lag_seconds"`
	Columns Columns   `json:"columns"` // of the book
	Totals
	// Kept are the totals that the ledger keeps. Nil: they changed while its effects were read.
	Kept     *Kept `json:"kept,omitempty"`
	Balanced bool  `json:"balanced"`
	// Effects is the number of different effects in ledger and book; its buckets count them.
	Effects int64 `json:"effects"`
	Tally[string]
}

// Kept are totals that the ledger keeps beside its effects, so that nobody has to count them.
type Kept struct {
	Accepted  int64 `json:"accepted,omitzero"` // 0 where the ledger keeps no such total, as that of promotions
	Done      int64 `json:"done"`
	Failed    int64 `json:"failed"`
	Unknown   int64 `json:"unknown"`
	Cancelled int64 `json:"cancelled"`
}

// Totals are the numbers of the ledger and of the book, counted one by one.
type Totals struct {
	// effects in the ledger: done + failed + unknown + cancelled + pending + unclear
	Accepted  int64 `json:"accepted"`
	Done      int64 `json:"done"`
	Failed    int64 `json:"failed"`    // certainly not done
	Unknown   int64 `json:"unknown"`   // perhaps done, an operator decides
	Cancelled int64 `json:"cancelled"` // certainly not done
	Pending   int64 `json:"pending"`   // not settled, and certainly not done yet
	Unclear   int64 `json:"unclear"`   // not settled, and perhaps done

	Lines       int64 `json:"lines"`        // of the book
	OtherGroups int64 `json:"other_groups"` // of these, about effects of another group or kind
	InBook      int64 `json:"in_book"`      // effects that the book has
	Executions  int64 `json:"executions"`   // of these effects, according to the book

	DoneSum   int64 `json:"done_sum,omitzero"`    // of done effects that have a sum
	InBookSum int64 `json:"in_book_sum,omitzero"` // of the executions that have one
}

func (t *Totals) count(p Pair) {
	if p.Entry != nil {
		t.InBook++
		t.Executions += p.Entry.Times
	}
	if p.Effect == nil {
		return
	}
	t.Accepted++
	switch p.Effect.State {
	case rules.Success:
		t.Done++
		t.DoneSum += p.Effect.Sum
	case rules.Failed:
		t.Failed++
	case rules.Unknown:
		t.Unknown++
	case rules.Cancelled:
		t.Cancelled++
	default:
		if p.Effect.PerhapsDone {
			t.Unclear++
		} else {
			t.Pending++
		}
	}
}

// open returns the number of effects of which ledger and book don't contradict each other, and that are not settled.
func (r *Report) open() int64 {
	return r.Buckets[Pending] + r.Buckets[Unclear] + r.Buckets[Unknown] + r.Buckets[UnknownLater]
}

// broken returns the number of effects about which ledger and book differ.
func (r *Report) broken() (n int64) {
	for _, b := range Buckets() {
		if b.Remedy != "" {
			n += r.Buckets[b.Bucket]
		}
	}
	return n - r.open()
}

// miscounted reports whether the ledger's totals are not those of its effects.
func (r *Report) miscounted() bool {
	return r.Kept != nil && *r.Kept != Kept{r.Accepted, r.Done, r.Failed, r.Unknown, r.Cancelled}
}

func (r *Report) conclude() { r.Balanced = r.broken() == 0 && r.open() == 0 && !r.miscounted() }

// Verdict says whether the books balance. It claims no more than was read.
func (r *Report) Verdict() operate.Check {
	c := operate.Check{Name: "books", Level: operate.Fail}
	switch {
	case r.broken() > 0:
		c.Text = "they DON'T balance"
	case r.miscounted():
		c.Text = "ledger and book agree, but the totals of the ledger are wrong"
	case r.open() > 0:
		c.Text = fmt.Sprintf("ledger and book agree, but effects are not settled, or UNKNOWN: %s", app.Thousands(r.open()))
	default:
		c.Level, c.Text = operate.OK, "they balance: nothing is lost, and nothing was done twice"
	}
	if n := r.Buckets[Later]; n > 0 {
		c.Text += fmt.Sprintf(". The book can't say this of %s, which it is too old for", app.Plural(n, "effect"))
	}
	return c
}

// Checks returns the verdict, and then the effects that break the books or are left to do, with what to do about
// them.
func (r *Report) Checks() []operate.Check {
	checks := []operate.Check{r.Verdict()}
	for _, b := range Buckets() {
		n := r.Buckets[b.Bucket]
		if n == 0 || b.Remedy == "" {
			continue
		}
		words := strings.NewReplacer("KIND", quoted(r.Kind), "GROUP", quoted(r.Group), "ID", quoted(r.Example(b.Bucket, "ID")))
		checks = append(checks, operate.Check{Name: string(b.Bucket), Level: operate.Fail, Text: r.Named(b.Bucket, n, "effect"), Remedy: words.Replace(b.Remedy)})
	}
	if k := r.Kept; r.miscounted() {
		checks = append(checks, operate.Check{
			Name: "totals", Level: operate.Fail,
			Text:   fmt.Sprintf("the ledger keeps accepted %d, done %d, failed %d, unknown %d, cancelled %d, which is not what its effects are", k.Accepted, k.Done, k.Failed, k.Unknown, k.Cancelled),
			Remedy: "each effect is in its own row, which decides, so no call was lost or doubled by it; but another program has written to the tables, or this is a fault of the ledger that should be reported",
		})
	}
	return checks
}

// quoted is a text as a shell takes it.
func quoted(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(c rune) bool {
		return !strings.ContainsRune("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.:/@%+=,", c)
	}) {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Answer returns the report for people and programs.
func (r *Report) Answer() operate.Answer {
	buckets := operate.Table{Columns: []string{"BUCKET", "EFFECTS", "MEANING", "EXAMPLES"}}
	for _, b := range Buckets() {
		if n := r.Buckets[b.Bucket]; n > 0 || b.Bucket == Matched {
			buckets.Rows = append(buckets.Rows, []string{string(b.Bucket), app.Thousands(n), b.Text, r.List(b.Bucket, n)})
		}
	}
	totals := operate.Table{Columns: []string{"TOTAL", "COUNT", "MEANING"}}
	add := func(name string, n int64, text string) {
		totals.Rows = append(totals.Rows, []string{name, app.Thousands(n), text})
	}
	add("accepted", r.Accepted, "effects in the ledger")
	add("done", r.Done, "")
	add("failed", r.Failed, "certainly not done")
	add("unknown", r.Unknown, "perhaps done, an operator decides")
	add("cancelled", r.Cancelled, "certainly not done")
	add("pending", r.Pending, "not settled, and not done yet")
	add("unclear", r.Unclear, "not settled, and perhaps done")
	add("in book", r.InBook, "effects in the book")
	add("executions", r.Executions, "of these effects, according to the book")
	if r.Columns.has(columnSum) {
		add("done sum", r.DoneSum, "of the effects that are done")
		add("book sum", r.InBookSum, "of the executions in the book")
	}
	lines := []string{fmt.Sprintf("%s %s: %s in ledger and book, which is of %s", r.Kind, r.Group, app.Plural(r.Effects, "effect"), r.AsOf.Format(time.RFC3339))}
	return operate.Answer{Value: r, Lines: lines, Tables: []operate.Table{buckets, totals}, Notes: r.notes(), Checks: r.Checks()}
}

// notes say what of the book was compared.
func (r *Report) notes() []string {
	text := fmt.Sprintf("%s: %s, compared by %s", r.Book, app.Plural(r.Lines, "line"), strings.Join(r.Columns.Used, ", "))
	if len(r.Columns.Ignored) > 0 {
		text += "; ignored: " + strings.Join(r.Columns.Ignored, ", ")
	}
	if r.OtherGroups > 0 {
		text += fmt.Sprintf("; %s of other groups or kinds", app.Plural(r.OtherGroups, "line"))
	}
	return []string{text + "."}
}
