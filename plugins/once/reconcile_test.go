package once_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// withSums is a kind whose effects have sums, which is sent again after an unclear answer.
func withSums(k *once.Kind[invoice], c *once.KindConfig) {
	k.Sum = func(i invoice) (int64, bool) { return i.Cents, true }
	c.Retry = pipeline.Backoff{First: millisecond, Max: millisecond}
}

// commandLine runs the command of a binary with the kind, against the ledger of a world.
func commandLine(t *testing.T, w *oncetest.World, change func(*once.Kind[invoice], *once.KindConfig), args ...string) (stdout, stderr string, code int) {
	t.Helper()
	dsn := w.Once.Settings().(*once.Config).Ledger.DSN.Reveal()
	own := oncetest.On(t, dsn).Once
	config := filepath.Join(t.TempDir(), "mill.yaml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "log: {level: error}\nplugins: {once: {ledger: {dsn: %q}}}\n", dsn), 0o600))
	var out, errs bytes.Buffer
	code = app.Main(t.Context(), app.Options{
		Name: "mill", Plugins: []pipeline.Plugin{own, newInvoices(own, once.Always, change)}, Args: append(args, "--config", config), Environ: []string{},
		Stdout: &out, Stderr: &errs,
	})
	return out.String(), errs.String(), code
}

// settled enqueues an invoice and waits for its end.
func (p *invoices) settled(t *testing.T, i invoice, steps ...oncetest.Step) once.State {
	t.Helper()
	p.far.Next(steps...)
	_, err := p.effects.Enqueue(t.Context(), i)
	require.NoError(t, err)
	return oncetest.Settled(t, p.effects, i.key())
}

// book returns the file of what the far side has executed.
func (p *invoices) book(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "book.csv")
	f, err := os.Create(path)
	require.NoError(t, err)
	require.NoError(t, p.far.WriteBook(f))
	require.NoError(t, f.Close())
	return path
}

// A far side that has lost one effect, done another one twice and a third without the ledger is found out by its own
// book.
func TestTheBookOfTheFarSide(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Always, withSums)
		stop := w.StartUntil(p)
		of := func(number string) invoice { return invoice{Customer: "acme", Number: number, Cents: 100} }
		unclear := once.Answer{Text: "no answer in time"}
		require.Equal(t, rules.Success, p.settled(t, of("fine")).State)
		require.Equal(t, rules.Success, p.settled(t, invoice{Customer: "zeta", Number: "1"}).State)
		require.Equal(t, rules.Success, p.settled(t, of("lost"), oncetest.Step{Answer: once.IsDone("in_81x")}).State)
		require.Equal(t, rules.Success, p.settled(t, of("doubled"), oncetest.Step{Execute: true, Answer: unclear}).State)
		require.Equal(t, rules.Failed, p.settled(t, of("failed"), oncetest.Step{Execute: true, Answer: once.Answer{Class: once.Rejected, Text: "422"}}).State)
		require.Equal(t, once.Done, oncetest.Call(p.far, once.Attempt[invoice]{Idempotency: of("of nobody").idempotency()}).Class)
		require.NoError(t, stop())

		book := p.book(t)
		differing := filepath.Join(t.TempDir(), "differing.csv")
		args := []string{"once", "reconcile", "--kind", "invoice", "--group", "acme", "--book", book, "--lag", "0s"}

		stdout, stderr, code := commandLine(t, w, withSums, append(args, "--csv", differing)...)
		require.Equal(t, app.ExitBad, code, stdout+stderr)
		require.Equal(t, `invoice acme: 5 effects in ledger and book, which is of TIME
BUCKET                 EFFECTS  MEANING                                                                     EXAMPLES
matched                1        done and once in the book, or cancelled and not in it
done_not_in_book       1        done in the ledger, and not in the book: lost, or the book is not complete  lost
in_book_failed         1        in the book, and failed in the ledger                                       failed
in_book_not_in_ledger  1        in the book, and not in the ledger                                          invoice:acme:of%20nobody
in_book_twice          1        more than once in the book: doubled                                         doubled
TOTAL       COUNT  MEANING
accepted    4      effects in the ledger
done        3
failed      1      certainly not done
unknown     0      perhaps done, an operator decides
cancelled   0      certainly not done
pending     0      not settled, and not done yet
unclear     0      not settled, and perhaps done
in book     4      effects in the book
executions  5      of these effects, according to the book
book.csv: 5 lines, compared by key, receipt, times; 1 line of other groups or kinds.
books: they DON'T balance
done_not_in_book: effect lost; ask who runs the far side for its receipt (once explain --kind invoice --group acme --id lost), and do not replay it before they have answered
in_book_failed: effect failed; do not replay it, and correct it with who runs the far side
in_book_not_in_ledger: effect invoice:acme:of%20nobody; find who did it without this ledger, such as another deployment, or a ledger from before a restore
in_book_twice: effect doubled; correct it with who runs the far side, which did not honour its idempotency key, unless the kind's Repeat is always or its lookups were wrong
`, golden(stdout, book))

		lines, err := os.ReadFile(differing)
		require.NoError(t, err)
		require.Contains(t, golden(string(lines), book), "invoice,acme,lost,done_not_in_book,SUCCESS,in_81x,,TIME,TIME,,,,\n")
		require.Contains(t, golden(string(lines), book), "invoice,acme,doubled,in_book_twice,SUCCESS,receipt of invoice:acme:doubled,,TIME,TIME,2,2,receipt of invoice:acme:doubled,\n")
		require.Equal(t, 5, strings.Count(string(lines), "\n"), "a header and what differs")

		var r reconcile.Report
		stdout, stderr, code = commandLine(t, w, withSums, append(args, "--json")...)
		require.Equal(t, app.ExitBad, code)
		require.Equal(t, "once reconcile: 4 of 4 (100 %)\n", stderr, "the progress")
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		require.False(t, r.Balanced)
		require.Equal(t, []string{"lost"}, r.Examples[reconcile.DoneNotInBook])
		require.Equal(t, []int64{4, 3, 1, 5, 1, 4, 5}, []int64{r.Accepted, r.Done, r.Failed, r.Lines, r.OtherGroups, r.InBook, r.Executions})

		// What was done after the book's time is no loss.
		stdout, stderr, code = commandLine(t, w, withSums, append(args, "--as-of", "2020-01-01T00:00:00Z", "--json")...)
		require.Equal(t, app.ExitBad, code, stderr)
		require.NoError(t, json.Unmarshal([]byte(stdout), &r))
		require.EqualValues(t, 1, r.Buckets[reconcile.Later])
		require.Zero(t, r.Buckets[reconcile.DoneNotInBook])
	})
}

// The far side has done the effect and answers that it has not, so it would be done again. That is no other program's work.
func TestAnAnswerThatComesAfterTheEffect(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		change := func(k *once.Kind[invoice], c *once.KindConfig) {
			c.Retry = pipeline.Backoff{First: time.Hour, Max: time.Hour}
		}
		p := newInvoices(w.Once, once.Always, change)
		stop := w.StartUntil(p)
		p.far.Next(oncetest.Step{Execute: true, Answer: once.Answer{Class: once.Retry, Text: "500"}})
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			s, err := p.effects.State(t.Context(), one.key())
			return err == nil && s.State == rules.Errored
		}, time.Minute, 2*time.Millisecond)
		require.NoError(t, stop())
		book := p.book(t)
		stdout, stderr, code := commandLine(t, w, change, "once", "reconcile", "--kind", "invoice", "--group", one.Customer, "--book", book, "--lag", "0s")
		require.Equal(t, app.ExitBad, code, stderr)
		require.Contains(t, stdout, "in_book_refused: effect "+one.Number+"; once pause --kind invoice --group "+one.Customer+" before it is done again")
	})
}

// golden takes out of a text what differs between two runs, and the spaces at the end of lines.
func golden(text, book string) string {
	text = regexp.MustCompile(` +\n`).ReplaceAllString(text, "\n")
	return regexp.MustCompile(`20\d\d-\d\d-\d\dT[\d:.]+Z`).ReplaceAllString(strings.ReplaceAll(text, book, "book.csv"), "TIME")
}

// A book by id needs no kind in the binary, and one by key does.
func TestABookWithoutTheKind(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Always, withSums)
		stop := w.StartUntil(p)
		require.Equal(t, rules.Success, p.settled(t, one).State)
		require.NoError(t, stop())
		other := func(k *once.Kind[invoice], _ *once.KindConfig) { k.Name = "parcel" }
		run := func(change func(*once.Kind[invoice], *once.KindConfig), kind, group, book string, more ...string) (string, int) {
			path := filepath.Join(t.TempDir(), "book")
			require.NoError(t, os.WriteFile(path, []byte(book), 0o600))
			stdout, stderr, code := commandLine(t, w, change, append([]string{"once", "reconcile", "--kind", kind, "--group", group, "--book", path, "--lag", "0s"}, more...)...)
			return golden(stdout+stderr, path), code
		}
		text, code := run(other, "invoice", "acme", `{"id":"17","receipt":"receipt of invoice:acme:17","sum":1}`)
		require.Equal(t, app.ExitOK, code, text)
		require.Contains(t, text, "books: they balance: nothing is lost, and nothing was done twice\n")
		text, code = run(withSums, "invoice", "acme", "key,sum\ninvoice:acme:17,1200\n")
		require.Equal(t, app.ExitOK, code, text)
		require.Regexp(t, `done sum +1,200 `, text)
		text, code = run(withSums, "invoice", "acme", "id,sum\n17,1201\n")
		require.Equal(t, app.ExitBad, code, text)
		require.Contains(t, text, "sum_differs: effect 17; compare the request (once explain --kind invoice --group acme --id 17)")

		text, code = run(other, "invoice", "acme", "key\ninvoice:acme:17\n")
		require.Equal(t, app.ExitUsage, code)
		require.Contains(t, text, "book.csv names effects by their idempotency keys, which this program can't derive, because it does not have the kind invoice")
		text, code = run(withSums, "invoice", "acme", "id,sum\n17,12.00\n")
		require.Equal(t, app.ExitUsage, code)
		require.Contains(t, text, `book.csv, line 2: want sum as a whole number, got "12.00"`)
		text, code = run(withSums, "invoice", "nobody", "id\n")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, text, "group nobody of kind invoice has no effect in the ledger")
		text, code = run(withSums, "invoice", "nobody", "id\n5\n")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, text, "in_book_not_in_ledger: effect 5; find who did it")
		for flag, want := range map[string]string{"--lag=-1s": "--lag must be a duration", "--as-of=today": "--as-of must be a time", "--all": "--all needs --csv", "--csv=/no/folder/x": "--csv: ", "--book=/no/book": "--book: "} {
			text, code = run(withSums, "invoice", "acme", "id\n17\n", flag)
			require.Equal(t, app.ExitUsage, code, text)
			require.Contains(t, text, want)
		}
	})
}

// Effects that are accepted and done while the comparison reads the ledger are no findings, and the ledger's clock
// decides, not the file's.
func TestReconcileWhileEffectsAreDone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		o := operator{t, w}
		require.Equal(t, rules.Success, p.settled(t, one).State)
		book := filepath.Join(t.TempDir(), "book")
		f, err := os.Create(book)
		require.NoError(t, err)
		require.NoError(t, p.far.WriteBook(f))
		require.NoError(t, f.Close())
		tomorrow := time.Now().Add(24 * hour)
		require.NoError(t, os.Chtimes(book, tomorrow, tomorrow))

		in := input("")
		in["book"], in["lag"] = []string{book}, []string{"0s"}
		var steps []int64
		read := func() *reconcile.Report {
			steps = nil
			ctx := operate.WithProgress(t.Context(), func(done, total int64) {
				if done == 1 { // the ledger is being read
					require.Equal(t, rules.Success, p.settled(t, invoice{Customer: "acme", Number: fmt.Sprint("z", total)}).State)
				}
				steps = append(steps, done)
			})
			for _, r := range w.Once.Operations().Reports {
				if r.Name == "once reconcile" {
					require.NoError(t, r.Check(in))
					a, err := r.Read(ctx, nil, in)
					require.NoError(t, err)
					return a.Value.(*reconcile.Report)
				}
			}
			return nil
		}
		r := read()
		require.True(t, r.Balanced, "%+v", r)
		require.True(t, r.AsOf.Before(tomorrow.Add(-hour)), "a book of tomorrow is one of now")
		require.Equal(t, []int64{1}, steps)
		r = read() // the book is as old as this run, which the effect of the first one is older than
		require.EqualValues(t, 1, r.Buckets[reconcile.DoneNotInBook])
		require.Contains(t, o.must("once", operate.Input{"limit": {"50"}}).Tables[0].Rows[0], "3")
	})
}

// Totals that are not those of the rows are found, although the book agrees with each effect.
func TestTotalsOfTheLedgerThatAreWrong(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.Always, withSums)
		stop := w.StartUntil(p)
		require.Equal(t, rules.Success, p.settled(t, one).State)
		require.NoError(t, stop())
		path := filepath.Join(t.TempDir(), "book")
		book, err := os.Create(path)
		require.NoError(t, err)
		require.NoError(t, p.far.WriteBook(book))
		require.NoError(t, book.Close())
		args := []string{"once", "reconcile", "--kind", "invoice", "--group", one.Customer, "--book", path, "--lag", "0s"}
		stdout, stderr, code := commandLine(t, w, withSums, args...)
		require.Zero(t, code, stdout+stderr)

		driver, dsn := "pgx", w.Once.Settings().(*once.Config).Ledger.DSN.Reveal()
		if file, ok := strings.CutPrefix(dsn, "sqlite:"); ok {
			driver, dsn = "sqlite", file
		}
		db, err := sql.Open(driver, dsn)
		require.NoError(t, err)
		defer db.Close()
		_, err = db.ExecContext(t.Context(), "INSERT INTO once_deltas (kind, grp, part, number, accepted) SELECT kind, grp, '', 99, 1 FROM once_effects")
		require.NoError(t, err)
		stdout, stderr, code = commandLine(t, w, withSums, args...)
		require.Equal(t, app.ExitBad, code, stdout+stderr)
		require.Contains(t, stdout, "the totals of the ledger are wrong")
		require.Contains(t, stdout, "totals: the ledger keeps accepted 2, done 1, failed 0, unknown 0, cancelled 0")
	})
}
