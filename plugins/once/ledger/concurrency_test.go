package ledger

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

type ctxt = context.Context

// Two instances claim, settle twice and late, pause, cancel other groups, replay and sweep at the same
// time. No two calls for an effect are allowed at once, nothing is stranded, and no transaction is lost
// to a deadlock. Leases are long, so only answers end them.
func TestManyWorkersCallEachEffectAlone(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t), h.open(t, as("b"))}
		for _, l := range ledgers {
			require.NoError(t, l.Register(t.Context(), Kind{Name: "invoice", Policy: rules.Policy{Repeat: rules.ByKey, MaxAttempts: 1e6, MaxLookups: 1e6, MaxReleased: 1e6,
				Lease: time.Hour, KeyTTL: 100 * time.Hour, Delay: func(int) time.Duration { return 0 }}}))
		}
		const groups, each = 4, 60
		for g := range groups {
			mustAccept(t, ledgers[0], records(fmt.Sprint("g", g), each)...)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		var mu sync.Mutex
		busy, done := map[Key]bool{}, map[Key]bool{}
		finished := func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(done) == groups*each
		}
		var settled atomic.Int64
		var work, steering errgroup.Group
		for w := range 8 {
			work.Go(func() error {
				l, rnd := ledgers[w%2], rand.New(rand.NewPCG(uint64(w), 1))
				for !finished() {
					if ctx.Err() != nil {
						return ctx.Err()
					}
					claimed, err := l.Claim(ctx, "invoice", int(laneOf(fmt.Sprint("g", rnd.IntN(groups)))), 1+rnd.IntN(7))
					if err != nil {
						return err
					}
					mu.Lock()
					for _, c := range claimed {
						if busy[c.Key] || done[c.Key] {
							mu.Unlock()
							return fmt.Errorf("%s has two calls at once, or was done", c.Key.text())
						}
						busy[c.Key] = true
					}
					mu.Unlock()
					var ends []End
					mu.Lock()
					for _, c := range claimed {
						o := []rules.Outcome{rules.Done, rules.NotSent, rules.Throttled, rules.Unclear, rules.Interrupted}[rnd.IntN(5)]
						if busy[c.Key] = false; o == rules.Done {
							done[c.Key] = true
						}
						ends = append(ends, end(c, o))
					}
					mu.Unlock()
					for range 2 {
						results, err := ledgers[rnd.IntN(2)].Settle(ctx, ends)
						if err != nil {
							return err
						}
						for _, r := range results {
							if r.Err != nil {
								return r.Err
							}
							settled.Add(1)
						}
					}
				}
				return nil
			})
		}
		var stop atomic.Bool
		for w := range 2 {
			steering.Go(func() error {
				rnd := rand.New(rand.NewPCG(uint64(w), 2))
				for !stop.Load() && ctx.Err() == nil {
					g := Group{"invoice", fmt.Sprint("g", rnd.IntN(groups))}
					l := ledgers[w]
					if err := errors.Join(l.Pause(ctx, g, operator), l.Resume(ctx, g, operator), l.Sweep(ctx)); err != nil {
						return err
					}
					k := Key{g.Kind, g.Name, fmt.Sprint("n", rnd.IntN(each))}
					var refused *RefusedError
					if err := l.Replay(ctx, k, operator); err != nil && !errors.As(err, &refused) {
						return err
					}
				}
				return nil
			})
		}
		err := work.Wait()
		stop.Store(true)
		require.NoError(t, err)
		require.NoError(t, steering.Wait())
		for g := range groups {
			for range 2 {
				s := mustStatus(t, ledgers[0], Group{"invoice", fmt.Sprint("g", g)})
				require.Equal(t, Totals{Accepted: each, Done: each}, s.Totals)
				require.NoError(t, ledgers[1].Sweep(t.Context()))
			}
		}
		require.Zero(t, ledgers[0].countDue(t, "TRUE"))
	})
}

// After a pause has returned, no claim takes a lease of the group. Claims of others go on.
func TestAPauseIsSeenWhileClaimsNeverStop(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t), h.open(t, as("b"))}
		mustAccept(t, ledgers[0], records("acme", 3000)...)
		lane := int(laneOf("acme"))
		var paused atomic.Bool
		var leased atomic.Int64
		var g errgroup.Group
		for w := range 6 {
			g.Go(func() error {
				for {
					after := paused.Load()
					claimed, err := ledgers[w%2].Claim(t.Context(), "invoice", lane, 5)
					if err != nil {
						return err
					}
					if after && len(claimed) > 0 {
						return errors.New("leased after the pause had returned")
					}
					if leased.Add(int64(len(claimed))); after {
						return nil
					}
				}
			})
		}
		require.Eventually(t, func() bool { return leased.Load() > 50 }, 2*time.Minute, time.Millisecond)
		require.NoError(t, ledgers[0].Pause(t.Context(), acme, operator))
		paused.Store(true)
		require.NoError(t, g.Wait())
		require.Less(t, leased.Load(), int64(3000), "there was something left to claim")
	})
}

// Callers of one kind with the same new keys: one is fresh, and nobody is lost to a deadlock.
func TestManyAcceptTheSameKeys(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, h *testDB) {
		ledgers := []*Ledger{h.open(t), h.open(t, as("b"))}
		var fresh atomic.Int64
		var g errgroup.Group
		for w := range 8 {
			g.Go(func() error {
				batch := records("acme", 50)
				rand.Shuffle(len(batch), func(i, j int) { batch[i], batch[j] = batch[j], batch[i] })
				results, err := ledgers[w%2].Accept(t.Context(), batch)
				for _, r := range results {
					if r.Accepted == Fresh {
						fresh.Add(1)
					} else if r.Accepted != Known {
						return fmt.Errorf("%v: %w", r.Accepted, r.Err)
					}
				}
				return err
			})
		}
		require.NoError(t, g.Wait())
		require.Equal(t, int64(50), fresh.Load())
		require.Equal(t, int64(50), mustStatus(t, ledgers[0], acme).Accepted)
	})
}
