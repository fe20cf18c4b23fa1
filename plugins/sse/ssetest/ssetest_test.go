package ssetest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// The streams and their events are examples of the HTML standard, and its rules one by one.
func TestReaderFollowsTheStandard(t *testing.T) {
	t.Parallel()
	for stream, want := range map[string][]ssetest.Event{
		"data: YHOO\ndata: +2\ndata: 10\n\n": {{Name: "message", Data: "YHOO\n+2\n10"}},
		": test stream\n\ndata: first event\nid: 1\n\ndata:second event\nid\n\ndata:  third event\n\n": {
			{ID: "1", Name: "message", Data: "first event"}, {Name: "message", Data: "second event"}, {Name: "message", Data: " third event"},
		},
		"data\n\ndata\ndata\n\ndata:":                  {{Name: "message"}, {Name: "message", Data: "\n"}},
		"\uFEFFdata:test\r\rdata:test\r\n\r\n":         {{Name: "message", Data: "test"}, {Name: "message", Data: "test"}},
		"event: add\ndata: 7\n\nevent: x\n\n":          {{Name: "add", Data: "7"}},
		"id: 1\x00\nid:2\ndata:x\nid: \x00\n\n":        {{ID: "2", Name: "message", Data: "x"}},
		"retry: 10x\nretry: 1000\nother: 7\ndata:\n\n": {{Name: "message"}},
	} {
		in := ssetest.NewReader(strings.NewReader(stream), "")
		for _, want := range want {
			e, err := in.Next()
			require.NoError(t, err, "%q", stream)
			require.Equal(t, want, e, "%q", stream)
		}
		_, err := in.Next()
		require.ErrorIs(t, err, io.EOF, "%q", stream)
		if strings.Contains(stream, "retry") {
			require.Equal(t, time.Second, in.Retry)
		}
	}
}

// answers is a transport that gives one answer per request, and keeps the ids that were sent.
type answers struct {
	list []*answer
	ids  []string
	at   []time.Duration
	from time.Time
}

func (a *answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.ids = append(a.ids, r.Header.Get("Last-Event-ID"))
	a.at = append(a.at, time.Since(a.from))
	next := a.list[0]
	a.list = a.list[1:]
	if next == nil {
		return nil, errors.New("connection refused")
	}
	return &http.Response{
		StatusCode: next.status, Header: http.Header{"Content-Type": {next.kind}}, Body: io.NopCloser(strings.NewReader(next.body)),
	}, nil
}

type answer struct {
	status     int
	kind, body string
}

func TestClientReconnectsAsABrowser(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &answers{from: time.Now(), list: []*answer{
			{200, "text/event-stream; charset=utf-8", "retry: 1000\nid: 1\ndata: a\n\nid: 2\ndata: cut"},
			nil,
			{200, "text/event-stream", "retry: 5000\ndata: b\n\n"},
			{204, "", ""},
		}}
		var got []string
		client := ssetest.Client{URL: "http://hub", HTTP: &http.Client{Transport: a}, Event: func(e ssetest.Event) error {
			got = append(got, e.ID+e.Data)
			return nil
		}}
		require.NoError(t, client.Run(t.Context()))
		require.Equal(t, []string{"1a", "1b"}, got)
		require.Equal(t, []string{"", "1", "1", "1"}, a.ids)
		require.Equal(t, []time.Duration{0, time.Second, 2 * time.Second, 7 * time.Second}, a.at)
	})
}

func TestClientStopsOnEachOtherAnswer(t *testing.T) {
	t.Parallel()
	run := func(a answer, fails error) error {
		client := ssetest.Client{
			URL: "http://hub", HTTP: &http.Client{Transport: &answers{list: []*answer{&a}}},
			Event: func(ssetest.Event) error { return fails },
		}
		return client.Run(t.Context())
	}
	require.EqualError(t, run(answer{503, "text/event-stream", ""}, nil), `the stream was refused: status 503, content type "text/event-stream"`)
	refused, _ := errors.AsType[*ssetest.StatusError](run(answer{410, "application/json", `{"error":"room_closed"}`}, nil))
	require.JSONEq(t, `{"error":"room_closed"}`, string(refused.Body))
	require.EqualError(t, run(answer{200, "text/html", ""}, nil), `the stream was refused: status 200, content type "text/html"`)
	require.EqualError(t, run(answer{200, "text/event-stream", "data: x\n\n"}, errors.New("enough")), "enough")
}

func TestClientEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		client := ssetest.Client{URL: "http://hub", HTTP: &http.Client{Transport: &answers{list: []*answer{nil}}}}
		require.ErrorIs(t, client.Run(ctx), context.DeadlineExceeded)
	})
}
