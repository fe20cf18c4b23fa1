package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// journal is what a plugin logs, in a bubble.
type journal struct {
	mu   sync.Mutex
	text strings.Builder
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

// lines returns the lines about dead letters since the last call.
func (j *journal) lines() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	var out []string
	for l := range strings.Lines(j.text.String()) {
		if strings.Contains(l, "messages became dead letters") {
			out = append(out, strings.TrimSpace(l))
		}
	}
	j.text.Reset()
	return out
}

// sampling returns a plugin that logs, in a bubble. stop stops the log sampler.
func sampling(t *testing.T, to Transport) (p *Plugin, logged *journal, stop func()) {
	t.Helper()
	logged = &journal{}
	p = New(to)
	_, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(logged, nil))}, p)
	require.NoError(t, err)
	require.NoError(t, p.sampler.Start(t.Context()))
	stop = func() { require.NoError(t, p.sampler.Stop(context.Background())) }
	t.Cleanup(stop)
	return p, logged, stop
}

func rejected(n int) pipeline.DeadLetter {
	return pipeline.DeadLetter{Payload: []byte("secret"), Class: "rejected", Error: fmt.Sprint("refusal ", n), Handler: "orders.take", Origin: fmt.Sprint("orders/0@", n)}
}

// The first letter of a sort is counted at once, those that follow a minute later, in one line,
// however many they are.
func TestDeadLettersAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, logged, stop := sampling(t, newTopics())
		sink := p.Sink("orders-dead")
		require.NoError(t, sink.Publish(t.Context(), rejected(1).Message()))
		got := logged.lines()
		require.Len(t, got, 1)
		require.Regexp(t, `level=WARN .* plugin=deadletter count=1 plugin_of=orders route=orders.take class=rejected error="refusal 1" origin=orders/0@1 subject=""$`, got[0])
		require.NotContains(t, got[0], "secret")

		for n := range 400 {
			require.NoError(t, sink.Publish(t.Context(), rejected(n).Message()))
		}
		time.Sleep(logInterval / 2)
		synctest.Wait()
		require.Empty(t, logged.lines(), "not within a minute")
		time.Sleep(logInterval/2 + logTick)
		synctest.Wait()
		got = logged.lines()
		require.Len(t, got, 1)
		require.Contains(t, got[0], `count=400 plugin_of=orders route=orders.take class=rejected error="refusal 399"`)

		// Stop logs what is left.
		require.NoError(t, sink.Publish(t.Context(), rejected(7).Message()))
		stop()
		require.Contains(t, strings.Join(logged.lines(), ""), `count=1 plugin_of=orders`)
		require.NotContains(t, strings.Join(logged.lines(), ""), `count=`)
	})
}

// Each group has a line of its own. Dead letters that are not published are not logged, and those
// that are published at a second attempt are logged once.
func TestEachGroupHasItsLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		to := newTopics()
		p, logged, _ := sampling(t, to)
		batch := entriesTo("payouts-dead", 4)
		for i := range batch {
			batch[i].Subject, batch[i].Handler = fmt.Sprint("P:", i), "payouts.pay"
		}
		batch[0].Class = "unknown"
		batch[1].Payload = []byte("poison")
		to.setDown(errors.New("no broker"))
		require.Error(t, p.publishEntries(t.Context(), "payouts", batch))
		require.Empty(t, logged.lines())
		to.setDown(nil)
		require.Error(t, p.publishEntries(t.Context(), "payouts", batch), "no broker takes the poison")
		time.Sleep(logInterval + logTick)
		synctest.Wait()
		counts := map[string]int{}
		for _, l := range logged.lines() {
			m := regexp.MustCompile(`count=(\d+) plugin_of=payouts route=payouts.pay class=(\w+) .*subject=P:[0-9]`).FindStringSubmatch(l)
			require.NotNil(t, m, l)
			n, err := strconv.Atoi(m[1])
			require.NoError(t, err)
			counts[m[2]] += n
		}
		require.Equal(t, map[string]int{"unknown": 1, "rejected": 2}, counts)
		time.Sleep(2 * logInterval)
		synctest.Wait()
	})
}

// No group has two lines within a minute, and each dead letter is counted.
func TestLogLinesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, logged, stop := sampling(t, newTopics())
		sink := p.Sink("orders-dead")
		var at []time.Time
		counted, sent := 0, 0
		look := func() {
			for _, l := range logged.lines() {
				at = append(at, time.Now())
				n, err := strconv.Atoi(regexp.MustCompile(`count=(\d+)`).FindStringSubmatch(l)[1])
				require.NoError(t, err)
				counted += n
			}
		}
		for second := range 600 {
			for range (second * 7) % 4 {
				require.NoError(t, sink.Publish(t.Context(), rejected(sent).Message()))
				sent++
			}
			synctest.Wait()
			look()
			time.Sleep(time.Second)
		}
		for i := 1; i < len(at); i++ {
			require.GreaterOrEqual(t, at[i].Sub(at[i-1]), logInterval)
		}
		require.InDelta(t, 10, len(at), 1)
		stop()
		look()
		require.Equal(t, sent, counted)
	})
}
