package oncehttp

import (
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// answered is a transport whose answers have the status that a test wants.
type answered struct{ status int }

func (a *answered) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: a.status, Body: io.NopCloser(strings.NewReader(`{"id":"in_1","code":"no"}`))}, nil
}

func (*answered) CloseIdleConnections() {}

// An API that refuses every other call has a pair of lines per minute, and the last line is true soon after it stops.
func TestTheLogOfAnAPIThatFlapsIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := DefaultConfig()
		cfg.URL = "http://127.0.0.1:1"
		client := New(&cfg, Mapping{Name: "billing", Receipt: []string{"id"}})
		var log bytes.Buffer
		require.NoError(t, client.Open(slog.New(slog.NewTextHandler(&log, nil))))
		defer client.Close()
		api := &answered{}
		client.opened.Load().transport = api
		call := func(status int) {
			api.status = status
			_ = create(t.Context(), client, 1)
			time.Sleep(time.Second)
		}
		lines := func(text string) int { return strings.Count(log.String(), text) }
		refused, accepted := "the api refuses our credential", "the api accepts our calls again"
		call(200)
		require.Empty(t, log.String(), "all is well")
		call(401)
		call(200)
		require.Equal(t, []int{1, 1}, []int{lines(refused), lines(accepted)}, "one rotation has its pair")
		for range 299 { // ten minutes
			call(401)
			call(200)
		}
		require.Equal(t, []int{10, 10}, []int{lines(refused), lines(accepted)}, log.String())
		require.Contains(t, log.String(), "times=30", "how often it was refused")
		for range 90 {
			call(401)
		}
		all := strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Contains(t, all[len(all)-1], refused)
		require.Equal(t, 11, lines(refused), "a state that lasts is said once")
		for range 90 {
			call(200)
		}
		all = strings.Split(strings.TrimSpace(log.String()), "\n")
		require.Contains(t, all[len(all)-1], accepted)
		require.Equal(t, 11, lines(accepted))
	})
}
