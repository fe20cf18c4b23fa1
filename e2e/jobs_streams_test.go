package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	jobwatch "github.com/millrace-io/millrace/handlers/eventrouter/watch"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// longestWait is how long the watchers of a killed router wait at most.
const longestWait = 10 * time.Second

// routerKilled kills a process, and compares how long the watchers at the other gateway waited.
func (r *jobsRun) routerKilled() {
	stop := standstill(r.t.Context(), r.services[1].url)
	r.measure.Store(true)
	r.services[0].kill()
	r.awaitOwner()
	r.arrives("the other process goes on", r.at(1))
	stood := stop()
	var longest time.Duration
	for _, w := range r.at(1) {
		w.mu.Lock()
		longest = max(longest, w.longest)
		w.mu.Unlock()
	}
	r.t.Logf("the longest wait was %s, the machine stood still for %s", longest.Round(time.Millisecond), stood.Round(time.Millisecond))
	require.LessOrEqual(r.t, longest, longestWait+stood)
}

// standstill measures for how long the machine stands still until stop is called: how late the
// answers of a living process are.
func standstill(ctx context.Context, url string) (stop func() time.Duration) {
	const step = 50 * time.Millisecond
	ctx, cancel := context.WithCancel(ctx)
	sum := make(chan time.Duration)
	go func() {
		var late time.Duration
		for last := time.Now(); loop.Sleep(ctx, step); last = time.Now() {
			if resp, err := http.Get(url + "/jobs/scan/none"); err == nil {
				_ = resp.Body.Close()
			}
			late += max(0, time.Since(last)-2*step)
		}
		sum <- late
	}()
	return func() time.Duration {
		cancel()
		return <-sum
	}
}

// openFiles returns how many streams this process and a gateway can have open, at most n.
func openFiles(n int) int {
	const others = 1_000
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) != nil {
		return 0
	}
	return min(n, int(min(limit.Max, 1<<30))-others) //nolint:gosec // it fits
}

// manyStreamsEnd ends a gateway with thousands of streams. All of them are closed in the drain
// window, and newcomers get busy.
func (r *jobsRun) manyStreamsEnd() {
	require.GreaterOrEqual(r.t, len(r.watchers), 5_000, "RLIMIT_NOFILE")
	r.t.Logf("%d open streams", len(r.watchers))
	first := r.services[0]
	require.NoError(r.t, first.cmd.Process.Signal(syscall.SIGTERM))
	r.steady[0].first.Store(1)
	r.await("a newcomer gets busy", func() error {
		ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
		defer cancel()
		text := firstOf(ctx, first.url+"/jobs/scan/newcomer/events")
		if !strings.Contains(text, `"reason":"draining"`) || !strings.Contains(text, "event: busy") {
			return fmt.Errorf("it gets %q", text)
		}
		return nil
	})
	first.ends()
	require.NotContains(r.t, first.log.String(), "streams have not ended")
	for i, w := range r.watchers {
		require.True(r.t, w.drained.Load(), "stream %d was cut off", i+1)
	}
	r.arrives("the other gateway goes on", r.watchers)
}

// firstOf returns what a stream brings until ctx ends.
func firstOf(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err.Error()
	}
	req.Header.Set("Accept", "text/event-stream")
	resp, err := direct.RoundTrip(req)
	if err != nil {
		return err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(resp.Body) // ctx ends it
	return string(text)
}

// oddCursors lets all watchers reconnect for a while. The watchers of another job begin before its
// log, in the future, and with a cursor that is no number.
func (r *jobsRun) oddCursors() {
	const last, kept = 1500, 1000 // events of the job, and of its log
	add := func(from, to int, stage string) {
		pipe := r.redis.Pipeline()
		for seq := from; seq <= to; seq++ {
			pipe.XAdd(r.t.Context(), &goredis.XAddArgs{Stream: shardOf("odd"), Values: []any{"job_id", "odd", "stage", stage, "seq", seq}})
		}
		_, err := pipe.Exec(r.t.Context())
		require.NoError(r.t, err)
	}
	add(1, last-1, "scan")
	r.await("the log is full", func() error {
		top, err := r.redis.HGet(r.t.Context(), joblog.LogKey("scan", "odd"), "top").Int()
		if err == nil && top < last-1 {
			err = fmt.Errorf("it has %d events", top)
		}
		return err
	})
	first := last - kept // of the log
	expected := map[string][]string{
		"7":     append([]string{fmt.Sprintf("gap 8-%d", first-1)}, numberTexts(first, last)...),
		"x":     append([]string{fmt.Sprintf("gap 1-%d", first-1)}, numberTexts(first, last)...),
		"99999": numberTexts(last, last),
	}
	var watching sync.WaitGroup
	var ready atomic.Int64
	var mu sync.Mutex
	got := map[string][]string{}
	for cursor := range expected {
		watching.Go(func() {
			_, _ = jobwatch.Follow(r.t.Context(), jobwatch.Options{ // what it received is compared
				URL: "http://gateways/jobs/scan/odd/events", Client: &http.Client{Transport: cursorFrom{cursor, r.steady[1]}},
				Message: func(m jobwatch.Message) {
					mu.Lock()
					defer mu.Unlock()
					switch m.Name {
					case jobwatch.NameEvent:
						got[cursor] = append(got[cursor], strconv.FormatInt(m.Number(), 10))
					case jobwatch.NameGap:
						from, to := gapOf(m)
						got[cursor] = append(got[cursor], fmt.Sprintf("gap %d-%d", from, to))
					}
					if m.Number() == last-1 || cursor == "99999" && m.Name == jobwatch.NameState {
						ready.Add(1)
					}
				},
			})
		})
	}
	r.await("the watchers with odd cursors are at the end of the log", func() error {
		if n := int(ready.Load()); n < len(expected) {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	add(last, last, "done")
	watching.Wait()
	require.Equal(r.t, expected, got)
	pause(r.t, 10*time.Second)
}

func numberTexts(from, to int) (texts []string) {
	for n := from; n <= to; n++ {
		texts = append(texts, strconv.Itoa(n))
	}
	return texts
}

// cursorFrom gives the first request of a watcher a cursor.
type cursorFrom struct {
	id string
	to http.RoundTripper
}

func (c cursorFrom) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Header.Get("Last-Event-ID") == "" {
		req = req.Clone(req.Context())
		req.Header.Set("Last-Event-ID", c.id)
	}
	return c.to.RoundTrip(req)
}
