package middleware_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// narrow is a sink that refuses messages over a limit, as a topic does.
type narrow struct {
	*pipelinetest.Recorder
	limit int // bytes of payload and metadata
	tries int
}

func (n *narrow) Publish(ctx context.Context, msgs ...*message.Message) error {
	n.tries++
	for _, m := range msgs {
		size := len(m.Payload)
		for k, v := range m.Metadata {
			size += len(k) + len(v)
		}
		if size > n.limit {
			return pipeline.WithClass(pipeline.Permanent(fmt.Errorf("%d bytes", size)), "too_large")
		}
	}
	return n.Recorder.Publish(ctx, msgs...)
}

func TestARecordOfAnySizeIsRetriedOrDeadLettered(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for _, tt := range []struct {
		name    string
		err     error
		payload int
		header  int // of the record's own
		retry   int // limit of the retry topic
		dead    int // limit of the dead-letter topic
		class   string
		kept    int // of the payload
		own     bool
		tries   int
		fails   bool
	}{
		{name: "it fits", err: pipeline.Permanent(boom), payload: 20_000, header: 10, dead: 30_000, class: "permanent", kept: 20_000, own: true, tries: 1},
		{name: "the payload is cut", err: pipeline.Permanent(boom), payload: 20_000, header: 10, dead: 20_000, class: "permanent", kept: 8 << 10, own: true, tries: 2},
		{name: "large headers go too", err: pipeline.Permanent(boom), payload: 20_000, header: 15_000, dead: 20_000, class: "permanent", tries: 3},
		{name: "headers alone are too large", err: pipeline.Permanent(boom), payload: 10, header: 30_000, dead: 20_000, class: "permanent", tries: 2},
		{name: "the error is bounded", err: pipeline.Permanent(errors.New(strings.Repeat("ö", 50_000))), payload: 10, header: 10, dead: 20_000, class: "permanent", kept: 10, own: true, tries: 1},
		{name: "a retry record that is too large is dead-lettered", err: boom, payload: 20_000, retry: 20_000, dead: 30_000, class: "too_large", kept: 20_000, own: true, tries: 1},
		{name: "nothing fits", err: pipeline.Permanent(boom), payload: 20_000, dead: 100, tries: 3, fails: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			retry, dead := &narrow{pipelinetest.NewRecorder("retry"), tt.retry, 0}, &narrow{pipelinetest.NewRecorder("dead"), tt.dead, 0}
			reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)})
			require.NoError(t, err)
			chain := middleware.New(reg, middleware.Options{})
			handle, _ := chain.Wrap(pipeline.Route{
				Name: "toy.route", From: pipelinetest.NewFeed("in"), Handle: handler(func(context.Context, string) error { return tt.err }),
				Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry}, DeadLetter: dead},
			})
			msg := message.NewMessage("1", bytes.Repeat([]byte("p"), tt.payload))
			msg.Metadata.Set("own", strings.Repeat("h", tt.header))
			msg.SetContext(pipeline.WithDelivery(t.Context(), pipeline.Delivery{Origin: pipeline.Origin{Source: "in", Position: "in/2@7", Key: "k"}}))
			_, err = handle(msg)

			require.Equal(t, tt.tries, dead.tries)
			if tt.fails {
				require.Error(t, err, "it is not acked")
				require.ErrorContains(t, <-chain.Failed(), "in/2@7 can be neither handled nor dead-lettered")
				return
			}
			require.NoError(t, err)
			require.Empty(t, chain.Failed())
			require.Len(t, dead.Messages(), 1)
			m := dead.Messages()[0]
			require.Len(t, m.Payload, tt.kept)
			require.Equal(t, tt.class, m.Metadata.Get(pipeline.MetaDeadClass))
			require.Equal(t, "in/2@7", m.Metadata.Get(pipeline.MetaDeadOrigin))
			require.LessOrEqual(t, len(m.Metadata.Get(pipeline.MetaDeadError)), 4<<10)
			require.Equal(t, tt.own, m.Metadata.Get("own") != "" || tt.own && tt.header == 0)
			length := ""
			if tt.kept < tt.payload {
				length = strconv.Itoa(tt.payload)
			}
			require.Equal(t, length, m.Metadata.Get(pipeline.MetaDeadPayloadBytes))
		})
	}
}

// copies hands on a copy of what came, with all its headers.
func copies(m *message.Message) ([]*message.Message, error) { return message.Messages{m.Copy()}, nil }

func TestTheHistoryOfARetryStaysInItsRoute(t *testing.T) {
	t.Parallel()
	out, retry, dead := pipelinetest.NewRecorder("out"), pipelinetest.NewRecorder("retry"), pipelinetest.NewRecorder("dead")
	for name, tt := range map[string]struct {
		from  pipeline.Source
		of    string // the route that the record names
		spent bool
	}{
		"its retry topic":         {retryFeed{pipelinetest.NewFeed("in"), retry.Describe()}, "toy.route", true},
		"of another route":        {retryFeed{pipelinetest.NewFeed("in"), retry.Describe()}, "other.route", false},
		"of no route":             {retryFeed{pipelinetest.NewFeed("in"), retry.Describe()}, "", false},
		"a foreign producer lies": {pipelinetest.NewFeed("in"), "toy.route", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			retry, dead := pipelinetest.NewRecorder("retry"), pipelinetest.NewRecorder("dead")
			handle := wrap(t, pipeline.Route{From: tt.from, Handle: handler(func(_ context.Context, _ string) error { return errors.New("boom") }),
				Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry, Max: 3}, DeadLetter: dead}})
			_, err := handle(retried(tt.of))
			require.NoError(t, err)
			if tt.spent {
				require.Empty(t, retry.Messages())
				require.Equal(t, "4", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadAttempts))
				require.Equal(t, "2026-01-02T03:04:05Z", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadFirstFailedAt))
				return
			}
			require.Empty(t, dead.Messages())
			require.Equal(t, "1", retry.Messages()[0].Metadata.Get(pipeline.MetaAttempt))
			require.Equal(t, "toy.route", retry.Messages()[0].Metadata.Get(pipeline.MetaRetryOf))
			require.NotEqual(t, "2026-01-02T03:04:05Z", retry.Messages()[0].Metadata.Get(pipeline.MetaFirstFailedAt))
		})
	}
	handle := wrap(t, pipeline.Route{To: out, Handle: copies})
	_, err := handle(retried("toy.route"))
	require.NoError(t, err)
	require.Equal(t, "kept", out.Messages()[0].Metadata.Get("own"))
	for _, name := range []string{pipeline.MetaAttempt, pipeline.MetaDue, pipeline.MetaFirstFailedAt, pipeline.MetaLastError, pipeline.MetaReplay, pipeline.MetaRetryOf} {
		require.NotContains(t, out.Messages()[0].Metadata, name)
	}

	// A handler that hands on the message itself must not lose its count by a publish that fails.
	out.FailWith(errors.New("no broker"))
	handle = wrap(t, pipeline.Route{To: out, From: retryFeed{pipelinetest.NewFeed("in"), retry.Describe()},
		Handle: func(m *message.Message) ([]*message.Message, error) { return message.Messages{m}, nil },
		Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry, Max: 3}, DeadLetter: dead}})
	_, err = handle(retried("toy.route"))
	require.NoError(t, err)
	require.Len(t, dead.Messages(), 1)
}

// retried returns a record that says it was retried three times.
func retried(of string) *message.Message {
	m := message.NewMessage("1", nil)
	m.Metadata = message.Metadata{
		"own": "kept", pipeline.MetaRetryOf: of, pipeline.MetaAttempt: "3", pipeline.MetaDue: "2026-01-02T03:04:06Z",
		pipeline.MetaFirstFailedAt: "2026-01-02T03:04:05Z", pipeline.MetaReplay: "0123456789abcdef/1", pipeline.MetaLastError: "boom",
	}
	return m
}

// A sender's own millrace-dead headers would say that the dead letter was cut, and of another message.
func TestADeadLetterHasNoDeadHeadersOfItsSender(t *testing.T) {
	t.Parallel()
	for _, name := range []string{pipeline.MetaDeadPayloadBytes, pipeline.MetaDeadPayloadSHA256, pipeline.MetaDeadUUID, pipeline.MetaDeadSource, pipeline.MetaDeadPrefix + "other"} {
		dead := pipelinetest.NewRecorder("dead")
		handle := wrap(t, pipeline.Route{
			Handle: handler(func(context.Context, string) error { return pipeline.Permanent(errors.New("boom")) }),
			Policy: pipeline.Policy{DeadLetter: dead},
		})
		m := message.NewMessage("", []byte("p"))
		m.Metadata = message.Metadata{"own": "kept", name: "9000"}
		_, err := handle(m)
		require.NoError(t, err)
		require.Equal(t, "9000", m.Metadata.Get(name), "the message is left alone")
		require.Len(t, dead.Messages(), 1)
		require.Equal(t, "kept", dead.Messages()[0].Metadata.Get("own"))
		require.Equal(t, "boom", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError))
		require.NotContains(t, dead.Messages()[0].Metadata, name)
	}
}

// A retry record has the error of its attempt, as a header that every client can show.
func TestARetryRecordHasItsError(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"got -1":                        "got -1",
		"got -1\ncustomer: \x1b[31mred": "got -1; customer:  [31mred",
		"not \xff UTF-8":                "not  UTF-8",
		strings.Repeat("ö", 1000):       strings.Repeat("ö", 128),
		"a" + strings.Repeat("ö", 1000): "a" + strings.Repeat("ö", 127),
		"":                              "",
	} {
		retry := pipelinetest.NewRecorder("retry")
		handle := wrap(t, pipeline.Route{
			From:   retryFeed{pipelinetest.NewFeed("in"), retry.Describe()},
			Handle: handler(func(context.Context, string) error { return errors.New(text) }),
			Policy: pipeline.Policy{Retry: pipeline.Retry{To: retry}},
		})
		_, err := handle(retried("toy.route"))
		require.NoError(t, err)
		require.Equal(t, want, retry.Messages()[0].Metadata.Get(pipeline.MetaLastError), "and not that of the attempt before")
	}
}

func TestFailuresOfOneKindAreLoggedOnceAMinute(t *testing.T) {
	for outcome, retry := range map[string]pipeline.Retry{"nacked": {}, "retried": {To: pipelinetest.NewRecorder("retry")}} {
		t.Run(outcome, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				require.NoError(t, err)
				fail := errors.New("boom")
				handle, _ := middleware.New(reg, middleware.Options{}).Wrap(pipeline.Route{
					Name: "toy.route", From: pipelinetest.NewFeed("in"), Handle: handler(func(context.Context, string) error { return fail }),
					Policy: pipeline.Policy{Retry: retry},
				})
				lines := func() int { return bytes.Count(log.Bytes(), []byte("message not handled")) }
				first := time.Now()
				for range 100 {
					_, _ = handle(message.NewMessage("1", nil))
				}
				require.Equal(t, 1, lines())
				require.Regexp(t, "level=WARN .*route=toy.route .*outcome="+outcome+" class=error error=boom", log.String())
				fail = pipeline.WithClass(fail, "other")
				_, _ = handle(message.NewMessage("1", nil))
				require.Equal(t, 2, lines(), "another class is another line")
				time.Sleep(time.Minute)
				_, _ = handle(message.NewMessage("1", nil))
				require.Equal(t, 4, lines(), "the next failure of any kind reports the suppressed ones")
				require.Contains(t, log.String(), "suppressed=98 last_at="+first.Format("2006-01-02T15:04:05.000Z07:00"), "it says when the last of them failed")
			})
		})
	}
}

// TestTheLastFailuresAreLogged at the stop, those of the drain too.
func TestTheLastFailuresAreLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	feed := pipelinetest.NewFeed("in")
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))}, onRoute{pipeline.Route{
		From: feed, Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
		Handle: handler(func(context.Context, string) error { return pipeline.Permanent(errors.New("boom")) }),
	}})
	require.NoError(t, err)
	chain := middleware.New(reg, middleware.Options{})
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap})
	require.NoError(t, rt.Start(t.Context()))
	for range 5 {
		feed.Send(message.NewMessage("1", nil))
	}
	for range 5 {
		<-feed.Settled()
	}
	require.NoError(t, rt.Stop(t.Context()))
	lines := regexp.MustCompile(`(?m)message not handled.*$`).FindAllString(log.String(), -1)
	require.Len(t, lines, 2)
	require.NotContains(t, lines[0], "suppressed")
	require.Contains(t, lines[1], "suppressed=3")
}

// A dropped message is lost, so its line is the only trace of it.
func TestEachDroppedMessageIsLogged(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	handle, _ := middleware.New(reg, middleware.Options{}).Wrap(pipeline.Route{
		Name: "toy.route", From: pipelinetest.NewFeed("in"), Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: handler(func(context.Context, string) error { return pipeline.Permanent(errors.New("boom")) }),
	})
	for n := range 3 {
		m := message.NewMessage("1", nil)
		m.SetContext(pipeline.WithDelivery(t.Context(), pipeline.Delivery{Origin: pipeline.Origin{Source: "orders", Position: fmt.Sprintf("orders/0@%d", n)}}))
		_, err := handle(m)
		require.NoError(t, err)
	}
	require.Equal(t, 3, strings.Count(log.String(), "level=ERROR"))
	for n := range 3 {
		require.Contains(t, log.String(), fmt.Sprintf("origin=orders/0@%d", n))
	}
	require.NotContains(t, log.String(), "suppressed")
}

// Any client can send the mark of a message that its transport could not decode. The dead letter of a message that was
// decoded does not have it, because it could never be replayed.
func TestTheMarkOfAnUndecodableMessageIsNotBelieved(t *testing.T) {
	t.Parallel()
	for name, malformed := range map[string]error{"": nil, "x": errors.New("no field message")} {
		dead := pipelinetest.NewRecorder("dead")
		handle := wrap(t, pipeline.Route{
			From: pipelinetest.NewFeed("in"), Handle: handler(func(context.Context, string) error { return pipeline.Permanent(errors.New("boom")) }),
			Policy: pipeline.Policy{DeadLetter: dead},
		})
		m := from(pipeline.Delivery{Delivered: 1, Malformed: malformed})
		m.Metadata.Set(pipeline.MetaMalformed, "x")
		_, err := handle(m)
		require.NoError(t, err)
		require.Equal(t, name, dead.Messages()[0].Metadata.Get(pipeline.MetaMalformed))
	}
}
