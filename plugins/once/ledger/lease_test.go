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

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// leaseOp is what a worker does with one effect.
type leaseOp struct {
	what    string // claim, settle, expire
	epoch   int64  // settle
	outcome rules.Outcome
	late    bool // claim: a lease may have expired meanwhile
}

type leaseAnswer struct {
	epoch int64 // claim: 0 without a lease
	state rules.State
	stale bool // settle
}

// leaseState is the lease in a sequential model.
type leaseState struct {
	state rules.State
	epoch int64
	live  bool // SENDING, and the lease has not expired
	maybe bool
}

// leaseModel accepts the right results of sequential calls. There is at most one holder, each claim
// increments the epoch, and only the epoch of the holder settles.
func leaseModel() porcupine.Model {
	model := porcupine.NondeterministicModel{
		Init:  func() []any { return []any{leaseState{state: rules.Pending}} },
		Equal: func(a, b any) bool { return a == b },
		Step: func(state, input, output any) (next []any) {
			for _, s := range state.(leaseState).after(input.(leaseOp), output.(leaseAnswer)) {
				next = append(next, s)
			}
			return next
		},
	}
	return model.ToModel()
}

// after returns the possible states after op with this answer; none when the answer is wrong.
func (s leaseState) after(op leaseOp, got leaseAnswer) []leaseState {
	switch op.what {
	case "claim":
		if got.epoch == 0 { // a claim waits for nobody, so it may leave out what it could have
			return []leaseState{s}
		}
		if s.live || s.state.Settled() || got.epoch != s.epoch+1 {
			return nil
		}
		s.maybe = s.maybe || s.state == rules.Sending
		s.state, s.epoch, s.live = rules.Sending, got.epoch, true
		if op.late {
			// The clock is read before the commit. If the lease expires in between, others may
			// still see the old row, and the lease is over when the commit is visible.
			over := s
			over.live = false
			return []leaseState{s, over}
		}
	case "settle":
		if op.epoch != s.epoch {
			if !got.stale {
				return nil
			}
			break
		}
		if s.state == rules.Sending {
			s.maybe, s.live = s.maybe || op.outcome == rules.Unclear, false
			switch {
			case op.outcome == rules.Done:
				s.state = rules.Success
			case s.maybe:
				s.state = rules.Ambiguous
			default:
				s.state = rules.Errored
			}
		}
		if got.stale || got.state != s.state {
			return nil
		}
	case "expire":
		s.live = false
	}
	return []leaseState{s}
}

// Workers of two instances claim, settle and outlive the lease of one effect at the same time. Porcupine checks that
// their results fit one sequential order: there is at most one holder at a time, epochs grow by one, and only the
// epoch of the holder settles.
func TestLeaseIsLinearizable(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t), h.open(t, as("b"))}
		for _, l := range ledgers {
			require.NoError(t, l.Register(t.Context(), Kind{Name: "invoice", Policy: rules.Policy{Repeat: rules.ByKey, MaxAttempts: 1e6, MaxLookups: 1e6, MaxReleased: 1e6,
				Lease: time.Hour, KeyTTL: 10_000 * time.Hour, Delay: func(int) time.Duration { return 0 }}}))
		}
		seed := uint64(time.Now().UnixNano())
		histories := 100
		if testing.Short() {
			histories = 20
		}
		for n := range histories {
			k := key("acme", n)
			mustAccept(t, ledgers[0], record("acme", n))
			var mu sync.Mutex
			var history []porcupine.Operation
			var all sync.WaitGroup
			start := time.Now()
			for worker := range 5 {
				all.Go(func() {
					w := leaseWorker{l: ledgers[worker%2], h: h, key: k, rnd: rand.New(rand.NewPCG(seed+uint64(n), uint64(worker)))}
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
			h.advance(2 * time.Hour)
			for _, c := range claimAll(t, ledgers[0], "invoice") {
				require.Equal(t, k, c.Key)
				mustSettle(t, ledgers[0], end(c, rules.Done))
			}
			require.Equal(t, rules.Success, mustExplain(t, ledgers[0], k).Row.State)
		}
	})
}

// markLate marks the claims that overlap with an expiry.
func markLate(history []porcupine.Operation) {
	for i, claim := range history {
		op := claim.Input.(leaseOp)
		op.late = slices.ContainsFunc(history, func(o porcupine.Operation) bool {
			return o.Input.(leaseOp).what == "expire" && o.Call <= claim.Return && claim.Call <= o.Return
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
	key    Key
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
	default:
		return leaseOp{what: "claim"}
	}
}

func (w *leaseWorker) do(ctx context.Context, op leaseOp) (a leaseAnswer, err error) {
	switch op.what {
	case "claim":
		claimed, err := w.l.Claim(ctx, w.key.Kind, int(laneOf(w.key.Group)), 1)
		if len(claimed) > 0 {
			a.epoch = claimed[0].Epoch
			w.epochs = append(w.epochs, a.epoch)
		}
		return a, err
	case "settle":
		e := End{Key: w.key, CallResult: rules.CallResult{Epoch: op.epoch, Outcome: op.outcome, Receipt: "x"}}
		results, err := w.l.Settle(ctx, []End{e})
		if err != nil {
			return a, err
		}
		return leaseAnswer{state: results[0].State, stale: results[0].Stale}, results[0].Err
	default:
		w.h.advance(time.Hour + time.Second)
		return a, nil
	}
}
