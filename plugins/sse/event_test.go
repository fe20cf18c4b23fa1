package sse

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

// FuzzEvent writes two events with the same content around a third one, and reads them back.
func FuzzEvent(f *testing.F) {
	for _, text := range []string{"", "a", " a", "a\nb", "a\r\n\r\nb\r", "\n", "a:b", ":", "\x00", "\xff", "data: x\n\nevent: y", "\uFEFF", "é\u2028"} {
		f.Add(text, "event", "data")
		f.Add("7", text, "data")
		f.Add("7", "event", text)
	}
	f.Fuzz(func(t *testing.T, id, name, data string) {
		e := Event{ID: id, Name: name, Data: []byte(data)}
		wire := bytes.Join([][]byte{retry(1, 2), {'\n'}, e.encode(), Event{ID: "between"}.encode(), e.Prepare().Prepare().frame}, nil)
		valid := func(text string) string { return string([]rune(text)) }
		want := ssetest.Event{
			Name: valid(strings.NewReplacer("\n", " ", "\r", " ").Replace(name)),
			Data: valid(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(data)),
		}
		if !strings.ContainsAny(id, "\r\n\x00") {
			want.ID = valid(id)
		}
		if want.Name == "" {
			want.Name = "message"
		}
		later := want
		if want.ID == "" {
			later.ID = "between"
		}
		in := ssetest.NewReader(iotest.OneByteReader(bytes.NewReader(wire)), "")
		for _, want := range []ssetest.Event{want, {ID: "between", Name: "message"}, later} {
			got, err := in.Next()
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		_, err := in.Next()
		require.Error(t, err)
	})
}

func TestTheHeaderLastEventIDWinsOverTheQuery(t *testing.T) {
	t.Parallel()
	for want, tt := range map[string]struct{ query, header string }{
		"": {}, "1": {"?last_event_id=1", ""}, "2": {"?last_event_id=1", "2"}, "3": {"", "3"},
	} {
		r := httptest.NewRequest(http.MethodGet, "/"+tt.query, nil)
		r.Header.Set("Last-Event-ID", tt.header)
		require.Equal(t, want, LastEventID(r))
	}
}

func TestBusyIsAStreamOfOneEvent(t *testing.T) {
	t.Parallel()
	w := httptest.NewRecorder()
	Busy(w, `full "now"`)
	require.Equal(t, 200, w.Code)
	require.Equal(t, "text/event-stream", w.Header().Get("Content-Type"))
	in := ssetest.NewReader(w.Body, "")
	e, err := in.Next()
	require.NoError(t, err)
	require.Equal(t, ssetest.Event{Name: "busy", Data: `{"reason":"full \"now\""}`}, e)
	require.GreaterOrEqual(t, in.Retry.Seconds(), 5.0)
	require.LessOrEqual(t, in.Retry.Seconds(), 30.0)
}
