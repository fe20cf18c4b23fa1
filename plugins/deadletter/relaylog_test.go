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

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
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

// sampling returns a plugin that logs, in a bubble. stop stops the log.
func sampling(t *testing.T, to Transport) (p *Plugin, logged *journal, stop func()) {
	t.Helper()
	logged = &journal{}
	p = New(to)
	_, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(logged, nil))}, p)
	require.NoError(t, err)
	require.NoError(t, p.relayed.Start(t.Context()))
	stop = func() { require.NoError(t, p.relayed.Stop(context.Background())) }
	t.Cleanup(stop)
	return p, logged, stop
}

func rejected(n int) pipeline.DeadLetter {
	return pipeline.DeadLetter{Payload: []byte("secret"), Class: "rejected", Error: fmt.Sprint("refusal ", n), Handler: "orders.take", Origin: fmt.Sprint("orders/0@", n)}
}

// relayOne publishes a dead letter of an outbox.
func relayOne(p *Plugin, n int) error {
	return p.publishEntries(context.Background(), "orders", []Entry{{Topic: "orders-dead", DeadLetter: rejected(n)}})
}

// A dead letter of a route has one line, of the chain.
func TestADeadLetterOfARouteIsLoggedOnce(t *testing.T) {
	t.Parallel()
	logged := &journal{}
	to := newTopics()
	p := New(to)
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(logged, nil))}, p)
	require.NoError(t, err)
	handle, _ := middleware.New(reg, middleware.Options{}).Wrap(pipeline.Route{
		Name: "orders.take", From: pipelinetest.NewFeed("orders"), Policy: pipeline.Policy{DeadLetter: p.Sink("orders-dead")},
		Handle: func(*message.Message) ([]*message.Message, error) { panic("no such order") },
	})
	_, err = handle(message.NewMessage("1", []byte("order")))
	require.NoError(t, err)
	require.Equal(t, []string{"order"}, to.payloads("orders-dead"))
	require.Equal(t, 1, strings.Count(logged.text.String(), "\n"), "%s", &logged.text)
	require.Regexp(t, `level=WARN msg="message not handled" route=orders.take .*outcome=dead class=panic error=.*no such order.* stack=`, logged.text.String())
}

// The first dead letter of a group is logged at once. The following ones share a line, one minute
// later.
func TestDeadLettersAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, logged, stop := sampling(t, newTopics())
		require.NoError(t, relayOne(p, 1))
		got := logged.lines()
		require.Len(t, got, 1)
		require.Regexp(t, `level=WARN .* plugin=deadletter count=1 plugin_of=orders route=orders.take class=rejected error="refusal 1" origin=orders/0@1 subject=""$`, got[0])
		require.NotContains(t, got[0], "secret")

		for n := range 400 {
			require.NoError(t, relayOne(p, n))
		}
		last := time.Now()
		time.Sleep(logInterval / 2)
		synctest.Wait()
		require.Empty(t, logged.lines(), "not within a minute")
		time.Sleep(logInterval/2 + 10*time.Second)
		synctest.Wait()
		got = logged.lines()
		require.Len(t, got, 1)
		require.Contains(t, got[0], `count=400 plugin_of=orders route=orders.take class=rejected error="refusal 399"`)
		require.Contains(t, got[0], "last_at="+last.Format("2006-01-02T15:04:05.000Z07:00"))

		// Stop logs what is left.
		require.NoError(t, relayOne(p, 7))
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
		time.Sleep(logInterval + 10*time.Second)
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
				require.NoError(t, relayOne(p, sent))
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
