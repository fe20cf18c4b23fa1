package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wm "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/sony/gobreaker"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// watermills are the middlewares of Watermill, each with the file that it is in.
var watermills = []struct { // a table
	name, file string
	make       func(poison message.Publisher) message.HandlerMiddleware
	advice     string
}{
	{"CircuitBreaker", "circuit_breaker.go", func(message.Publisher) message.HandlerMiddleware {
		return wm.NewCircuitBreaker(gobreaker.Settings{ReadyToTrip: func(c gobreaker.Counts) bool { return c.TotalFailures > 0 }}).Middleware
	}, "While it is open, each message fails and spends an attempt. `Flow.Gate` stops reading instead, so prefer that."},
	{"CorrelationID", "correlation.go", func(message.Publisher) message.HandlerMiddleware { return wm.CorrelationID },
		"The step `correlation` does this on every route."},
	{"Deduplicator", "deduplicator.go", func(message.Publisher) message.HandlerMiddleware {
		return (&wm.Deduplicator{KeyFactory: wm.NewMessageHasherSHA256(1 << 20), Repository: remembered{}, Timeout: time.Second}).Middleware
	}, "It remembers a message before it is handled, so a failed message is lost when it comes again. Use a ledger or a key of the far side."},
	{"DelayOnError", "delay_on_error.go", func(message.Publisher) message.HandlerMiddleware {
		return (&wm.DelayOnError{InitialInterval: time.Minute, MaxInterval: time.Hour, Multiplier: 2}).Middleware
	}, "Its headers have no meaning here. Return `pipeline.RetryAfter`, or set `Retry.Backoff`."},
	{"Duplicator", "duplicator.go", func(message.Publisher) message.HandlerMiddleware { return wm.Duplicator },
		"For tests of idempotence, at `attempt`, which also repeats the publishing."},
	{"IgnoreErrors", "ignore_errors.go", func(message.Publisher) message.HandlerMiddleware {
		return wm.NewIgnoreErrors([]error{errBoom}).Middleware
	},
		"A message with an ignored error is acked, without an output, a retry or a dead letter."},
	{"InstantAck", "instant_ack.go", func(message.Publisher) message.HandlerMiddleware { return wm.InstantAck },
		"A crash loses the message, and a nack has no effect. Do not use it."},
	{"PoisonQueue", "poison.go", func(poison message.Publisher) message.HandlerMiddleware {
		q, err := wm.PoisonQueue(poison, "poison")
		if err != nil {
			panic(err)
		}
		return q
	}, "It takes each failed message before the retry topic and `Policy.DeadLetter`, which do this with class, attempts and position."},
	{"RandomFail", "randomfail.go", func(message.Publisher) message.HandlerMiddleware { return wm.RandomFail(1) },
		"For tests of failures; tried with the probability 1."},
	{"RandomPanic", "randomfail.go", func(message.Publisher) message.HandlerMiddleware { return wm.RandomPanic(1) },
		"For tests of failures; tried with the probability 1."},
	{"Recoverer", "recoverer.go", func(message.Publisher) message.HandlerMiddleware { return wm.Recoverer },
		"The step `recover` does this with a class of its own. At `handler` the class is lost, so a panic without a retry topic is nacked without end."},
	{"Retry", "retry.go", func(message.Publisher) message.HandlerMiddleware {
		return wm.Retry{MaxRetries: 2, InitialInterval: 400 * time.Millisecond, MaxInterval: 400 * time.Millisecond, Multiplier: 1}.Middleware
	}, "For two or three quick repetitions before the retry topic, at `attempt`. The message keeps its slot meanwhile."},
	{"Throttle", "throttle.go", func(message.Publisher) message.HandlerMiddleware { return wm.NewThrottle(2, time.Second).Middleware },
		"For a rate per process, at `received`. At `handler` the wait counts against the time limit."},
	{"Timeout", "timeout.go", func(message.Publisher) message.HandlerMiddleware { return wm.Timeout(100 * time.Millisecond) },
		"`Policy.Timeout` does this on every route. At `attempt` it is one limit for all that is inside of it."},
}

// remembered is a repository of a Deduplicator without a goroutine.
type remembered map[string]bool

func (r remembered) IsDuplicate(_ context.Context, key string) (bool, error) {
	known := r[key]
	r[key] = true
	return known, nil
}

// poison is a publisher of Watermill.
type poison struct{ *pipelinetest.Recorder }

func (p poison) Publish(_ string, msgs ...*message.Message) error {
	return p.Recorder.Publish(context.Background(), msgs...)
}

func (poison) Close() error { return nil }

// trials are what each middleware is tried with. The last payload of a trial is looked at.
func trials() []struct{ name, payload string } {
	return []struct{ name, payload string }{
		{"ok", "ok"}, {"the same again", "ok ok"}, {"error", "error"}, {"error again", "error error"},
		{"panic", "panic"}, {"time limit", "slow"}, {"sink fails", "unpublished"},
	}
}

// outcome is what becomes of a message, in parts.
type outcome []string

// String returns the parts that there are.
func (o outcome) String() string {
	return strings.Join(slices.DeleteFunc(slices.Clone(o), func(part string) bool { return part == "" }), ", ")
}

// unlike returns the parts that are not those of other.
func (o outcome) unlike(other outcome) string {
	parts := slices.Clone(o)
	for i := range parts {
		if parts[i] == other[i] {
			parts[i] = ""
		}
	}
	if !slices.Equal(o, other) && parts.String() == "" {
		return "at once"
	}
	return parts.String()
}

func count(n int, of string) string {
	if n == 1 {
		return "1 " + of
	}
	return fmt.Sprintf("%d %ss", n, of)
}

// try returns what becomes of a message on a route with m at a place. An empty place has none.
func try(t *testing.T, m func(message.Publisher) message.HandlerMiddleware, place pipeline.Place, batch bool, payloads []string) (result outcome) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		feed, out, retry, poisoned := pipelinetest.NewFeed("in"), pipelinetest.NewRecorder("out"), pipelinetest.NewRecorder("retry"), poison{pipelinetest.NewRecorder("poison")}
		feed.RedeliveryDelay = 24 * time.Hour
		calls, early := 0, false
		handle := func(m *message.Message) ([]*message.Message, error) {
			calls++
			select {
			case <-m.Acked():
				early = true
			default:
			}
			switch string(m.Payload) {
			case "error":
				return nil, errBoom
			case "panic":
				panic("ouch")
			case "slow":
				<-m.Context().Done()
				return nil, m.Context().Err()
			case "unpublished":
				out.FailWith(errors.New("no broker"))
			}
			return []*message.Message{message.NewMessage("1", m.Payload)}, nil
		}
		r := pipeline.Route{
			From: feed, To: out, Handle: handle, Flow: pipeline.Flow{Window: 1},
			Policy: pipeline.Policy{Timeout: time.Second, Retry: pipeline.Retry{To: retry}, DeadLetter: pipelinetest.NewRecorder("dead")},
		}
		if batch {
			r.Handle = nil
			r.HandleBatch = func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
				msgs[0].SetContext(ctx)
				o, err := handle(msgs[0])
				return []pipeline.BatchResult{{Out: o, Err: err}}
			}
		}
		if place != "" {
			r.Middlewares = []pipeline.Middleware{{Name: "tried", Place: place, Wrap: m(poisoned)}}
		}
		reg, err := pipeline.NewRegistry(pipeline.Env{}, onRoute{r})
		require.NoError(t, err)
		chain := middleware.New(reg, middleware.Options{})
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}})
		require.NoError(t, rt.Start(t.Context()))
		var done pipelinetest.Settled
		var took time.Duration
		published, retried, lost := 0, 0, 0
		for _, payload := range payloads {
			published, retried, lost = len(out.Messages()), len(retry.Messages()), len(poisoned.Messages())
			calls = 0
			begin := time.Now()
			feed.SendPayloads(payload)
			done = <-feed.Settled()
			took = time.Since(begin)
			synctest.Wait() // an early ack is settled before the call
			time.Sleep(2 * time.Second)
			synctest.Wait()
		}
		end, wait, reason := "nacked", "", ""
		retries := retry.Messages()[retried:]
		switch {
		case len(retries) > 0:
			end = "retried"
		case done.Acked:
			end = "acked"
		}
		if took = took.Round(time.Second); took > 0 {
			wait = "after " + took.String()
		}
		instantly := map[bool]string{true: "acked before the call"}
		queued := map[bool]string{true: "in the poison queue"}
		headers := []string{}
		for _, m := range retries {
			text, _, _ := strings.Cut(m.Metadata.Get(pipeline.MetaLastError), ", stacktrace")
			reason = "`" + text + "`"
			for _, name := range slices.Sorted(maps.Keys(m.Metadata)) {
				if strings.HasPrefix(name, "_watermill") {
					headers = append(headers, "header `"+name+"`")
				}
			}
		}
		result = outcome{
			instantly[early], end, count(calls, "call"), count(len(out.Messages())-published, "output"), wait,
			queued[len(poisoned.Messages()) > lost], reason, strings.Join(headers, ", "),
		}
		require.NoError(t, rt.Stop(t.Context()))
	})
	return result
}

// TestWatermillsMiddlewares tries each middleware of Watermill at each place, and compares what it
// does with docs/middleware.md.
func TestWatermillsMiddlewares(t *testing.T) {
	t.Parallel()
	folder, err := exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", reflect.TypeFor[wm.Retry]().PkgPath()).Output()
	require.NoError(t, err)
	files, err := filepath.Glob(filepath.Join(strings.TrimSpace(string(folder)), "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		if base := filepath.Base(f); !strings.HasSuffix(base, "_test.go") {
			known := false
			for _, w := range watermills {
				known = known || w.file == base
			}
			require.True(t, known, "Watermill has a middleware in %s: give it a row", base)
		}
	}

	page := filepath.Join("..", "..", "docs", "middleware.md")
	want, err := os.ReadFile(page)
	require.NoError(t, err)
	heading, _, _ := strings.Cut(trialsIntro, "\n")
	byHand, _, found := strings.Cut(string(want), heading)
	require.True(t, found, "%s has no %q", page, heading)

	var doc strings.Builder
	doc.WriteString(byHand + trialsIntro)
	plain := make([]outcome, len(trials()))
	for i, trial := range trials() {
		plain[i] = try(t, nil, "", false, strings.Fields(trial.payload))
		require.Equal(t, plain[i], try(t, nil, "", true, strings.Fields(trial.payload)), "a batch of one: %s", trial.name)
		fmt.Fprintf(&doc, "| %s | %s |\n", trial.name, plain[i])
	}
	for _, w := range watermills {
		fmt.Fprintf(&doc, "\n### %s\n\n%s\n\n| place | what is different with it |\n|---|---|\n", w.name, w.advice)
		for _, at := range []struct {
			name  string
			place pipeline.Place
			batch bool
		}{
			{"`received`", pipeline.PlaceReceived, false}, {"`attempt`", pipeline.PlaceAttempt, false},
			{"`handler`", pipeline.PlaceHandler, false}, {"`received`, with `HandleBatch`", pipeline.PlaceReceived, true},
		} {
			var differences, order []string
			of := map[string][]string{}
			for i, trial := range trials() {
				got := try(t, w.make, at.place, at.batch, strings.Fields(trial.payload)).unlike(plain[i])
				if got != "" && of[got] == nil {
					order = append(order, got)
				}
				of[got] = append(of[got], trial.name)
			}
			for _, got := range order {
				names := strings.Join(of[got], ", ")
				if len(of[got]) == len(trials()) {
					names = "each"
				}
				differences = append(differences, names+": "+got)
			}
			if len(differences) == 0 {
				differences = []string{"nothing"}
			}
			fmt.Fprintf(&doc, "| %s | %s |\n", at.name, strings.Join(differences, "<br/>"))
		}
	}
	if os.Getenv("UPDATE_GOLDEN") != "" {
		require.NoError(t, os.WriteFile(page, []byte(doc.String()), 0o600))
		return
	}
	require.Equal(t, string(want), doc.String(), "UPDATE_GOLDEN=1 go test writes it")
}

// trialsIntro begins the part of the page that the test writes.
const trialsIntro = `## Watermill's middlewares

A test tries each middleware of Watermill v1.5.3 at each place and writes the rest of this page. The
route has a retry topic, a time limit of one second, and one output per message. These are the trials,
with what happens without any middleware. A table below names only what is different with the middleware.

| trial | result |
|---|---|
`
