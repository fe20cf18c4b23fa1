package console_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// routed is a plugin with a route.
type routed struct {
	route string
	from  pipeline.Source
}

func (routed) Name() string { return "routed" }

func (p routed) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: p.route, From: p.from, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

// A person pauses a route with the form of its row, sees why it stands still on the same page, and resumes it. A program
// does the same.
func TestARouteIsPausedInTheConsole(t *testing.T) {
	t.Parallel()
	server := redis.New()
	server.Settings().(*redis.Config).Addrs = []string{redistest.Mini(t).Addr}
	r := start(t, nil, server, routed{"invoices", server.Source("in", "g")})
	home := r.get("/")
	require.Contains(t, home, `<a href="/actions/routes/pause">routes pause</a>`)
	require.Contains(t, home, `<a href="/actions/routes/resume">routes resume</a>`)
	require.Contains(t, home, "nothing is paused")

	answer, text := r.post("/actions/routes/pause", url.Values{"step": {"preview"}, "in.route": {"invoice"}})
	require.Equal(t, http.StatusBadRequest, answer.StatusCode)
	require.Contains(t, text, "no route has the name &#34;invoice&#34;; the routes are invoices")
	require.Regexp(t, `<input id="in-route"[^>]* aria-invalid="true">`, text)

	confirm, text := r.previewed("/actions/routes/pause", url.Values{"in.route": {"invoices"}})
	require.Contains(t, text, "Would pause invoices, within 5s on every instance that runs")
	require.False(t, server.RoutePaused("invoices"))
	confirm.Set("why", "the shop moves")
	answer, text = r.post("/actions/routes/pause", confirm)
	require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
	require.Contains(t, r.get(answer.Header.Get("Location")), "Paused invoices")
	require.True(t, server.RoutePaused("invoices"))

	r.eventually("the page says so, and its graph", func() bool { // each panel is read by itself
		home = r.get("/")
		return !strings.Contains(home, "nothing is paused") && strings.Contains(home, "<title>route invoices, warn: route invoices: paused since")
	})
	require.Regexp(t, `paused since 20\S+Z, for \S+, by anonymous \(console\), because: the shop moves`, home)
	require.Contains(t, home, "resume it when it may go on (routes resume invoices)")

	status, done := r.send("routes/resume", `{"input":{"route":"invoices"},"dry_run":true}`)
	require.Equal(t, http.StatusOK, status)
	outcome := done["outcome"].(map[string]any)
	require.Equal(t, []any{"invoices", true, true, true, "the shop moves"}, []any{outcome["route"], outcome["dry_run"], outcome["paused"], outcome["changed"], outcome["why"]})
	status, done = r.send("routes/resume", `{"input":{"route":"invoices"},"why":"it has moved"}`)
	require.Equal(t, http.StatusOK, status)
	outcome = done["outcome"].(map[string]any)
	require.Equal(t, []any{"invoices", nil, false, true, "anonymous (API)", "it has moved"},
		[]any{outcome["route"], outcome["dry_run"], outcome["paused"], outcome["changed"], outcome["who"], outcome["why"]})
	require.False(t, server.RoutePaused("invoices"))
	r.eventually("the page says so", func() bool { return strings.Contains(r.get("/"), "nothing is paused") })

	audit := r.get("/audit")
	for _, part := range []string{"Routes", "pause", "resume", "the shop moves", "it has moved"} {
		require.Contains(t, audit, part)
	}
}
