package watch_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/watch"
	"github.com/millrace-io/millrace/plugins/sse"
)

// answers serves one answer per request, and keeps what the requests had.
type answers struct {
	list   []string // a status in three digits, or the text of a stream
	cursor []string // Last-Event-ID
	token  []string
}

func (a *answers) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i := len(a.cursor)
	a.cursor, a.token = append(a.cursor, r.Header.Get("Last-Event-ID")), append(a.token, r.Header.Get("Authorization"))
	var status int
	if n, _ := fmt.Sscanf(a.list[i], "%3d", &status); n == 1 {
		w.WriteHeader(status)
	}
	fmt.Fprint(w, a.list[i])
}

const begin = "retry: 1\n\n: comment\n\n"

func follow(t *testing.T, a *answers, after string) (messages []string, reconnects []string, reason string, err error) {
	t.Helper()
	server := httptest.NewServer(a)
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	reason, err = watch.Follow(ctx, watch.Options{
		URL: server.URL + "/jobs/scan/j/events", LastEventID: after,
		Token: func() string { return fmt.Sprint("token-", len(a.token)) },
		Message: func(m watch.Message) {
			messages = append(messages, fmt.Sprintf("%s %s %s", m.ID, m.Name, m.Data))
		},
		Disconnected: func(reason error, _ time.Duration) { reconnects = append(reconnects, reason.Error()) },
	})
	return messages, reconnects, reason, err
}

func TestFollowContinuesAfterTheLastNumber(t *testing.T) {
	t.Parallel()
	a := &answers{list: []string{
		begin + "event: busy\ndata: {\"reason\":\"full\"}\n\n",
		begin + "id: 1\nevent: event\ndata: {\"seq\":1,\ndata: \"stage\":\"a\"}\n\nid: 2\r\nevent: event\r\ndata: {}\r\n\r\nevent: transient\ndata: {}\n\nid: 3\nevent: event\ndata: {}",
		begin + "event: closed\ndata: {\"reason\":\"draining\"}\n\n",
		"503",
		begin + "id: 3\nevent: event\ndata: {\"stage\":\"error\"}\n\nevent: closed\ndata: {\"reason\":\"error\"}\n\nid: 4\nevent: event\ndata: {}\n\n",
	}}
	messages, reconnects, reason, err := follow(t, a, "")
	require.NoError(t, err)
	require.Equal(t, "error", reason)
	require.Equal(t, []string{
		` busy {"reason":"full"}`, "1 event {\"seq\":1,\n\"stage\":\"a\"}", "2 event {}", " transient {}", ` closed {"reason":"draining"}`,
		`3 event {"stage":"error"}`, ` closed {"reason":"error"}`,
	}, messages)
	require.Equal(t, []string{"the gateway is busy: full", "unexpected EOF", "the gateway closed the stream: draining", "503 Service Unavailable"}, reconnects)
	require.Equal(t, []string{"", "", "2", "2", "2"}, a.cursor, "an incomplete message does not count")
	require.Equal(t, []string{"Bearer token-0", "Bearer token-1", "Bearer token-2", "Bearer token-3", "Bearer token-4"}, a.token, "each connection has its own")
}

func TestFollowEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ answer, reason, err string }{
		"the job had ended": {answer: "204", reason: "done"},
		"forbidden":         {answer: "403", err: "403 Forbidden"},
		"no token":          {answer: "401", err: "401 Unauthorized"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := &answers{list: []string{tc.answer}}
			_, reconnects, reason, err := follow(t, a, "7.1732662934123-0")
			require.Empty(t, reconnects)
			require.Equal(t, []string{"7.1732662934123-0"}, a.cursor)
			require.Equal(t, tc.reason, reason)
			if tc.err == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, watch.ErrRefused)
			require.ErrorContains(t, err, tc.err)
		})
	}
}

const expired = begin + "event: closed\ndata: {\"reason\":\"expired\"}\n\n"

// A gateway ends each stream after max_watch. Whether the token has ended too is known when the next request is refused.
func TestFollowGoesOnAfterMaxWatch(t *testing.T) {
	t.Parallel()
	a := &answers{list: []string{
		begin + "id: 2\nevent: event\ndata: {}\n\n" + expired,
		begin + "id: 3\nevent: event\ndata: {\"stage\":\"done\"}\n\nevent: closed\ndata: {\"reason\":\"done\"}\n\n",
	}}
	_, reconnects, reason, err := follow(t, a, "")
	require.NoError(t, err)
	require.Equal(t, "done", reason)
	require.Equal(t, []string{"the gateway closed the stream: expired"}, reconnects)
	require.Equal(t, []string{"", "2"}, a.cursor)
	require.Equal(t, []string{"Bearer token-0", "Bearer token-1"}, a.token)
}

func TestFollowEndsWhenItsTokenHasExpired(t *testing.T) {
	t.Parallel()
	a := &answers{list: []string{expired, `401 {"error":"expired","message":"the token has expired"}`}}
	_, reconnects, _, err := follow(t, a, "")
	require.ErrorIs(t, err, watch.ErrRefused)
	require.ErrorContains(t, err, "the token has expired")
	require.Len(t, reconnects, 1)
}

// transport answers without a network, so that a test has its own time.
type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A gateway or a proxy that hangs may keep a connection open. The heartbeats are as far apart as the settings allow.
func TestFollowNoticesASilentStream(t *testing.T) {
	t.Parallel()
	hub := sse.New()
	settings := hub.Settings().(*sse.Config)
	settings.Heartbeat = time.Minute
	require.NoError(t, settings.Validate())
	settings.Heartbeat++
	require.Error(t, settings.Validate())
	settings.Heartbeat--
	for name, hangs := range map[string]bool{"a stream": false, "a request": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const beats = 600
				requests, begun := 0, time.Now()
				client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
					if requests++; requests > 1 {
						return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody}, nil
					}
					if hangs {
						<-r.Context().Done()
						return nil, r.Context().Err()
					}
					body, stream := io.Pipe()
					context.AfterFunc(r.Context(), func() { stream.CloseWithError(r.Context().Err()) })
					go func() {
						for range beats {
							time.Sleep(settings.Heartbeat)
							fmt.Fprint(stream, "event: heartbeat\ndata: {}\n\n") // a stream that is over fails the test below
						}
					}()
					return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
				})}
				var lost []string
				var after time.Duration
				reason, err := watch.Follow(t.Context(), watch.Options{
					URL: "http://gateway.invalid", Client: client, Message: func(watch.Message) {},
					Disconnected: func(reason error, _ time.Duration) {
						lost, after = append(lost, reason.Error()), time.Since(begun)
					},
				})
				require.NoError(t, err)
				require.Equal(t, "done", reason)
				require.Equal(t, []string{"nothing has arrived for 2m5s"}, lost)
				expected := hub.Silence()
				if !hangs {
					expected += beats * settings.Heartbeat
				}
				require.Equal(t, expected, after)
			})
		})
	}
}

// A receiver that is slow, such as a pager, is no silence of the gateway.
func TestASlowReceiverIsNoSilence(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const messages = "event: event\ndata: {}\n\nevent: event\ndata: {}\n\nevent: closed\ndata: {\"reason\":\"done\"}\n\n"
		client := &http.Client{Transport: transport(func(r *http.Request) (*http.Response, error) {
			body, stream := io.Pipe()
			context.AfterFunc(r.Context(), func() { stream.CloseWithError(r.Context().Err()) })
			go func() {
				for message := range strings.SplitAfterSeq(messages, "\n\n") {
					fmt.Fprint(stream, message) // a stream that is over fails the test below
				}
			}()
			return &http.Response{StatusCode: http.StatusOK, Body: body}, nil
		})}
		reason, err := watch.Follow(t.Context(), watch.Options{
			URL: "http://gateway.invalid", Client: client, Message: func(watch.Message) { time.Sleep(time.Hour) },
			Disconnected: func(reason error, _ time.Duration) { require.Fail(t, "the stream was lost", reason) },
		})
		require.NoError(t, err)
		require.Equal(t, "done", reason)
	})
}

func TestFollowEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := watch.Follow(ctx, watch.Options{URL: "http://127.0.0.1:1", Message: func(watch.Message) {}, Disconnected: func(error, time.Duration) { cancel() }})
	require.ErrorIs(t, err, context.Canceled)
}

// A caller shows the error to people, and the address may have the token.
func TestAnErrorHasNoAddress(t *testing.T) {
	t.Parallel()
	_, err := watch.Follow(t.Context(), watch.Options{URL: "http://ann:p4ss@[::1/hidden?token=t", Message: func(watch.Message) {}})
	require.ErrorIs(t, err, watch.ErrRefused)
	require.NotContains(t, err.Error(), "p4ss")
	require.NotContains(t, err.Error(), "hidden")
}

// The watch token stays with the configured address.
func TestARedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	other := &answers{list: []string{"204"}}
	elsewhere := httptest.NewServer(other)
	defer elsewhere.Close()
	first := httptest.NewServer(http.RedirectHandler(elsewhere.URL, http.StatusFound))
	defer first.Close()
	_, err := watch.Follow(t.Context(), watch.Options{URL: first.URL, Token: func() string { return "the-token" }, Message: func(watch.Message) {}})
	require.ErrorIs(t, err, watch.ErrRefused)
	require.ErrorContains(t, err, "302")
	require.Empty(t, other.token)
}

func TestTheNumberOfAnID(t *testing.T) {
	t.Parallel()
	for id, want := range map[string]int64{"37.1732662934123-0": 37, "40.1732662934123-0.37": 40, "7": 7, "": 0, "x": 0, "abcd:7.1-0,efgh:8.1-0": 0} {
		require.Equal(t, want, watch.Message{ID: id}.Number(), id)
	}
}
