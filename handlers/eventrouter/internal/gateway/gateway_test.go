package gateway

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestAWatcherReceivesTheLogAndThenTheFeed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		p := r.start("", nil)
		r.steps("job", 1, 200)
		w := p.watch(r.domain, "job", "").wait("200")
		r.steps("job", 201, 203)
		w.wait("203")
		r.add(r.event("job", 204, "done"))
		got := w.ends()
		require.Equal(t, []string{"state 200", "1", "2"}, got[:3])
		require.Equal(t, []string{"203", "204", "closed done"}, got[len(got)-3:])
	})
}

func TestAnUnknownJobIsWaitedFor(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	w := p.watch(r.domain, "job", "")
	redistest.Eventually(t, "the watcher is attached", func() bool { return p.attached(r.domain, "job") == 1 })
	r.add(r.event("job", 1, "step"), r.event("job", 2, "error"))
	require.Equal(t, []string{"1", "2", "closed error"}, w.ends())
}

func (p *process) attached(name, id string) int {
	d := p.domain(name)
	d.mu.Lock()
	defer d.mu.Unlock()
	if j := d.jobs[id]; j != nil {
		return len(j.watchers)
	}
	return 0
}

// Two domains have a job with the same id.
func TestDomainsDoNotShareJobs(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	other := *r
	other.domain = r.domain + "-other"
	first, second := p.watch(r.domain, "job", ""), p.watch(other.domain, "job", "")
	for _, name := range []string{r.domain, other.domain} {
		redistest.Eventually(t, "attached", func() bool { return p.attached(name, "job") == 1 })
	}
	r.add(r.event("job", 1, "done"))
	other.add(other.event("job", 1, "step"), other.event("job", 2, "error"))
	require.Equal(t, []string{"1", "closed done"}, first.ends())
	require.Equal(t, []string{"1", "2", "closed error"}, second.ends())
}

// An event that arrives after the log was read, and before the watcher is attached, is not lost.
func TestAnEventBetweenTheLogAndTheFeedIsNotLost(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 2)
	key := jobKey{r.domain, "job"}
	for _, lost := range []bool{false, true} {
		s := p.newStream([]jobKey{key}, "")
		require.NoError(t, s.first(t.Context(), false))
		texts := r.store(r.event("job", s.watchers[0].page.top+1, "step"))
		if lost {
			p.domain(r.domain).lost() // the feed entry was trimmed
		} else {
			r.publish(texts...)
			redistest.Eventually(t, "the feed is read", func() bool {
				d := p.domain(r.domain)
				d.mu.Lock()
				defer d.mu.Unlock()
				return s.watchers[0].job.sequence.maxFromFeed == 3
			})
		}
		last := strconv.FormatInt(s.watchers[0].page.top+1, 10)
		in, out := net.Pipe()
		server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
			p.opts.Hub.Serve(w, req, s.begin)
			s.leave()
		}), ReadHeaderTimeout: time.Second}
		listener := &oneConn{conns: make(chan net.Conn, 1)}
		listener.conns <- in
		go func() { _ = server.Serve(listener) }()
		_, err := io.WriteString(out, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		require.NoError(t, out.SetReadDeadline(time.Now().Add(redistest.Patience)))
		var text strings.Builder
		for buf := make([]byte, 1024); !strings.Contains(text.String(), "id: "+last+"."); {
			n, err := out.Read(buf)
			require.NoError(t, err, "%s", text.String())
			text.Write(buf[:n])
		}
		require.NoError(t, out.Close())
		require.NoError(t, server.Close())
		redistest.Eventually(t, "the stream has ended", func() bool { return p.attached(r.domain, "job") == 0 })
	}
}

type oneConn struct{ conns chan net.Conn }

func (l *oneConn) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *oneConn) Close() error {
	close(l.conns)
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.TCPAddr{} }

func TestAHoleIsFilledFromTheLog(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 1)
	w := p.watch(r.domain, "job", "").wait("1")
	r.store(r.event("job", 2, "step")) // the feed has lost it
	r.steps("job", 3, 3)
	w.wait("3")
	r.add(r.event("job", 5, "done")) // ahead of its number
	redistest.Eventually(t, "the log is read", func() bool { return p.reads(readHole) > 3 })
	r.store(r.event("job", 4, "step"))
	require.Equal(t, []string{"state 1", "1", "2", "3", "4", "5", "closed done"}, w.ends())
	require.Zero(t, testutil.ToFloat64(p.metrics.gaps.WithLabelValues(r.domain)))
}

// TestOneReadFillsAHoleForAllWatchers shows that the work for a hole is per job.
func TestOneReadFillsAHoleForAllWatchers(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 1)
	var watches []*watch
	for range 50 {
		watches = append(watches, p.watch(r.domain, "job", ""))
	}
	for _, w := range watches {
		w.wait("1")
	}
	redistest.Eventually(t, "all are attached", func() bool { return p.attached(r.domain, "job") == len(watches) })
	r.store(r.event("job", 2, "step"))
	r.add(r.event("job", 3, "done"))
	for _, w := range watches {
		require.Equal(t, []string{"state 1", "1", "2", "3", "closed done"}, w.ends())
	}
	require.LessOrEqual(t, p.reads(readHole), 2)
}

func TestAMissingNumberIsReportedAfterGapWait(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 1)
	w := p.watch(r.domain, "job", "").wait("1")
	begin := time.Now()
	r.add(r.event("job", 4, "step"))
	w.wait("4")
	require.Greater(t, time.Since(begin), 450*time.Millisecond)
	w.mu.Lock()
	w.restarts = true
	w.mu.Unlock()
	r.steps("job", 3, 3) // late: the gap is taken back from there on
	redistest.Eventually(t, "counted", func() bool { return testutil.ToFloat64(p.metrics.late.WithLabelValues(r.domain)) == 1 })
	w.wait("3")
	r.add(r.event("job", 5, "done"))
	// The state is a latest value, so its place is not fixed.
	got := slices.DeleteFunc(w.ends(), func(s string) bool { return s == "state 4" })
	require.Equal(t, []string{"state 1", "1", "gap 2-3", "4", "gap 3-4", "3", "4", "5", "closed done"}, got)
}

func TestWithoutGapWaitAMissingNumberIsReportedAtOnce(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = 0 })
	r.steps("job", 1, 1)
	r.steps("job", 5, 5)
	w := p.watch(r.domain, "job", "").wait("5")
	r.add(r.event("job", 9, "done"))
	got := slices.DeleteFunc(w.ends(), func(s string) bool { return strings.HasPrefix(s, "state") })
	require.Equal(t, []string{"1", "gap 2-4", "5", "gap 6-8", "9", "closed done"}, got)
}

// A watcher that reconnects does not start the wait for a missing number again.
func TestReconnectsDoNotExtendGapWait(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Second })
	r.steps("job", 1, 1)
	r.steps("job", 3, 3)
	w := newWatch(t, p, p.path(r.domain, "job")+"/events")
	for begin := time.Now(); ; {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		require.ErrorIs(t, w.client.Run(ctx), context.DeadlineExceeded)
		cancel()
		if slices.Contains(w.received(), "gap 2-2") {
			return
		}
		require.Less(t, time.Since(begin), time.Minute)
	}
}

func TestTransientEventsStayBehindTheNumbersBeforeThem(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 1)
	w := p.watch(r.domain, "job", "").wait("1")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	say := func(status string) event.Event {
		e := r.event("job", 0, "token")
		e.Status = status
		return e
	}
	r.add(say("a"), say("b"))
	w.wait("token b")
	r.add(r.event("job", 3, "step"), say("c"))
	redistest.Eventually(t, "the hole is seen", func() bool { return p.reads(readHole) > 1 })
	r.add(r.event("job", 2, "step"))
	w.wait("token c")
	r.add(r.event("job", 4, "done"))
	require.Equal(t, []string{"state 1", "1", "token a", "token b", "2", "3", "token c", "4", "closed done"}, w.ends())
}

// A watcher comes from another gateway, and the feed of this one is behind.
func TestTransientEventsBeforeTheCursorAreNotRepeated(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	events := []event.Event{r.event("job", 1, "step"), r.event("job", 0, "token"), r.event("job", 2, "step"), r.event("job", 0, "token"), r.event("job", 3, "done")}
	now := strconv.FormatInt(time.Now().UnixMilli(), 10)
	for i := range events {
		events[i].Status = strconv.Itoa(i)
		events[i].StreamID = now + "-" + events[i].Status
	}
	texts := r.store(events[:4]...)
	w := newWatch(t, p, p.path(r.domain, "job")+"/events")
	w.client.LastEventID, w.at = "2", 2
	w.run()
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	r.publish(append(texts, r.store(events[4])...)...)
	require.Equal(t, []string{"state 2", "token 3", "3", "closed done"}, w.ends())
}

func TestACursorOlderThanTheLogGetsAGapAndTheState(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	r.config.LogMax = 5
	r.log = joblog.New(connect(t, r.addr), r.config, event.DefaultStages())
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 10)
	w := newWatch(t, p, p.path(r.domain, "job")+"/events")
	w.client.LastEventID, w.at = "2", 2
	w.run().wait("10")
	require.Equal(t, []string{"state 10", "gap 3-5", "state 10", "6", "7", "8", "9", "10"}, w.received())
}

func TestAnEndedJobWhoseLogHasExpired(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", func(c *Config) { c.GapWait = time.Minute })
	r.steps("job", 1, 4)
	r.add(r.event("job", 5, "error"))
	require.NoError(t, r.client.Del(t.Context(), joblog.LogKey(r.domain, "job")).Err())
	w := p.watch(r.domain, "job", "")
	require.Equal(t, []string{"state 5", "gap 1-4", "state 5", "5", "closed error"}, w.ends())
}

// A cursor can be higher than all numbers: Redis has failed over, or a client has made it up.
func TestACursorFromTheFuture(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 3)
	w := newWatch(t, p, p.path(r.domain, "job")+"/events")
	w.client.LastEventID, w.at = "5", 5
	w.run().wait("state 3")
	other := p.watch(r.domain, "job", "").wait("3") // it changes nothing for others
	r.steps("job", 4, 6)
	w.wait("6")
	other.wait("6")
	ahead := newWatch(t, p, p.path(r.domain, "job")+"/events")
	ahead.client.LastEventID, ahead.at = "99", 6
	ahead.run().wait("state 6")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 3 })
	r.add(r.event("job", 7, "done"))
	require.Equal(t, []string{"state 6", "7", "closed done"}, ahead.ends(), "the end always arrives")
	w.ends()
	other.ends()
}

func TestACursorThatIsNoNumberIsNone(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.add(r.event("job", 1, "step"), r.event("job", 2, "done"))
	for _, id := range []string{"x", "-3", "1.5", "9999999999999999999999", "a:b,c"} {
		w := newWatch(t, p, p.path(r.domain, "job")+"/events")
		w.client.LastEventID = id
		require.Equal(t, []string{"state 2", "1", "2", "closed done"}, w.run().ends(), id)
	}
}

// load adds the numbers of a job until quit, and then its end. Its workers are out of order.
func (r *redisRig) load(id string, pause time.Duration, quit <-chan struct{}) int64 {
	n := int64(1)
	for ; ; n += 2 {
		select {
		case <-quit:
			r.add(r.event(id, n, "done"))
			return n
		case <-time.After(pause):
			first, second := r.event(id, n, "step"), r.event(id, n+1, "step")
			if n%3 == 0 {
				first, second = second, first
			}
			r.add(first)
			r.add(second, second)
		}
	}
}

// underLoad runs watchers that reconnect all the time while f does something to the system. The
// checks of watch hold for each, without gaps.
func underLoad(t *testing.T, r *redisRig, watchers int, gateways func(i int) *process, f func()) {
	t.Helper()
	quit, end := make(chan struct{}), make(chan int64, 1)
	go func() { end <- r.load("job", 3*time.Millisecond, quit) }()
	var running sync.WaitGroup
	results := make([]error, watchers)
	watches := make([]*watch, watchers)
	for i := range watchers {
		watches[i] = newWatch(t, gateways(i), "")
		running.Go(func() {
			for try := 0; ; try++ {
				p := gateways(i + try)
				watches[i].client.URL = p.path(r.domain, "job") + "/events"
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(50+37*(i%7))*time.Millisecond)
				results[i] = watches[i].client.Run(ctx)
				cancel()
				if !errors.Is(results[i], context.DeadlineExceeded) {
					return
				}
			}
		})
	}
	f()
	close(quit)
	last := <-end
	running.Wait()
	for i, w := range watches {
		require.True(t, errors.Is(results[i], errClosed) || results[i] == nil, "%v", results[i])
		require.Equal(t, last, w.at)
		numbers := slices.DeleteFunc(w.received(), func(s string) bool {
			_, err := strconv.Atoi(s)
			return err != nil && !strings.HasPrefix(s, "gap")
		})
		require.Len(t, numbers, int(last), "no gaps")
	}
}

// lasts is the duration of a test under load.
const lasts = 2 * time.Second

func TestReconnectsUnderLoad(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		p := r.start("", func(c *Config) { c.GapWait = time.Minute })
		underLoad(t, r, 20, func(int) *process { return p }, func() { <-time.After(lasts) })
	})
}

func TestTwoGatewaysAndARestart(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	wait := func(c *Config) { c.GapWait = time.Minute }
	var mu sync.Mutex
	running := []*process{r.start("", wait), r.start("", wait)}
	underLoad(t, r, 10, func(i int) *process {
		mu.Lock()
		defer mu.Unlock()
		return running[i%len(running)]
	}, func() {
		<-time.After(lasts / 2)
		next := r.start("", wait)
		mu.Lock()
		old := running[0]
		running[0] = next
		mu.Unlock()
		old.stop()
		<-time.After(lasts / 2)
	})
}

func TestARedisConnectionThatIsCut(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		proxy := redistest.NewProxy(t, s.Addr)
		p := r.start(proxy.Addr(), func(c *Config) { c.GapWait = time.Minute })
		underLoad(t, r, 10, func(int) *process { return p }, func() {
			for range 8 {
				<-time.After(lasts / 10)
				proxy.Cut()
			}
			proxy.SetDown(true)
			<-time.After(lasts / 4)
			proxy.SetDown(false)
			<-time.After(lasts / 10)
			for range 100 { // perhaps no job was open when the connection came back
				if p.reads(readLost) > 0 {
					return
				}
				proxy.Cut()
				<-time.After(lasts / 10)
			}
		})
		require.Positive(t, p.reads(readLost))
	})
}

// The last event of a job is lost from the feed, and no later one shows the hole.
func TestAFeedThatIsTrimmedWhileTheGatewayStalls(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		p := r.start("", nil)
		r.steps("job", 1, 1)
		w := p.watch(r.domain, "job", "").wait("1")
		redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
		d := p.domain(r.domain)
		d.mu.Lock()
		r.steps("other", 1, 1)
		<-time.After(100 * time.Millisecond) // the follower reads it, and stalls at the lock
		r.steps("job", 2, 3)
		r.add(r.event("job", 4, "done"))
		r.steps("other", 2, 2)
		require.NoError(t, r.client.XTrimMaxLen(t.Context(), joblog.FeedKey(r.domain, 0), 1).Err())
		d.mu.Unlock()
		require.Equal(t, []string{"state 1", "1", "2", "3", "4", "closed done"}, w.ends())
	})
}

func TestASlowClientDelaysNoOther(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 1)
	slow, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	require.NoError(t, err)
	defer slow.Close()
	_, err = io.WriteString(slow, "GET /jobs/"+r.domain+"/job/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
	require.NoError(t, err)
	w := p.watch(r.domain, "job", "").wait("1")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 2 })
	const last = 400
	for n := int64(2); n < last; n++ {
		e := r.event("job", n, "step")
		e.Data = []byte(`"` + strings.Repeat("x", 50_000) + `"`)
		r.add(e)
		w.wait(strconv.FormatInt(n, 10))
		if p.attached(r.domain, "job") == 1 {
			break
		}
	}
	redistest.Eventually(t, "the slow client is disconnected", func() bool { return p.attached(r.domain, "job") == 1 })
	require.NotContains(t, w.received(), "busy")
}

func TestAThousandWatchersOfOneJob(t *testing.T) {
	r := newRedis(t, redistest.Real(t, "redis"))
	p := r.start("", nil)
	r.steps("job", 1, 10)
	watches := make([]*watch, 1000)
	for i := range watches {
		watches[i] = p.watch(r.domain, "job", "")
	}
	redistest.Eventually(t, "all are attached", func() bool { return p.attached(r.domain, "job") == len(watches) })
	r.steps("job", 11, 20)
	r.add(r.event("job", 21, "done"))
	for _, w := range watches {
		require.Len(t, w.ends(), 23)
	}
	require.Less(t, p.reads(readConnect), 500, "watchers share reads")
}
