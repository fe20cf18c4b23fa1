package telemetry_test

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// diagnose returns what a command with this address in its settings says about the instance.
func diagnose(t *testing.T, listen string) []operate.Check {
	t.Helper()
	p := telemetry.New()
	settings(t, p).Listen = listen
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	d := operate.Diagnose(t.Context(), operate.Examinations(reg), 2*time.Minute, nil) // the machine may be busy
	require.Empty(t, d.Away, "doctor must not fail because no instance runs")
	for _, c := range d.Checks {
		require.Equal(t, c.Level == operate.OK, c.Remedy == "", c)
	}
	return d.Checks
}

func TestChecksOfARunningInstance(t *testing.T) {
	t.Parallel()
	f := newFeature()
	f.checks["mill"] = func(context.Context) error { return nil }
	base := serve(t, f)
	listen := strings.TrimPrefix(base, "http://")
	ready(t, base)
	require.Equal(t, []operate.Check{{Name: "instance readiness", Level: operate.OK, Text: listen + " is ready, and its 1 checks pass"}}, diagnose(t, listen))
	_, port, err := net.SplitHostPort(listen)
	require.NoError(t, err)
	require.Equal(t, "localhost:"+port+" is ready, and its 1 checks pass", diagnose(t, ":"+port)[0].Text)

	f = newFeature()
	f.checks["mill"] = func(context.Context) error { return errors.New("the wheel stands still") }
	f.checks["river"] = func(context.Context) error { return nil }
	f.own = map[string]func(context.Context) error{"door": func(context.Context) error { return errors.New("it is locked") }}
	base = serve(t, f)
	listen = strings.TrimPrefix(base, "http://")
	ready(t, base)
	checks := diagnose(t, listen)
	require.Len(t, checks, 2, "%v", checks)
	for i, want := range []string{"instance door: " + listen + " says: it is locked; ", "instance mill: " + listen + " says: the wheel stands still; "} {
		require.Equal(t, operate.Fail, checks[i].Level)
		require.True(t, strings.HasPrefix(checks[i].String(), want), checks[i].String())
	}
}

func TestChecksWithoutAnInstance(t *testing.T) {
	t.Parallel()
	answers := func(status int, body string) string {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		}))
		t.Cleanup(s.Close)
		return strings.TrimPrefix(s.URL, "http://")
	}
	for name, tc := range map[string]struct {
		listen string
		level  operate.Level
		text   string
	}{
		"nothing listens":   {"127.0.0.1:1", operate.OK, "none runs at 127.0.0.1:1"},
		"no server":         {"", operate.OK, `not asked, because plugins.telemetry.listen is ""`},
		"any free port":     {"127.0.0.1:0", operate.OK, `not asked, because plugins.telemetry.listen is "127.0.0.1:0"`},
		"it starts":         {answers(http.StatusServiceUnavailable, `{"ready": false, "phase": "starting", "checks": {"a": {"ok": false, "error": "no result yet"}}}`), operate.Warn, " is starting"},
		"another service":   {answers(http.StatusNotFound, "no such page"), operate.Warn, "does not tell its readiness: /readyz answered 404 Not Found"},
		"another page":      {answers(http.StatusOK, "<html>"), operate.Warn, "the answer of /readyz is no readiness"},
		"another readiness": {answers(http.StatusOK, `{"status": "UP"}`), operate.Warn, "the answer of /readyz is no readiness: it has no phase"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			checks := diagnose(t, tc.listen)
			require.Len(t, checks, 1, "%v", checks)
			require.Equal(t, tc.level, checks[0].Level)
			require.Contains(t, checks[0].String(), tc.text)
		})
	}
}
