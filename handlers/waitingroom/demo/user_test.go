package demo

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/checker"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// A user who returns to a closed room is told why, and nobody knows it any more when the room was cleared a moment
// later. So the user believes the refusal, and asks only when a stream ended without an answer.
func TestAUserKnowsWhyAStreamWasRefused(t *testing.T) {
	t.Parallel()
	for name, answers := range map[string]struct {
		stream, status int
		asked          bool
	}{
		"a refusal, and the room is cleared": {http.StatusGone, http.StatusNotFound, false},
		"no answer":                          {http.StatusNoContent, http.StatusGone, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := false
			broker := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				status, word := answers.stream, "room_closed"
				if r.URL.Path == "/events/sale/tickets/waiting/status" {
					asked, status = true, answers.status
				}
				if status == http.StatusNotFound {
					word = "unknown_event"
				}
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(status)
				if status != http.StatusNoContent {
					_, _ = w.Write([]byte(`{"error":"` + word + `"}`))
				}
			}))
			defer broker.Close()
			v := &visitor{run: &run{Options: Options{Event: "sale", URL: broker.URL, Client: broker.Client(), Checker: checker.New(checker.Options{})}}, name: "ann"}
			v.Checker.Arrived("ann", checker.Reconnects)
			v.Checker.Closed()
			v.tab(t.Context(), "tab 1")
			report := v.Checker.Report(room.Status{})
			require.Equal(t, 1, report.Unserved, report.Problems)
			require.Equal(t, answers.asked, asked)
		})
	}
}
