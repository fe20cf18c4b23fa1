package once_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// fewest is a limit of one call in a thousand seconds, which only the test's clock reaches.
const fewest = 0.001

func state(t *testing.T, p *invoices, i invoice) rules.State {
	t.Helper()
	s, err := p.effects.State(t.Context(), i.key())
	require.NoError(t, err)
	return s.State
}

// An effect that waits for a token has no lease.
func TestATokenComesBeforeTheLease(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, func(_ *once.Kind[invoice], c *once.KindConfig) { c.Limits.PerSecond = fewest })
		w.Start(p)
		all := []invoice{{Customer: "acme", Number: "1"}, {Customer: "acme", Number: "2"}, {Customer: "acme", Number: "3"}}
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		states := func() (count map[rules.State]int) {
			count = map[rules.State]int{}
			for _, i := range all {
				count[state(t, p, i)]++
			}
			return count
		}
		for n := 1; n <= len(all); n++ {
			require.Eventually(t, func() bool { return states()[rules.Success] == n && (p.effects.Limited() || n == len(all)) }, time.Minute, 5*time.Millisecond)
			require.Equal(t, len(all)-n, states()[rules.Pending], "%v", states())
			w.Turn(1000 * time.Second)
		}
	})
}

func TestAnOperatorChangesALimitWhileInstancesRun(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, func(_ *once.Kind[invoice], c *once.KindConfig) { c.Limits.InFlight = 8 })
		w.Start(p)
		o := operator{t, w}
		limit := func(more ...string) operate.Input { return input("", more...) }
		_, err := p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		require.Equal(t, "limits of the kind: 8 in flight (settings)", o.must("once status", input("")).Lines[1])

		a := o.must("once limit", limit("per-second", "0.001"))
		require.Equal(t, "invoice  limits: 0.001/s (operator), 8 in flight (settings)", a.Lines[0])
		require.Equal(t, []string{"limit", "me", "ticket 4711", "per_second: settings to 0.001; in_flight: settings to settings"}, a.Tables[0].Rows[0][1:])
		two, three := invoice{Customer: "acme", Number: "2"}, invoice{Customer: "acme", Number: "3"}
		_, err = p.effects.Enqueue(t.Context(), two, three)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			return p.effects.Limited() && state(t, p, two) == rules.Success != (state(t, p, three) == rules.Success)
		}, time.Minute, 5*time.Millisecond)
		require.Equal(t, "limits of the kind: 0.001/s (operator), 8 in flight (settings)", o.must("once status", input("")).Lines[1])
		require.Contains(t, o.see("effects", "kinds", nil), "0.001/s (operator), 8 in flight (settings)")
		require.Contains(t, o.see("effects/group", "group", input("")), "0.001/s (operator), 8 in flight (settings)")

		o.must("once limit", limit("settings", "true"))
		oncetest.Settled(t, p.effects, two.key())
		oncetest.Settled(t, p.effects, three.key())

		for in, problem := range map[string]operate.Input{
			"give --per-second, --in-flight or --settings":                                     limit(),
			"--per-second must be 0 (no limit), or a number from 0.001 to 1000000, got \"-1\"": limit("per-second", "-1"),
			"--in-flight must be 0 (no limit), or a whole number, got \"1.5\"":                 limit("in-flight", "1.5"),
			"neither this program nor the ledger has the kind \"nothing\"":                     limit("kind", "nothing", "in-flight", "1"),
		} {
			_, err := o.ask("once limit", problem)
			require.ErrorContains(t, err, in)
		}
	})
}

// crowd is a far side that counts the requests that run. It holds the first ones until the test ends, also when
// their callers are gone.
type crowd struct {
	hold  atomic.Bool
	ended chan struct{}

	mu                    sync.Mutex
	running, most, passed int
}

func (c *crowd) ServeHTTP(http.ResponseWriter, *http.Request) {
	held := c.hold.Load()
	c.mu.Lock()
	c.running++
	c.most = max(c.most, c.running)
	c.mu.Unlock()
	if held {
		<-c.ended
	} else {
		<-time.After(10 * time.Millisecond) // so that those meet which may run at once
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	if !held {
		c.passed++
	}
}

func (c *crowd) counts() (running, most, passed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.running, c.most, c.passed
}

// crowded calls the API in one minute at most, so that no lease ends during the test.
func crowded(api string, concurrency int) func(*once.Kind[invoice], *once.KindConfig) {
	return func(k *once.Kind[invoice], c *once.KindConfig) {
		remote(api)(k, c)
		c.CallTimeout, c.LeaseMargin, c.Concurrency, c.Limits.InFlight = time.Minute, time.Minute, concurrency, 4
	}
}

// Instances in processes of their own share the limit. The calls of one that is killed count until its leases end.
func TestCallsOfAKilledInstanceCount(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		far := &crowd{ended: make(chan struct{})}
		far.hold.Store(true)
		api := httptest.NewServer(far)
		t.Cleanup(func() { close(far.ended); api.Close() })
		var mayCall atomic.Bool
		ready := func(change func(*once.Kind[invoice], *once.KindConfig)) func(*once.Kind[invoice], *once.KindConfig) {
			return func(k *once.Kind[invoice], c *once.KindConfig) {
				change(k, c)
				k.Gate = gate(mayCall.Load)
			}
		}
		w, other := oncetest.On(t, dsn), oncetest.On(t, dsn)
		p, q := newInvoices(w.Once, once.ByKey, ready(crowded(api.URL, 16))), newInvoices(other.Once, once.ByKey, ready(crowded(api.URL, 16)))
		w.Start(p)
		other.Start(q)
		var all []invoice
		for i := range 40 {
			all = append(all, invoice{Customer: fmt.Sprint("customer-", i%5), Number: fmt.Sprint(i)})
		}
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)

		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), workerDSN+"="+dsn, workerAPI+"="+api.URL, workerRepeat+"="+once.ByKey.String(), workerCrowded+"=3")
		cmd.Stderr = t.Output()
		_, err = cmd.StdinPipe() // closed when this process ends
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _, _ = cmd.Process.Kill(), cmd.Wait() })
		require.Eventually(t, func() bool { running, _, _ := far.counts(); return running == 3 }, time.Minute, 5*time.Millisecond)
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()

		far.hold.Store(false)
		mayCall.Store(true)
		require.Eventually(t, func() bool { _, _, passed := far.counts(); return passed == 37 }, time.Minute, 5*time.Millisecond)
		_, most, _ := far.counts()
		require.Equal(t, 4, most, "three of the killed instance, and one")
		status := operator{t, w}.must("once limit", input("", "in-flight", "4")).Value.(ledger.LimitStatus)
		require.LessOrEqual(t, status.Slots, 4)
		require.GreaterOrEqual(t, status.Slots, 3, "those of the killed instance")

		left := func() (n int) {
			for _, i := range all {
				if state(t, p, i) != rules.Success {
					n++
				}
			}
			return n
		}
		require.Eventually(t, func() bool { return left() == 3 }, time.Minute, 5*time.Millisecond, "the answers are stored before leases end")
		lease := 2 * time.Minute
		other.Turn(ledger.SlotLife(lease))
		w.Turn(ledger.SlotLife(lease))
		for loop.Sleep(t.Context(), 5*time.Millisecond) {
			if left() == 0 {
				break
			}
			other.Turn(time.Second) // retries are due
			w.Turn(time.Second)
		}
		_, _, passed := far.counts()
		require.Equal(t, 40, passed)
	})
}

// Several instances in one process never exceed the limit, also while one stops whose calls have not ended.
func TestInstancesShareTheCallsInFlight(t *testing.T) {
	t.Parallel()
	sqldbtest.Each(t, func(t *testing.T, dsn string) {
		far := &crowd{ended: make(chan struct{})}
		far.hold.Store(true)
		api := httptest.NewServer(far)
		release := sync.OnceFunc(func() { close(far.ended) })
		t.Cleanup(func() { release(); api.Close() })
		var all []invoice
		for i := range 60 {
			all = append(all, invoice{Customer: fmt.Sprint("customer-", i%5), Number: fmt.Sprint(i)})
		}
		w := oncetest.On(t, dsn)
		p := newInvoices(w.Once, once.ByKey, crowded(api.URL, 16))
		stop := w.StartUntil(p)
		_, err := p.effects.Enqueue(t.Context(), all...)
		require.NoError(t, err)
		require.Eventually(t, func() bool { running, _, _ := far.counts(); return running == 4 }, time.Minute, 5*time.Millisecond)
		stopped := make(chan error, 1)
		go func() { stopped <- stop() }()
		require.Eventually(t, func() bool { return !p.effects.Claims() }, time.Minute, 5*time.Millisecond)
		far.hold.Store(false)

		var others []*oncetest.World
		var last *invoices
		for range 2 {
			other := oncetest.On(t, dsn)
			q := newInvoices(other.Once, once.ByKey, crowded(api.URL, 16))
			other.Start(q)
			others, last = append(others, other), q
			require.Eventually(t, q.effects.Limited, time.Minute, 5*time.Millisecond)
		}
		for range 20 { // they ask again, in vain
			for _, other := range others {
				other.Turn(time.Second)
			}
			loop.Sleep(t.Context(), 10*time.Millisecond)
		}
		running, most, passed := far.counts()
		require.Equal(t, []int{4, 4, 0}, []int{running, most, passed})
		release()
		require.NoError(t, <-stopped)
		for _, i := range all {
			require.Equal(t, rules.Success, oncetest.Settled(t, last.effects, i.key()).State)
		}
		_, most, passed = far.counts()
		require.Equal(t, 4, most)
		require.Equal(t, 56, passed)
	})
}
