package deadletter

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// exec runs a statement in the database of the store. at is its argument.
func (o *office) exec(statement string, at time.Time) {
	o.t.Helper()
	driver, source, arg := "pgx", o.dsn, any(at)
	if portable.DialectOf(o.dsn) == portable.SQLite {
		file, err := sqldb.ParseFile(o.dsn)
		require.NoError(o.t, err)
		driver, source, arg = "sqlite", file.Path+"?_pragma=busy_timeout(5000)", at.UnixMicro()
	}
	db, err := sql.Open(driver, source)
	require.NoError(o.t, err)
	_, err = db.ExecContext(o.t.Context(), statement, arg)
	require.NoError(o.t, err)
	require.NoError(o.t, db.Close())
}

func (o *office) endLeases() {
	o.t.Helper()
	o.exec(`UPDATE dead_letters SET held_until = $1 WHERE held_until IS NOT NULL`, time.Now().Add(-time.Second))
}

// waitingLog is the standard error of a command. waits is closed when the command says that it
// waits for another replay.
type waitingLog struct {
	bytes.Buffer
	waits chan struct{}
}

func (w *waitingLog) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("Waiting for 1 dead letter of another replay.\n")) {
		close(w.waits)
	}
	return w.Buffer.Write(p)
}

// reportAfter runs a command that has to wait for another replay until release has ended that. It
// returns the command's report.
func (o *office) reportAfter(release func(), args ...string) cli.Report {
	o.t.Helper()
	var out bytes.Buffer
	said := &waitingLog{waits: make(chan struct{})}
	code := make(chan int, 1)
	go func() { code <- o.runInto(&out, said, append(args, "--json")...) }()
	select {
	case <-said.waits:
	case got := <-code:
		require.FailNow(o.t, "the command did not wait", "%d: %s%s", got, out.String(), said)
	}
	require.Never(o.t, func() bool { return len(code) > 0 }, 700*time.Millisecond, 10*time.Millisecond, "the replay still holds the lease")
	release()
	require.Zero(o.t, <-code, "%s%s", &out, said)
	var r cli.Report
	require.NoError(o.t, json.Unmarshal(out.Bytes(), &r), "%s", &out)
	return r
}

// Two commands replay all dead letters at the same time: each dead letter has one effect, and both
// commands succeed.
func TestTwoReplaysAtTheSameTime(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		const n = 15
		for i := range n {
			o.put(order(i), payoutDeadLetter(i))
		}
		var group sync.WaitGroup
		reports := make([]cli.Report, 2)
		for i := range reports {
			group.Go(func() {
				out, said, code := o.runApart("replay", "--all", "--who", fmt.Sprint("operator-", i), "--why", "x", "--json")
				if code != 0 || json.Unmarshal([]byte(out), &reports[i]) != nil {
					t.Errorf("%d: %s%s", code, out, said)
				}
			})
		}
		group.Wait()
		require.Equal(t, 2*n, reports[0].Replayed+reports[1].Replayed, "%+v", reports)
		require.Len(t, o.topics.payloads("orders"), n)
		require.Len(t, o.payouts.calls, n)
		for header, effects := range o.payouts.done {
			require.Equal(t, 1, effects, header)
		}
		require.Zero(t, o.waiting())
	})
}

// Two persons replay different dead letters: neither waits for the other.
func TestReplaysOfDifferentDeadLettersDoNotWait(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), order(2))
		begin := time.Now()
		_, err := o.store.Begin(t.Context(), order(1).ID, store.By{Who: "bob", Why: "x"}, false)
		require.NoError(t, err)
		_, said, code := o.runApart("replay", order(2).ID, "--why", "x")
		require.Zero(t, code, said)
		require.NotContains(t, said, "Waiting")
		require.Less(t, time.Since(begin), 14*time.Second) // the lease lasts longer, also if the machine stands still
	})
}

// A command is killed after the effect and before it has recorded it: the next one waits for the
// lease and resumes.
func TestAReplayThatWasKilledIsResumed(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		d := payoutDeadLetter(5)
		o.put(d)
		lease, err := o.store.Begin(t.Context(), d.ID, store.By{Who: "bob", Why: "x"}, false)
		require.NoError(t, err)
		o.payouts.started++ // in the process that is killed now
		_, err = o.payouts.Replay(t.Context(), lease.DeadLetter, store.By{Who: "bob", Why: "x"})
		require.NoError(t, err)
		o.payouts.started--
		out, _ := o.run("show", d.ID)
		require.Regexp(t, `replay +its lease ends at 2`, out)

		r := o.reportAfter(o.endLeases, "replay", d.ID, "--why", "x")
		require.Equal(t, []int{1, 1, 1}, []int{r.Selected, r.Already, r.Resumed}, "%+v", r)
		require.Equal(t, map[string]int{d.ID + "/1": 1}, o.payouts.done, "one effect")
		require.Equal(t, store.Replayed, o.state(d.ID))
	})
}

func TestAResumedReplayIsShown(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1))
		_, err := o.store.Begin(t.Context(), order(1).ID, store.By{Who: "bob", Why: "x"}, false)
		require.NoError(t, err)
		o.endLeases()
		out, _ := o.run("show", order(1).ID)
		require.Contains(t, out, "its lease ended")
		out, _ = o.run("replay", "--all", "--dry-run")
		require.Contains(t, out, "1 of an earlier replay that did not finish")
		out, code := o.run("replay", "--all", "--why", "x")
		require.Zero(t, code, out)
		require.Regexp(t, order(1).ID+` +replayed +resumed: an earlier replay did not finish\n1 dead letter: 1 replayed, 1 of an earlier`, out)
	})
}

func TestADiscardWaitsForTheReplay(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1))
		lease, err := o.store.Begin(t.Context(), order(1).ID, store.By{Who: "bob", Why: "x"}, false)
		require.NoError(t, err)
		r := o.reportAfter(func() {
			require.NoError(t, o.store.Finish(t.Context(), lease, store.Outcome{Result: store.OutcomeReplayed}))
		}, "discard", order(1).ID, "--why", "x")
		require.Equal(t, 1, r.Already, "it was replayed, so it is not discarded: %+v", r)
	})
}

// No output of a command has characters of a producer that control a terminal.
func TestNoControlCharactersReachATerminal(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		const bad = "a\u009b2J\x1b[2J\u202eb"
		d := order(1)
		d.Class, d.Error, d.Handler, d.Key, d.Topic, d.UUID, d.TraceParent = bad, bad, "orders.x"+bad, bad, bad, bad, bad
		d.Headers, d.Payload, d.Source = map[string]string{bad: bad}, []byte(bad), store.Source{Name: bad}
		p := payoutDeadLetter(2)
		p.Subject, p.Class = "P:"+bad, bad
		o.put(d, p)
		o.payouts.refused["P:"+bad] = bad
		for _, args := range [][]string{
			{"list"}, {"list", "--group"}, {"show", d.ID}, {"show", p.ID}, {"replay", "--all", "--dry-run"}, {"discard", "--all", "--dry-run"},
			{"replay", "--all", "--who", bad, "--why", bad}, {"show", p.ID}, {"list", "--class", "x"}, {"list", "--handler", bad + "x"},
		} {
			out, said, _ := o.runApart(args...)
			for _, r := range strings.ReplaceAll(out+said, "\n", "") {
				require.Equal(t, app.Printable(string(r)), string(r), "%v: %q", args, out+said)
			}
		}
	})
}

// A replay that ends early has a line for each dead letter that it had begun with, also for one that another replay holds.
func TestAReplayThatEndsEarlyAccountsForAll(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), order(2), order(3), order(4), order(5))
		_, err := o.store.Begin(t.Context(), order(1).ID, store.By{Who: "bob", Why: "y"}, false)
		require.NoError(t, err)
		o.topics.setDown(errors.New("no broker"))
		r := o.report(app.ExitBad, "replay", "--all", "--why", "x")
		require.Equal(t, []int{4, 3, 1, 0}, []int{r.Selected, r.Failed, r.Skipped, r.Replayed}, "%+v", r)
		require.Len(t, r.DeadLetters, 4)
		require.Equal(t, order(1).ID, r.DeadLetters[3].ID)
		require.Equal(t, "another replay holds it", r.DeadLetters[3].Reason)
	})
}
