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
	return examine(t, pipeline.Env{}, p)
}

// examine is diagnose for other settings and plugins.
func examine(t *testing.T, env pipeline.Env, plugins ...pipeline.Plugin) []operate.Check {
	t.Helper()
	reg, err := pipeline.NewRegistry(env, plugins...)
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
	for _, all := range []string{"", "0.0.0.0", "[::]"} {
		require.Equal(t, "127.0.0.1:"+port+" is ready, and its 1 checks pass", diagnose(t, all+":"+port)[0].Text, "no name is resolved")
	}

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

func TestAnInstanceWithoutIPv4IsAsked(t *testing.T) {
	t.Parallel()
	if l, err := net.Listen("tcp", "[::1]:0"); err != nil {
		t.Skipf("needs IPv6: %v", err)
	} else {
		require.NoError(t, l.Close())
	}
	base := serve(t, newFeature(), func(c *telemetry.Config) { c.Listen = "[::1]:0" })
	ready(t, base)
	_, port, err := net.SplitHostPort(strings.TrimPrefix(base, "http://"))
	require.NoError(t, err)
	require.Equal(t, "[::1]:"+port+" is ready, and its 0 checks pass", diagnose(t, ":"+port)[0].Text)
}

// knowing knows of trouble.
type knowing []operate.Condition

func (k knowing) Conditions() []operate.Condition { return k }

// What the plugins of an instance know is told to commands on the same machine. It decides nothing about readiness.
func TestConditionsOfARunningInstance(t *testing.T) {
	t.Parallel()
	f := newFeature()
	f.checks["mill"] = func(context.Context) error { return nil }
	down := operate.Condition{
		Check: operate.Check{Name: "API", Level: operate.Fail, Text: "it is not called", Remedy: "ask who runs it"},
		Place: pipeline.ServerOf("https://api.example"), Page: "effects",
	}
	f.offer = knowing{down, {Check: operate.Check{Name: "other API", Level: operate.OK, Text: "it answers"}}}
	base := serve(t, f)
	status, _ := ready(t, base)
	require.Equal(t, http.StatusOK, status)
	_, body := get(t, base+"/readyz")
	require.NotContains(t, body, "it is not called")
	for _, query := range []string{"?verbose", "?conditions"} {
		_, body = get(t, base+"/readyz"+query)
		require.Contains(t, body, `"text": "it is not called"`)
	}

	listen := strings.TrimPrefix(base, "http://")
	checks := diagnose(t, listen)
	require.Len(t, checks, 2, "what is in order has no line")
	require.Equal(t, "instance API: it is not called; ask who runs it", checks[1].String())
	p := telemetry.New()
	settings(t, p).Listen = listen
	_, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	all, instance, err := p.ReadConditions(t.Context())
	require.NoError(t, err)
	require.Equal(t, listen, instance)
	require.Equal(t, down, all[0])
	require.Len(t, all, 2)

	settings(t, p).Listen = "127.0.0.1:0"
	_, _, err = p.ReadConditions(t.Context())
	require.EqualError(t, err, `plugins.telemetry.listen is "127.0.0.1:0", which names no port`)
	settings(t, p).Listen = "127.0.0.1:1"
	_, _, err = p.ReadConditions(t.Context())
	require.EqualError(t, err, "none runs at 127.0.0.1:1 (plugins.telemetry.listen)")
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

// Work goes on without a collector, so one that is not reached is a warning. It gets no request.
func TestChecksOfTheCollector(t *testing.T) {
	t.Parallel()
	c := newCollector(t)
	p := telemetry.New()
	settings(t, p).Listen, settings(t, p).OTLPEndpoint = "127.0.0.1:0", c.URL+"/v1/traces"
	collector := func() operate.Check {
		t.Helper()
		for _, check := range examine(t, pipeline.Env{}, p) {
			if check.Name == "traces "+c.URL+" connection" {
				return check
			}
		}
		t.Fatal("it is not examined")
		return operate.Check{}
	}
	require.Equal(t, operate.OK, collector().Level)
	c.Close() // once it has read all
	path, _ := c.received()
	require.Empty(t, path)
	require.Equal(t, operate.Warn, collector().Level)
	require.Contains(t, collector().Text, "connection refused")
}
