package e2e

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// cost is what a while took: statements of PostgreSQL, commands of Redis, the microseconds that Redis worked on
// them, and the milliseconds that the instance worked.
type cost struct {
	statements, commands, micros, cpu int64

	byCommand map[string]int64 // micros
	searches  int64            // commands that searched all keys
}

// dearest names the commands that Redis worked on for longest.
func (c cost) dearest() string {
	names := slices.SortedFunc(maps.Keys(c.byCommand), func(a, b string) int { return cmp.Compare(c.byCommand[b], c.byCommand[a]) })
	var said []string
	for _, name := range names[:min(5, len(names))] {
		said = append(said, fmt.Sprintf("%s %d us", name, c.byCommand[name]))
	}
	return strings.Join(said, ", ")
}

// consoleCosts compares what the console of an instance reads while nobody looks, with one tab, and with 50. Redis has
// 10,000 streams, of which the pages read those that routes read.
func consoleCosts(t *testing.T, w *deployment, statements func() int64, metrics, address string) {
	t.Helper()
	const tabs, streams, campaigns, rounds, interval = 50, 10_000, 50, 5, 2 * time.Second
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
		all.byCommand = map[string]int64{}
		for line := range strings.Lines(lines) {
			var calls, micros int64
			name, numbers, _ := strings.Cut(line, ":")
			if n, _ := fmt.Sscanf(numbers, "calls=%d,usec=%d", &calls, &micros); n == 2 {
				all.commands, all.micros = all.commands+calls, all.micros+micros
				all.byCommand[strings.TrimPrefix(name, "cmdstat_")] = micros
				if name == "cmdstat_scan" {
					all.searches = calls
				}
			}
		}
		return all
	}
	browser := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 32}} // the console refuses too many of one address
	t.Cleanup(browser.CloseIdleConnections)
	read := func(page string) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+page, http.NoBody)
		assert.NoError(t, err)
		r.Header.Set("Millrace-Refresh", "yes")
		answer, err := browser.Do(r)
		if !assert.NoError(t, err) {
			return
		}
		_, err = io.Copy(io.Discard, answer.Body)
		assert.NoError(t, err)
		assert.NoError(t, answer.Body.Close())
	}
	// look has all tabs read their pages at the same time, as the script of a page does, several times. It returns what that
	// cost, without what the instance does meanwhile anyway.
	look := func(tabs int, idle cost) cost {
		began, before := time.Now(), spent()
		for range rounds {
			var looking sync.WaitGroup
			for i := range tabs * len(pages) {
				looking.Go(func() { read(pages[i%len(pages)]) })
			}
			looking.Wait()
			pause(t, interval) // longer than anything is shared
		}
		after, of := spent(), int64(time.Since(began)/(rounds*interval))
		c := cost{
			after.statements - before.statements - of*idle.statements, after.commands - before.commands - of*idle.commands,
			after.micros - before.micros, after.cpu - before.cpu, after.byCommand, after.searches - before.searches,
		}
		for name, micros := range before.byCommand {
			c.byCommand[name] -= micros
		}
		t.Logf("%d tabs of each of %v, %d times in %s: %d statements, %d commands of Redis in %d us (%s; %d of scan), %d ms of CPU", tabs, pages, rounds, time.Since(began), c.statements, c.commands, c.micros, c.dearest(), c.searches, c.cpu)
		return c
	}
	const slack = 100 // of what an idle instance sends, which varies
	none := look(0, cost{})

	keys, err := w.redis.DBSize(t.Context()).Result()
	require.NoError(t, err)
	began, before := time.Now(), spent()
	for _, page := range pages {
		read(page)
	}
	pause(t, interval)
	require.Eventually(t, func() bool { return spent().searches-before.searches >= keys/2000 }, 2*time.Minute, time.Second, "the keys are searched")
	first, idle := spent(), none.commands*(1+int64(time.Since(began)/(rounds*interval)))
	t.Logf("the first look: %d commands of Redis, %d of scan", first.commands-before.commands, first.searches-before.searches)
	require.LessOrEqual(t, first.searches-before.searches, keys/1000+2, "one search finds the streams of all types")
	require.LessOrEqual(t, first.commands-before.commands, 2*campaigns+keys/1000+2+idle, "each campaign that is shown takes one command")

	one, many := look(1, none), look(tabs, none)
	// A machine that stands still during a round has everything read twice. Tabs that share nothing read 50 times as much.
	require.LessOrEqual(t, many.statements, 2*max(0, one.statements)+slack, "tabs share their statements")
	require.LessOrEqual(t, many.commands, rounds*(first.commands-before.commands)+slack, "tabs share their commands")
	look(0, none) // what was begun for the last tabs
	again := look(0, none)
	require.LessOrEqual(t, again.statements, int64(slack), "nothing is read when the last tab has gone")
	require.LessOrEqual(t, again.commands, int64(slack), "nothing is read when the last tab has gone")
}
