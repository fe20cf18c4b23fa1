package watch_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/watch"
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
		URL: server.URL + "/jobs/scan/j/events", Token: "the-token", LastEventID: after,
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
	require.Equal(t, "Bearer the-token", a.token[0])
}

func TestFollowEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ answer, reason, err string }{
		"the job had ended": {answer: "204", reason: "done"},
		"forbidden":         {answer: "403", err: "403 Forbidden"},
		"an expired token":  {answer: "event: closed\ndata: {\"reason\":\"expired\"}\n\n", err: "the token has expired"},
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
	_, err := watch.Follow(t.Context(), watch.Options{URL: first.URL, Token: "the-token", Message: func(watch.Message) {}})
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
