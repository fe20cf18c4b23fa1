package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// cost is what a while took: statements of PostgreSQL, commands of Redis, the microseconds that Redis worked on
// them, and the milliseconds that the instance worked.
type cost struct{ statements, commands, micros, cpu int64 }

// consoleCosts compares what the console of an instance reads while nobody looks, with one tab, and with 50. Redis has
// 10,000 streams, of which the pages read those that routes read.
func consoleCosts(t *testing.T, w *deployment, statements func() int64, metrics, address string) {
	t.Helper()
	const tabs, streams, window, interval = 50, 10_000, 10 * time.Second, 2 * time.Second
	pipe := w.redis.Pipeline()
	for i := range streams {
		pipe.XGroupCreateMkStream(t.Context(), fmt.Sprintf("scale:%d", i), "readers", "0")
	}
	_, err := pipe.Exec(t.Context())
	require.NoError(t, err)
	pages := []string{"/", "/campaigns", "/streams"}
	spent := func() (all cost) {
		series, err := (&member{metrics: metrics}).series(t.Context())
		require.NoError(t, err)
		all.statements, all.cpu = statements(), int64(1000*series["process_cpu_seconds_total"])
		lines, err := w.redis.Info(t.Context(), "commandstats").Result()
		require.NoError(t, err)
		for line := range strings.Lines(lines) {
			var calls, micros int64
			_, numbers, _ := strings.Cut(line, ":")
			if n, _ := fmt.Sscanf(numbers, "calls=%d,usec=%d", &calls, &micros); n == 2 {
				all.commands, all.micros = all.commands+calls, all.micros+micros
			}
		}
		return all
	}
	// look has each tab read its page as often as the script of a page does, and returns what it cost.
	look := func(tabs int) cost {
		ctx, end := context.WithTimeout(t.Context(), window)
		defer end()
		before := spent()
		var looking sync.WaitGroup
		for i := range tabs * len(pages) {
			looking.Go(func() {
				tick := time.NewTicker(interval)
				defer tick.Stop()
				select { // tabs are opened at different times
				case <-time.After(interval * time.Duration(i) / time.Duration(tabs*len(pages))):
				case <-ctx.Done():
				}
				for {
					r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+pages[i%len(pages)], http.NoBody)
					if err != nil {
						return
					}
					r.Header.Set("Millrace-Refresh", "yes") // as the script of a page does
					if answer, err := http.DefaultClient.Do(r); err == nil {
						_, _ = io.Copy(io.Discard, answer.Body) // the end of the window may cut it
						_ = answer.Body.Close()
					}
					select {
					case <-tick.C:
					case <-ctx.Done():
						return
					}
				}
			})
		}
		<-ctx.Done()
		looking.Wait()
		after := spent()
		c := cost{after.statements - before.statements, after.commands - before.commands, after.micros - before.micros, after.cpu - before.cpu}
		t.Logf("%d tabs of %v in %s: %d statements, %d commands of Redis in %d us, %d ms of CPU", tabs, pages, window, c.statements, c.commands, c.micros, c.cpu)
		return c
	}
	none, one, many := look(0), look(1), look(tabs)
	require.Greater(t, one.commands, none.commands, "a tab reads Redis")
	// Results and pages are shared for a second, and a tab reads every two, or more seldom where the machine stands still.
	// Tabs that share nothing read 50 times as often.
	const often = 5
	const slack = 100 // of what an idle instance sends, which varies
	require.LessOrEqual(t, many.statements-none.statements, often*max(0, one.statements-none.statements)+slack, "tabs share their statements")
	require.LessOrEqual(t, many.commands-none.commands, often*(one.commands-none.commands)+slack, "tabs share their commands")
	look(0) // what was begun for the last tabs
	again := look(0)
	require.LessOrEqual(t, again.statements, none.statements+slack, "nothing is read when the last tab has gone")
	require.LessOrEqual(t, again.commands, none.commands+slack, "nothing is read when the last tab has gone")
}
