package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// frozenPair is a ledger on a primary whose standby is cut off. A commit waits until its call ends, and is then
// visible on the primary only.
type frozenPair struct {
	*sqldbtest.Pair
	t            *testing.T
	conn         *pgx.Conn // to the primary
	first, other *Ledger   // two instances
	acked        []Key
}

// freezePair prepares the ledger, which prepare may use, and then cuts the standby off. From then on a call ends
// within timeout.
func freezePair(t *testing.T, timeout time.Duration, prepare func(f *frozenPair)) *frozenPair {
	t.Helper()
	tier.Default(t)
	p := sqldbtest.NewPair(t)
	h := newTestDB(p.Primary())
	conn, err := pgx.Connect(t.Context(), p.Primary())
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	f := &frozenPair{Pair: p, t: t, conn: conn, first: h.open(t), other: h.open(t, as("b"))}
	prepare(f)
	short := func(_ *Config, o *Options) { o.timeout = timeout }
	f.first, f.other = h.open(t, short), h.open(t, as("b"), short)
	f.Freeze()
	return f
}

// accept accepts records and notes those that were answered as stored.
func (f *frozenPair) accept(l *Ledger, records ...Record) (stored int) {
	f.t.Helper()
	results, err := l.Accept(f.t.Context(), records)
	if err != nil {
		f.unconfirmed(err, "accept")
		return 0
	}
	for i, r := range results {
		if r.Err == nil {
			f.acked, stored = append(f.acked, records[i].Key), stored+1
			continue
		}
		f.unconfirmed(r.Err, "accept")
	}
	return stored
}

func (f *frozenPair) unconfirmed(err error, what string) {
	f.t.Helper()
	require.ErrorIs(f.t, err, ErrUnavailable, what)
}

// both calls one and then the other instance.
func (f *frozenPair) both(what string, call func(l *Ledger) error) {
	f.t.Helper()
	f.unconfirmed(call(f.first), what+", by the same instance")
	f.unconfirmed(call(f.other), what+", by another instance")
}

// visible calls until the primary shows what a cancelled commit has written. On a busy machine a call may end before
// its commit was sent.
func (f *frozenPair) visible(call func(), sql string) {
	f.t.Helper()
	require.Eventually(f.t, func() bool {
		call()
		var found bool
		require.NoError(f.t, f.conn.QueryRow(f.t.Context(), "SELECT EXISTS ("+sql+")").Scan(&found))
		return found
	}, 2*time.Minute, 10*time.Millisecond, "a cancelled commit is visible on the primary: %s", sql)
}

// settle returns the error of one answer.
func settle(t *testing.T, l *Ledger, e End) error {
	results, err := l.Settle(t.Context(), []End{e})
	if err != nil {
		return err
	}
	return results[0].Err
}

// A commit that was cancelled is visible on its server, and a failover loses it. So nobody answers from such a
// row: neither the instance that wrote it nor another one.
func TestAFailoverLosesNothingThatWasAnswered(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		var begun, failed Claimed
		f := freezePair(t, 300*time.Millisecond, func(f *frozenPair) {
			require.Equal(t, 2, f.accept(f.first, records("begun", 2)...))
			claimed := claimAll(t, f.first, "invoice")
			require.Len(t, claimed, 2)
			begun, failed = claimed[0], claimed[1]
			require.Equal(t, rules.Failed, mustSettle(t, f.first, end(failed, rules.Rejected))[0].State)
			require.Equal(t, 20, f.accept(f.first, records("old", 20)...))
			require.Equal(t, 20, f.accept(f.other, records("old", 20)...), "rows that the standby has are confirmed")
		})
		old, fresh := Group{Kind: "invoice", Name: "old"}, records("new", 3)

		f.visible(func() { require.Zero(t, f.accept(f.first, fresh...)) }, `SELECT FROM once_effects WHERE grp = 'new'`)
		for _, l := range []*Ledger{f.first, f.other} {
			require.Zero(t, f.accept(l, fresh...), "the rows are on the primary only")
			require.Zero(t, f.accept(l, append(fresh, record("new", 4))...), "together with a fresh one")
		}
		rival := fresh[0]
		rival.Payload = []byte(`{"id":"another request"}`)
		f.both("conflict with a row that may be lost", func(l *Ledger) error {
			results, err := l.Accept(t.Context(), []Record{rival})
			if err == nil {
				err = results[0].Err
			}
			return err
		})

		done := end(begun, rules.Done)
		f.visible(func() { f.unconfirmed(settle(t, f.first, done), "settle") }, `SELECT FROM once_effects WHERE grp = 'begun' AND state = 5`)
		f.both("settle again", func(l *Ledger) error { return settle(t, l, done) })
		late := done
		late.Epoch += 7
		f.both("late answer", func(l *Ledger) error { return settle(t, l, late) })

		// Nobody may call for what only the primary knows as begun.
		claim := func(l *Ledger) error {
			due, err := l.Due(t.Context(), "invoice")
			require.NoError(t, err, "a read alone")
			for _, lane := range due.Lanes {
				claimed, err := l.Claim(t.Context(), "invoice", lane, 5)
				require.Empty(t, claimed)
				if err != nil {
					return err
				}
			}
			return ErrUnavailable // nothing is left to claim
		}
		f.visible(func() { f.unconfirmed(claim(f.first), "claim") }, `SELECT FROM once_effects WHERE grp = 'old' AND state = 2`)
		f.both("claim again", claim)

		patience := 300 * time.Millisecond
		inTime := func(call func(ctx context.Context) error) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			return call(ctx)
		}
		for name, r := range map[string]Record{"a known record": fresh[0], "a rival": rival} {
			f.both("accept in a transaction: "+name, func(l *Ledger) error {
				tx, err := f.conn.Begin(t.Context())
				require.NoError(t, err)
				defer func() { require.NoError(t, tx.Rollback(context.Background())) }()
				return inTime(func(ctx context.Context) error { return l.AcceptTx(ctx, PgxTx(tx), []Record{r}) })
			})
		}
		for _, action := range []struct {
			name string
			do   func(ctx context.Context, l *Ledger) error
			sql  string
		}{
			{"replay", func(ctx context.Context, l *Ledger) error { return l.Replay(ctx, failed.Key, operator) }, `SELECT FROM once_audit WHERE action = 'replay'`},
			{"pause", func(ctx context.Context, l *Ledger) error { return l.Pause(ctx, old, operator) }, `SELECT FROM once_groups WHERE state = 2`},
			{"limits", func(ctx context.Context, l *Ledger) error {
				one := 1
				return l.SetLimits(ctx, "invoice", LimitChange{InFlight: &one}, operator)
			}, `SELECT FROM once_limits WHERE in_flight = 1`},
			{"cancel", func(ctx context.Context, l *Ledger) error { _, err := l.Cancel(ctx, old, operator); return err }, `SELECT FROM once_groups WHERE state = 3`},
			{"recover", func(ctx context.Context, l *Ledger) error {
				_, err := l.Recover(ctx, "invoice", time.Now().Add(-time.Hour), operator)
				return err
			}, `SELECT FROM once_lost`},
		} {
			call := func(l *Ledger) error {
				return inTime(func(ctx context.Context) error { return action.do(ctx, l) })
			}
			f.visible(func() { f.unconfirmed(call(f.first), action.name); patience = min(2*patience, 10*time.Second) }, action.sql)
			patience = 300 * time.Millisecond
			f.both(action.name+" again", call)
		}
		f.failOver()
	})
}

// failOver promotes the standby, and checks that it has all that was answered and nothing else.
func (f *frozenPair) failOver() {
	f.t.Helper()
	require.NotEmpty(f.t, f.acked)
	f.Promote()
	after := newTestDB(f.Standby()).open(f.t)
	for _, k := range f.acked {
		require.NotEqual(f.t, rules.Success, mustExplain(f.t, after, k).Row.State, "%s: what became of it was not answered", k.text())
	}
	_, err := after.Explain(f.t.Context(), key("new", 0))
	require.ErrorIs(f.t, err, ErrNotFound, "the failover has lost what was not answered, or this test tests nothing")
	require.Equal(f.t, []Accepted{Fresh}, mustAccept(f.t, after, record("new", 0)), "its record is delivered again")
}
