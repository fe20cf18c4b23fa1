package once_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// turnstile is a once.Gate that lets as many calls begin as it was told.
type turnstile struct {
	mu             sync.Mutex
	rights, called int
	most           int // calls that had no right
}

func (*turnstile) Ready() bool { return true }

func (g *turnstile) Take(n int) (may int, wait time.Duration) {
	g.mu.Lock()
	defer g.mu.Unlock()
	may = min(n, g.rights)
	g.rights -= may
	g.called -= may
	return may, time.Millisecond
}

func (g *turnstile) note() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.called++
	g.most = max(g.most, g.called)
}

func (g *turnstile) give(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rights += n
}

func (g *turnstile) left() (rights, most int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.rights, g.most
}

// Rights come before claims: an effect with a lease never waits for one, and no call begins without one.
func TestNothingIsClaimedThatTheGateDoesNotLetBegin(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		w, g := oncetest.On(t, dsn), &turnstile{}
		p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) {
			call := k.Call
			k.Gate, k.Call = g, func(ctx context.Context, a once.Attempt[invoice]) once.Answer {
				g.note()
				return call(ctx, a)
			}
		})
		w.Start(p)
		var all []invoice
		for i := range 20 {
			all = append(all, invoice{Customer: "acme", Number: fmt.Sprint(i)})
		}
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		require.Eventually(t, p.effects.Limited, time.Minute, time.Millisecond)
		in := func(want rules.State) (n int) {
			for _, i := range all {
				if state(t, p, i) == want {
					n++
				}
			}
			return n
		}
		require.Equal(t, 20, in(rules.Pending), "none has a lease")

		g.give(7)
		require.Eventually(t, func() bool { rights, _ := g.left(); return rights == 0 && in(rules.Success) == 7 }, time.Minute, 5*time.Millisecond)
		require.Equal(t, 13, in(rules.Pending))
		g.give(1000)
		require.Eventually(t, func() bool { return in(rules.Success) == 20 }, time.Minute, 5*time.Millisecond)
		_, most := g.left()
		require.LessOrEqual(t, most, 0)
	})
}
