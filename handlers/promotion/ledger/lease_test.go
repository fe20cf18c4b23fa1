package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// leaseOp is the call of a worker for one payout.
type leaseOp struct {
	what    string // begin, settle, expire, cancel, sweep
	epoch   int64  // settle
	outcome rules.Outcome
	late    bool // begin: a lease may have expired meanwhile
}

// leaseAnswer is the result of the call.
type leaseAnswer struct {
	next      rules.Next
	why       string
	epoch     int64 // begin
	state     rules.State
	stale     bool // settle
	cancelled int64
}

// leaseState is the lease in a sequential model.
type leaseState struct {
	state     rules.State
	epoch     int64
	live      bool // SENDING, and the lease has not expired
	maybe     bool
	cancelled bool
}

// leaseModel accepts the right results of sequential calls. There is at most one holder, each begin
// increments the epoch, and only the epoch of the holder settles.
func leaseModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init:  func() []any { return []any{leaseState{state: rules.Pending}} },
		Equal: func(a, b any) bool { return a == b },
		Step: func(state, input, output any) []any {
			var next []any
			for _, s := range state.(leaseState).after(input.(leaseOp), output.(leaseAnswer)) {
				next = append(next, s)
			}
			return next
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v: %+v", input, output) },
		DescribeState:     func(state any) string { return fmt.Sprintf("%+v", state) },
	}
	return model.ToModel()
}

// after returns the possible states after op with this result; none when the result is wrong.
func (s leaseState) after(op leaseOp, got leaseAnswer) []leaseState {
	right := true
	switch op.what {
	case "begin":
		right, s = s.begin(got)
		if right && s.live && op.late {
			// The clock is read before the commit. If the lease expires in between, others may
			// still see the old row, and the lease is over when the commit is visible.
			over := s
			over.live = false
			return []leaseState{s, over}
		}
	case "settle":
		right, s = s.settle(op, got)
	case "expire":
		s.live = false
	case "cancel":
		s.cancelled = true
	case "sweep":
		if got.cancelled < 0 {
			break // not cancelled, so that nothing was swept
		}
		cancellable := !s.maybe && (s.state == rules.Pending || s.state == rules.Errored)
		if cancellable {
			s.state = rules.Cancelled
		}
		right = got.cancelled == 1 == cancellable
	}
	if !right {
		return nil
	}
	return []leaseState{s}
}

func (s leaseState) begin(got leaseAnswer) (bool, leaseState) {
	switch {
	case s.state.Settled():
		return got.why == "settled" && got.state == s.state, s
	case s.live:
		return got.why == "leased", s
	case s.cancelled && !s.maybe && s.state != rules.Sending:
		s.state = rules.Cancelled
		return got.why == "cancelled", s
	case got.why == "not_due":
		return s.state == rules.Errored || s.state == rules.Ambiguous, s
	}
	s.maybe = s.maybe || s.state == rules.Sending
	s.state, s.live = rules.Sending, true
	s.epoch++
	right := rules.Send
	if s.cancelled {
		right = rules.Lookup
	}
	return got.next == right && got.epoch == s.epoch, s
}

func (s leaseState) settle(op leaseOp, got leaseAnswer) (bool, leaseState) {
	if op.epoch != s.epoch {
		return got.stale, s
	}
	if s.state == rules.Sending {
		s.maybe = s.maybe || op.outcome == rules.Unclear
		s.live = false
		switch {
		case op.outcome == rules.Done:
			s.state = rules.Success
		case s.maybe:
			s.state = rules.Ambiguous
		default:
			s.state = rules.Errored
		}
	}
	return !got.stale && got.state == s.state, s
}

// Workers of two instances begin, settle, cancel and outlive the lease of one payout at the same
// time. Porcupine checks that their results fit one sequential order. There is at most one holder
// at a time, epochs grow by one, and only the epoch of the holder settles.
//
// The test fails with each of these mistakes: a settle that does not compare the epoch, or a begin
// that ignores a live lease. Others are a begin without a new epoch, and a send for a cancelled
// promotion. On PostgreSQL it also fails with a commit that does not compare the version.
func TestLeaseIsLinearizable(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		tunes := func(c *Config, o *Options) {
			c.MaxRetries, c.IdempotencyTTL = 1000, 10_000*time.Hour
			c.Retry.First, c.Retry.Max = time.Microsecond, time.Microsecond
			o.Lease = time.Hour
		}
		ledgers := []*Ledger{h.open(t, tunes), h.open(t, tunes, as("b"))}
		seed := uint64(time.Now().UnixNano())
		histories := 150
		if testing.Short() {
			histories = 30
		}
		for n := range histories {
			promotion := int64(n + 1)
			mustAccept(t, ledgers[0], record(promotion, 1))
			var mu sync.Mutex
			var history []porcupine.Operation
			var all sync.WaitGroup
			start := time.Now()
			for worker := range 5 {
				all.Go(func() {
					w := leaseWorker{l: ledgers[worker%2], h: h, record: record(promotion, 1), rnd: rand.New(rand.NewPCG(seed+uint64(n), uint64(worker)))}
					for range 8 {
						op := w.choose()
						call := time.Since(start).Nanoseconds()
						answer, err := w.do(t.Context(), op)
						end := time.Since(start).Nanoseconds()
						if err != nil {
							t.Errorf("seed %d, history %d: %+v: %v", seed, n, op, err)
							return
						}
						mu.Lock()
						history = append(history, porcupine.Operation{ClientId: worker, Input: op, Call: call, Output: answer, Return: end})
						mu.Unlock()
					}
				})
			}
			all.Wait()
			markLate(history)
			if porcupine.CheckOperationsTimeout(leaseModel(), history, time.Minute) != porcupine.Ok {
				require.Fail(t, "not linearizable", "seed %d, history %d\n%s", seed, n, describe(history))
			}
		}
	})
}

// markLate marks the begins that overlap with an expiry.
func markLate(history []porcupine.Operation) {
	for i, begin := range history {
		op := begin.Input.(leaseOp)
		op.late = slices.ContainsFunc(history, func(o porcupine.Operation) bool {
			return o.Input.(leaseOp).what == "expire" && o.Call <= begin.Return && begin.Call <= o.Return
		})
		history[i].Input = op
	}
}

func describe(history []porcupine.Operation) string {
	slices.SortFunc(history, func(a, b porcupine.Operation) int { return int(a.Call - b.Call) })
	var b strings.Builder
	for _, o := range history {
		fmt.Fprintf(&b, "%d: %9d–%9d %+v → %+v\n", o.ClientId, o.Call, o.Return, o.Input, o.Output)
	}
	return b.String()
}

// leaseWorker also uses earlier epochs.
type leaseWorker struct {
	l      *Ledger
	h      *testDB
	record payouts.Record
	rnd    *rand.Rand
	epochs []int64
}

func (w *leaseWorker) choose() leaseOp {
	switch n := w.rnd.IntN(100); {
	case n < 40 && len(w.epochs) > 0:
		last := len(w.epochs) - 1
		if w.rnd.IntN(3) == 0 {
			last = w.rnd.IntN(len(w.epochs))
		}
		outcomes := []rules.Outcome{rules.Throttled, rules.Throttled, rules.Unclear, rules.Done}
		return leaseOp{what: "settle", epoch: w.epochs[last], outcome: outcomes[w.rnd.IntN(len(outcomes))]}
	case n >= 40 && n < 60:
		return leaseOp{what: "expire"}
	case n == 60:
		return leaseOp{what: "cancel"}
	case n == 61:
		return leaseOp{what: "sweep"}
	default:
		return leaseOp{what: "begin"}
	}
}

func (w *leaseWorker) do(ctx context.Context, op leaseOp) (leaseAnswer, error) {
	switch op.what {
	case "begin":
		b, err := w.l.Begin(ctx, w.record)
		if b.Epoch > 0 {
			w.epochs = append(w.epochs, b.Epoch)
		}
		return leaseAnswer{next: b.Next, why: b.Why, epoch: b.Epoch, state: b.State}, err
	case "settle":
		s, err := w.l.Settle(ctx, payouts.CallResult{Key: w.record.Key, CallResult: rules.CallResult{Epoch: op.epoch, Outcome: op.outcome, Receipt: "tx"}})
		return leaseAnswer{next: s.Next, state: s.State, stale: s.Stale}, err
	case "cancel": // its line in time
		return leaseAnswer{}, w.l.setPromotionState(ctx, "cancel", w.record.OfPromotion(), rules.GroupCancelled, operator)
	case "sweep": // and what it does to rows, once the line is drawn
		state, err := w.promotionState(ctx)
		if err != nil || state != rules.GroupCancelled {
			return leaseAnswer{cancelled: -1}, err
		}
		c, err := w.l.Cancel(ctx, w.record.OfPromotion(), operator)
		return leaseAnswer{cancelled: c.Cancelled}, err
	default:
		w.h.advance(w.l.opts.Lease + time.Second)
		return leaseAnswer{}, nil
	}
}

func (w *leaseWorker) promotionState(ctx context.Context) (rules.GroupState, error) {
	c, err := w.l.Status(ctx, w.record.OfPromotion())
	return c.State, err
}
