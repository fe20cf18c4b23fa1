package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// frozenPair is a ledger on a primary whose standby is cut off. Each commit waits until its flush
// ends, and is then visible on the primary only.
type frozenPair struct {
	*sqldbtest.Pair
	*testDB
	t     *testing.T
	conn  *pgx.Conn // to the primary
	first *Ledger
	other *Ledger // another instance
	acked []payouts.Key
}

// freezePair prepares the ledger, which prepare may use, and then cuts the standby off. From then on a
// transaction of a batch ends within timeout.
func freezePair(t *testing.T, timeout time.Duration, prepare func(f *frozenPair)) *frozenPair {
	tier.Default(t)
	p := sqldbtest.NewPair(t)
	f := &frozenPair{Pair: p, testDB: newTestDB(p.Primary()), t: t}
	f.first, f.other, f.conn = f.open(t, lateRetries), f.open(t, as("b"), lateRetries), f.connect(t)
	prepare(f)
	short := func(_ *Config, o *Options) { o.flushTimeout = timeout }
	f.first, f.other = f.open(t, lateRetries, short), f.open(t, as("b"), lateRetries, short)
	f.Freeze()
	return f
}

// accept accepts records and notes those that were answered as stored.
func (f *frozenPair) accept(l *Ledger, records ...payouts.Record) (stored int) {
	for i, a := range l.Accept(f.t.Context(), records, AcceptOptions{}) {
		if a.Err == nil {
			f.acked, stored = append(f.acked, records[i].Key), stored+1
			continue
		}
		require.ErrorIs(f.t, a.Err, ErrUnavailable)
	}
	return stored
}

// visible calls until the primary shows what a cancelled commit has written. On a busy machine a call
// may end before its commit was sent.
func (f *frozenPair) visible(call func(), sql string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		call()
		var found bool
		require.NoError(f.t, f.conn.QueryRow(f.t.Context(), "SELECT EXISTS ("+sql+")").Scan(&found))
		return found
	}, 2*time.Minute, 10*time.Millisecond, "a cancelled commit is visible on the primary: %s", sql)
}

func (f *frozenPair) unconfirmed(err error, what string) {
	f.t.Helper()
	require.ErrorIs(f.t, err, ErrUnavailable, what)
}

// A commit that was cancelled is visible on its server, and a failover loses it. So nobody answers
// from such a row: neither the instance that wrote it nor another one.
func TestAFailoverLosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		begun, failed := record(1, 1), record(1, 2)
		var epoch int64
		f := freezePair(t, 300*time.Millisecond, func(f *frozenPair) {
			var records []payouts.Record
			for target := range int64(20) {
				records = append(records, record(1, target+1))
			}
			require.Equal(t, 20, f.accept(f.first, records...))
			require.Equal(t, 20, f.accept(f.other, records...), "rows that the standby has are confirmed")
			epoch = mustBegin(t, f.first, begun).Epoch
			endPayout(t, f.first, failed, false)
		})
		both := func(what string, call func(l *Ledger) error) {
			t.Helper()
			f.unconfirmed(call(f.first), what+", by the same instance")
			f.unconfirmed(call(f.other), what+", by another instance")
		}

		// Accept, and what follows an accept.
		fresh := []payouts.Record{record(2, 1), record(2, 2), record(2, 3)}
		f.visible(func() { require.Zero(t, f.accept(f.first, fresh...)) }, `SELECT FROM payouts WHERE promotion_id = 2`)
		for _, l := range []*Ledger{f.first, f.other} {
			require.Zero(t, f.accept(l, fresh...), "the rows are on the primary only")
			require.Zero(t, f.accept(l, append(fresh, record(2, 4))...), "together with a fresh one")
		}
		both("begin of a payout that may be lost", func(l *Ledger) error { _, err := l.Begin(t.Context(), fresh[0]); return err })
		both("not enqueued", func(l *Ledger) error { return l.NotEnqueued(t.Context(), []payouts.Key{fresh[1].Key})[0] })

		// A settle, and the entries of a payout that is settled on the primary only.
		paid := payouts.CallResult{Key: begun.Key, CallResult: rules.CallResult{Epoch: epoch, Outcome: rules.Done, Receipt: "T"}}
		f.visible(func() {
			_, err := f.first.Settle(t.Context(), paid)
			f.unconfirmed(err, "settle")
		}, `SELECT FROM payouts WHERE promotion_id = 1 AND target_id = 1 AND state = 'SUCCESS'`)
		both("settle again", func(l *Ledger) error { _, err := l.Settle(t.Context(), paid); return err })
		both("begin of a settled payout", func(l *Ledger) error { _, err := l.Begin(t.Context(), begun); return err })
		late := paid
		late.Epoch += 7
		for range 2 {
			both("late answer", func(l *Ledger) error { _, err := l.Settle(t.Context(), late); return err })
		}

		// Dead letters, of which each message has one.
		rival := record(1, 3)
		rival.Payload = []byte(`{"promotionId":1,"targetId":3,"amount":1}`)
		f.visible(func() { require.Zero(t, f.accept(f.first, rival)) }, `SELECT FROM outbox WHERE class = 'conflict'`)
		require.Zero(t, f.accept(f.first, rival))
		require.Zero(t, f.accept(f.other, rival))
		stray := record(9, 1)
		f.visible(func() {
			_, err := f.first.Begin(t.Context(), stray)
			f.unconfirmed(err, "unannounced")
		}, `SELECT FROM outbox WHERE class = 'unannounced'`)
		both("unannounced again", func(l *Ledger) error { _, err := l.Begin(t.Context(), stray); return err })

		// Operators. A busy machine may need longer to send a COMMIT.
		patience := 300 * time.Millisecond
		inTime := func(call func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return call(ctx)
		}
		visible := func(call func(), sql string) {
			t.Helper()
			f.visible(func() { call(); patience = min(2*patience, 10*time.Second) }, sql)
			patience = 300 * time.Millisecond
		}
		replay := Replay{DeadLetter: "a", Generation: 1, Who: "ann", Why: "a test"}
		again := func(l *Ledger) error {
			return inTime(func(ctx context.Context) error { _, err := l.Replay(ctx, failed.Key, replay); return err })
		}
		visible(func() { f.unconfirmed(again(f.first), "replay") }, `SELECT FROM ledger_replays WHERE letter = 'a'`)
		both("replay again", again)
		announce := func(l *Ledger) error {
			return inTime(func(ctx context.Context) error { _, err := l.Announce(ctx, record(3, 1), replay2()); return err })
		}
		visible(func() { f.unconfirmed(announce(f.first), "announce") }, `SELECT FROM payouts WHERE promotion_id = 3`)
		both("announce again", announce)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		record := func(l *Ledger) error {
			return inTime(func(ctx context.Context) error { _, err := l.RecordIncarnation(ctx, p, "i"); return err })
		}
		visible(func() { f.unconfirmed(record(f.first), "record an incarnation") }, `SELECT FROM promotion_streams WHERE incarnation = 'i'`)
		both("record it again", record)
		// The feeder admits the promotion between the read of its payouts and their enqueueing.
		both("admit", func(l *Ledger) error {
			return inTime(func(ctx context.Context) error { _, err := l.Admit(ctx, p); return err })
		})
		pause := func(l *Ledger) error {
			return inTime(func(ctx context.Context) error { return l.Pause(ctx, p, operator) })
		}
		visible(func() { f.unconfirmed(pause(f.first), "pause") }, `SELECT FROM promotions WHERE state = 'PAUSED'`)
		both("pause again", pause)

		f.failOver()
	})
}

func replay2() Replay { return Replay{DeadLetter: "b", Generation: 1, Who: "ann", Why: "a test"} }

// failOver promotes the standby, and checks that it has all that was answered and nothing else.
func (f *frozenPair) failOver() {
	f.t.Helper()
	require.NotEmpty(f.t, f.acked)
	f.Promote()
	after := newTestDB(f.Standby()).open(f.t)
	for _, k := range f.acked {
		_, err := after.Explain(f.t.Context(), k)
		require.NoError(f.t, err, "%s was answered as stored, and the failover has lost it", k)
	}
	_, err := after.Explain(f.t.Context(), key(2, 1))
	require.ErrorIs(f.t, err, ErrNotFound, "the failover has lost what was not answered, or this test tests nothing")
	a := mustAccept(f.t, after, record(2, 1))
	require.True(f.t, a.Fresh, "Kafka delivers the record again")
	require.Equal(f.t, rules.Enqueue, a.Next)
}

// The server answers COMMIT with success and a warning when somebody cancels the wait. The settings of
// a session may suppress warnings.
func TestAWaitThatTheServerCancelsConfirmsNothing(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		p := payouts.Promotion{Type: "POINT", ID: 2}
		var silent *Ledger
		f := freezePair(t, time.Minute, func(f *frozenPair) {
			require.Equal(t, 1, f.accept(f.first, record(1, 1)))
			silent = newTestDB(f.Primary()+"&client_min_messages=error").open(t, as("c"), lateRetries)
		})
		cancelled := func(what string, call func() error) {
			t.Helper()
			ended := make(chan error, 1)
			go func() { ended <- call() }()
			var err error
			require.Eventually(t, func() bool {
				f.CancelWaits()
				select {
				case err = <-ended:
					return true
				default:
					return false
				}
			}, 2*time.Minute, 10*time.Millisecond, what)
			f.unconfirmed(err, what)
		}
		for _, l := range []*Ledger{f.first, silent, f.first} {
			cancelled("accept", func() error { _, err := l.acceptOne(t.Context(), record(2, 1), false); return err })
			cancelled("begin", func() error { _, err := l.Begin(t.Context(), record(1, 1)); return err })
			cancelled("pause", func() error { return l.Pause(t.Context(), p, operator) })
		}
		f.failOver()
	})
}
