package ledger

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func TestPayoutIsPaid(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, withResults)
		r := record(1, 2)
		r.Request = []byte(`{"exact":  1}`)
		require.Equal(t, AcceptResult{Next: rules.Enqueue, Fresh: true, State: rules.Pending}, mustAccept(t, l, r))
		b := mustBegin(t, l, r)
		require.Equal(t, rules.Send, b.Next)
		require.Equal(t, 1, b.Attempt)
		require.Equal(t, string(r.Request), string(b.Request), "byte for byte")
		require.Equal(t, string(r.Payload), string(mustExplain(t, l, r.Key).Payload))
		require.Equal(t, 8*time.Second, b.Lease)

		s := mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Done, Receipt: "tx\x00\xff" + strings.Repeat("x", 9000), Status: 200}})
		require.Equal(t, SettleResult{Next: rules.Ack, State: rules.Success, Attempts: 1}, s)
		require.Equal(t, s, mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.Unclear}}), "repeated settles change nothing")
		require.Equal(t, AcceptResult{Next: rules.Settled, State: rules.Success}, mustAccept(t, l, r))
		require.Equal(t, rules.Ack, mustBegin(t, l, r).Next)

		x := mustExplain(t, l, r.Key)
		require.True(t, strings.HasPrefix(x.Receipt, "tx��xx"), "a paid answer is resolved whatever it contains")
		require.Len(t, x.Calls, 1)
		require.Equal(t, payouts.Attempt{Epoch: 1, Number: 1, Kind: payouts.CallSend, Instance: "a", StartedAt: x.AttemptStartedAt, EndedAt: x.SettledAt, Outcome: payouts.Paid, Status: 200}, x.Calls[0])

		c, err := l.Status(t.Context(), r.OfPromotion())
		require.NoError(t, err)
		require.Equal(t, Counts{Promotion: r.OfPromotion(), State: rules.GroupRunning, PayoutCounts: PayoutCounts{Accepted: 1, Paid: 1}}, c)
		events := relayed(t, l, OutboxOutcome)
		require.Len(t, events, 1)
		require.Contains(t, string(events[0].Payload), `"promotionId":1,"promotionSummaryId":9,"targetId":2,"state":"SUCCESS"`)
	})
}

func TestConflictKeepsTheFirst(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		first, second := record(1, 2), record(1, 2)
		second.Payload = []byte(`{"amount":900}`)
		mustAccept(t, l, first)
		require.Equal(t, rules.Conflict, mustAccept(t, l, second).Next)
		require.Equal(t, rules.Conflict, mustAccept(t, l, second).Next, "delivered again")
		require.Equal(t, rules.Conflict, mustBegin(t, l, second).Next, "and through the stream")
		require.Equal(t, string(first.Payload), string(mustBegin(t, l, first).Request))

		dead := relayed(t, l, OutboxDead)
		require.Len(t, dead, 1, "one dead letter for one other request")
		require.Equal(t, rules.ClassConflict, dead[0].Class)
		require.Equal(t, string(second.Payload), string(dead[0].Payload))
		require.Equal(t, map[string]string{"traceparent": "00-1"}, dead[0].Headers)
		require.Equal(t, "topic/0@7", dead[0].Origin)
		require.Empty(t, relayed(t, l, OutboxDead), "published once")
		c, err := l.Status(t.Context(), first.OfPromotion())
		require.NoError(t, err)
		require.Equal(t, []int64{1, 1, 1}, []int64{c.Dead, c.Conflict, c.Accepted})
		x := mustExplain(t, l, first.Key)
		require.Len(t, x.DeadLetters, 1)
		require.Equal(t, string(second.Payload), x.DeadLetters[0].Offered)
	})
}

func TestRetriesThenFailed(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, lateRetries)
		r := record(1, 2)
		mustAccept(t, l, r)
		for n := 1; n <= 6; n++ {
			b := mustBegin(t, l, r)
			require.Equal(t, rules.Send, b.Next)
			require.Equal(t, n, b.Attempt)
			s := mustSettle(t, l, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: b.Epoch, Outcome: rules.TryAgain, Class: "http_408", Answer: "slow\x00", Route: "point"}})
			if n == 6 {
				require.Equal(t, SettleResult{Next: rules.Ack, State: rules.Failed, Attempts: 6}, s)
				break
			}
			require.Equal(t, rules.Errored, s.State)
			early := mustBegin(t, l, r)
			require.Equal(t, rules.Retry, early.Next, "not due")
			require.Positive(t, early.RetryIn)
			h.advance(s.RetryIn + time.Second)
		}
		dead := relayed(t, l, OutboxDead)
		require.Len(t, dead, 1)
		require.Equal(t, "http_408", dead[0].Class)
		require.Equal(t, "slow�", dead[0].Error)
		require.Equal(t, 6, dead[0].Attempts)
		require.Equal(t, string(r.Payload), string(dead[0].Payload))
		require.True(t, dead[0].FirstFailedAt.Before(dead[0].CreatedAt))
		require.Len(t, mustExplain(t, l, r.Key).Calls, 6)
	})
}

func TestDeadWorkerIsTakenOver(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		a, b := h.open(t), h.open(t, as("b"))
		r := record(1, 2)
		mustAccept(t, a, r)
		first := mustBegin(t, a, r)
		require.Equal(t, "leased", mustBegin(t, b, r).Why)
		h.advance(9 * time.Second)
		second := mustBegin(t, b, r)
		require.Equal(t, rules.Send, second.Next)
		require.Greater(t, second.Epoch, first.Epoch)

		late := mustSettle(t, a, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: first.Epoch, Outcome: rules.Done, Receipt: "late"}})
		require.True(t, late.Stale)
		require.Equal(t, rules.Ack, late.Next)
		require.Equal(t, rules.Sending, late.State, "a late answer changes nothing")
		s := mustSettle(t, b, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: second.Epoch, Outcome: rules.Rejected, Class: "http_422"}})
		require.Equal(t, rules.Ambiguous, s.State, "the first request may have charged: not FAILED")
		h.advance(time.Minute)
		lookup := mustBegin(t, b, r)
		require.Equal(t, rules.Lookup, lookup.Next)
		require.Equal(t, 2, lookup.Attempt, "a lookup is no attempt")
		require.Equal(t, rules.Success, mustSettle(t, b, payouts.CallResult{Key: r.Key, CallResult: rules.CallResult{Epoch: lookup.Epoch, Outcome: rules.Done, Receipt: "late"}}).State)

		calls := mustExplain(t, a, r.Key).Calls
		require.Len(t, calls, 4)
		require.Equal(t, payouts.Interrupted, calls[0].Outcome)
		require.Equal(t, "a", calls[0].Instance)
		require.True(t, calls[1].Late)
		require.Equal(t, payouts.Paid, calls[1].Outcome)
		require.Equal(t, payouts.CallLookup, calls[3].Kind)
	})
}

func TestPausedPayoutsWaitForTheFeeder(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		mustAccept(t, l, record(1, 1))
		require.NoError(t, l.Pause(t.Context(), p, operator))
		require.Equal(t, rules.Paused, mustAccept(t, l, record(1, 2)).Next)
		require.Equal(t, "paused", mustBegin(t, l, record(1, 1)).Why)
		work, err := l.Unfinished(t.Context())
		require.NoError(t, err)
		require.Empty(t, work, "nothing is items while paused")
		require.NoError(t, l.Resume(t.Context(), p, operator))
		items, err := l.FeedUnqueued(t.Context(), p, 10)
		require.NoError(t, err)
		require.Len(t, items, 2)
		require.Equal(t, rules.Send, mustBegin(t, l, record(1, 1)).Next)
	})
}

func TestCancelTakesEffectAtOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t, unannounced)
		p := payouts.Promotion{Type: "POINT", ID: 1}
		var leased []BeginResult
		acceptMany(t, l, 1, 1200)
		for target := range int64(3) {
			leased = append(leased, mustBegin(t, l, record(1, target+1)))
		}
		mustSettle(t, l, payouts.CallResult{Key: key(1, 1), CallResult: rules.CallResult{Epoch: leased[0].Epoch, Outcome: rules.Unclear}})
		c, err := l.Cancel(t.Context(), p, operator)
		require.NoError(t, err)
		require.Positive(t, c.Longest)
		require.LessOrEqual(t, c.Longest, leased[2].Lease)
		c.Longest = 0
		require.Equal(t, Cancellation{Cancelled: 1197, InFlight: 2, Ambiguous: 1}, c)
		require.Equal(t, rules.Settled, mustAccept(t, l, record(1, 5000)).Next, "born cancelled")
		require.Equal(t, "cancelled", mustBegin(t, l, record(1, 5001)).Why)
		require.ErrorIs(t, l.Resume(t.Context(), p, operator), ErrCancelled)
		require.ErrorIs(t, l.Pause(t.Context(), p, operator), ErrCancelled)

		mustSettle(t, l, payouts.CallResult{Key: key(1, 2), CallResult: rules.CallResult{Epoch: leased[1].Epoch, Outcome: rules.Throttled}})
		mustSettle(t, l, payouts.CallResult{Key: key(1, 3), CallResult: rules.CallResult{Epoch: leased[2].Epoch, Outcome: rules.Done, Receipt: "x"}})
		h.advance(time.Minute)
		require.Equal(t, "cancelled", mustBegin(t, l, record(1, 2)).Why)
		for n := range 6 {
			lookup := mustBegin(t, l, record(1, 1))
			require.Equal(t, rules.Lookup, lookup.Next, "never sent again")
			s := mustSettle(t, l, payouts.CallResult{Key: key(1, 1), CallResult: rules.CallResult{Epoch: lookup.Epoch, Outcome: rules.NotDone}})
			require.Equal(t, rules.Ambiguous, s.State, n)
			h.advance(time.Minute)
		}
		require.Equal(t, rules.Unknown, mustBegin(t, l, record(1, 1)).State)
		again, err := l.Cancel(t.Context(), p, operator)
		require.NoError(t, err)
		require.Equal(t, Cancellation{}, again)
		got, err := l.Status(t.Context(), p)
		require.NoError(t, err)
		require.Positive(t, got.ChangedFor)
		got.ChangedFor = 0
		require.Equal(t, Counts{Promotion: p, State: rules.GroupCancelled, PayoutCounts: PayoutCounts{Accepted: 1202, Paid: 1, Unknown: 1, Cancelled: 1200}, Dead: 1}, got)
	})
}

func TestPayNowIsFoundByTheFeederAfterACrash(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		r := record(1, 2)
		a, err := l.acceptOne(t.Context(), r, true)
		require.NoError(t, err)
		require.Equal(t, rules.CallNow, a.Next)
		over := func() int {
			rows, err := l.FeedOverdue(t.Context(), r.OfPromotion(), 30*time.Second, 10)
			require.NoError(t, err)
			return len(rows)
		}
		require.Zero(t, over())
		h.advance(20 * time.Second)
		require.Zero(t, over(), "the lease and the grace, 38s, are not over")
		h.advance(20 * time.Second)
		require.Equal(t, 1, over())
	})
}

func TestInvalidRecordsAreRefused(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		for name, change := range map[string]func(*payouts.Record){
			"negative target":  func(r *payouts.Record) { r.Target = -1 },
			"zero promotion":   func(r *payouts.Record) { r.Promotion = 0 },
			"lower-case type":  func(r *payouts.Record) { r.Type = "point" },
			"NUL in the type":  func(r *payouts.Record) { r.Type = "PO\x00INT" },
			"no payload":       func(r *payouts.Record) { r.Payload = nil },
			"oversize payload": func(r *payouts.Record) { r.Payload = make([]byte, payouts.MaxPayloadBytes+1) },
			"oversize key":     func(r *payouts.Record) { r.RecordKey = make([]byte, 64<<10+1) },
		} {
			r := record(1, 2)
			change(&r)
			_, err := l.acceptOne(t.Context(), r, false)
			require.ErrorIs(t, err, rules.ErrInvalid, name)
			_, err = l.Begin(t.Context(), r)
			require.ErrorIs(t, err, rules.ErrInvalid, name)
		}
		weird := record(1, 3)
		weird.Origin, weird.RecordKey, weird.Headers = "a\x00\xffb", []byte{0, 255}, map[string]string{"\x00\xff": "\x00"}
		require.Equal(t, rules.Enqueue, mustAccept(t, l, weird).Next, "what only describes is made storable")
		big := record(1, 4)
		big.Payload = make([]byte, payouts.MaxPayloadBytes)
		mustAccept(t, l, big)
		require.Len(t, mustBegin(t, l, big).Request, payouts.MaxPayloadBytes)

		_, err := l.Settle(t.Context(), payouts.CallResult{Key: key(1, 99), CallResult: rules.CallResult{Epoch: 1, Outcome: rules.Done}})
		require.ErrorIs(t, err, ErrNotFound)
		_, err = l.Settle(t.Context(), payouts.CallResult{Key: key(1, 3), CallResult: rules.CallResult{Epoch: 0, Outcome: rules.Done}})
		require.ErrorIs(t, err, rules.ErrInvalid)
		_, err = l.Explain(t.Context(), key(1, 99))
		require.ErrorIs(t, err, ErrNotFound)
		_, err = l.Status(t.Context(), payouts.Promotion{Type: "POINT", ID: 99})
		require.ErrorIs(t, err, ErrNotFound)
	})
}

func TestMigrateByManyAtOnce(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		errs := make(chan error, 6)
		for range cap(errs) {
			go func() {
				cfg, opts := h.config()
				l, err := Open(context.Background(), cfg, opts, nil)
				if err == nil {
					err = errors.Join(l.Migrate(context.Background()), l.Migrate(context.Background()), l.Close(), l.Close())
				}
				errs <- err
			}()
		}
		for range cap(errs) {
			require.NoError(t, <-errs)
		}
		l := h.open(t)
		mustAccept(t, l, record(1, 2))
	})
}

// Open does not wait when only an operator can fix the reason.
func TestOpenReportsPermanentErrors(t *testing.T) {
	t.Parallel()
	for code, wait := range map[string]bool{"28P01": false, "28000": false, "3D000": false, "42501": false, "57P03": true, "53300": true} {
		cfg, opts := (&testDB{dsn: "postgres://u:secret@" + sqldbtest.Refusing(t, code) + "/db?sslmode=disable"}).config()
		_, err := Open(t.Context(), cfg, opts, nil)
		require.Error(t, err, code)
		require.Equal(t, wait, errors.Is(err, ErrUnavailable), "%s: %v", code, err)
		require.ErrorContains(t, err, "postgres at 127.0.0.1:")
		require.NotContains(t, err.Error(), "secret")
	}
	file := filepath.Join(t.TempDir(), "ledger.db")
	require.NoError(t, os.WriteFile(file, bytes.Repeat([]byte("no database "), 1000), 0o600))
	cfg, opts := (&testDB{dsn: "sqlite:" + file}).config()
	_, err := Open(t.Context(), cfg, opts, nil)
	require.ErrorContains(t, err, "sqlite at "+file)
	require.NotErrorIs(t, err, ErrUnavailable)
}

// PgBouncer refuses other parameters in the startup message, unless it is configured to ignore
// them.
func TestAPoolerTakesOurSessions(t *testing.T) {
	t.Parallel()
	pool, err := new(postgres).newPool(t.Context(), setting.NewSecret("postgres://u@127.0.0.1:1/db"), 4, nil, "SET jit = off")
	require.NoError(t, err)
	defer pool.Close()
	for parameter := range pool.Config().ConnConfig.RuntimeParams {
		require.Contains(t, []string{"application_name", "timezone", "client_encoding", "datestyle", "standard_conforming_strings"}, parameter)
	}
}

func TestOpenNamesTheHostThatIsAbsent(t *testing.T) {
	t.Parallel()
	cfg, opts := (&testDB{dsn: "postgres://u:secret@127.0.0.1:1/db?connect_timeout=2"}).config()
	_, err := Open(t.Context(), cfg, opts, nil)
	require.ErrorIs(t, err, ErrUnavailable)
	require.ErrorContains(t, err, "127.0.0.1:1")
	require.NotContains(t, err.Error(), "secret")
	cfg.BatchSize, cfg.Connections = 0, 1
	_, err = Open(t.Context(), cfg, opts, nil)
	require.ErrorContains(t, err, "batch_size: must be from 1 to 2000, got 0")
	require.ErrorContains(t, err, "connections: must be >= 4, got 1")
}

// relayed publishes all messages of a kind and returns them.
func relayed(t testing.TB, l *Ledger, kind OutboxKind) []OutboxMessage {
	t.Helper()
	var all []OutboxMessage
	for {
		n, err := l.Relay(t.Context(), kind, 100, func(_ context.Context, ms []OutboxMessage) error {
			all = append(all, ms...)
			return nil
		})
		require.NoError(t, err)
		if n == 0 {
			return all
		}
	}
}
