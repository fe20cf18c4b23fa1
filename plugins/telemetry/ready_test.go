package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// checks is a plugin with readiness checks.
type checks map[string]func(context.Context) error

func (checks) Name() string { return "checks" }

func (c checks) Register(r *pipeline.Registry) error {
	for name, check := range c {
		r.Health(name, check)
	}
	return nil
}

// measured returns a server without a listener whose checks run.
func measured(t *testing.T, c checks) *server {
	t.Helper()
	p := New()
	_, err := pipeline.NewRegistry(pipeline.Env{}, p, c)
	require.NoError(t, err)
	require.NoError(t, p.server.gather())
	t.Cleanup(func() { require.NoError(t, p.server.checking.Stop(context.Background())) })
	p.server.Running()
	synctest.Wait()
	return p.server
}

// atOnce answers a request and proves that the answer waited for nothing.
func atOnce(t *testing.T, h http.HandlerFunc, path string) (int, string) {
	t.Helper()
	began, answer := time.Now(), httptest.NewRecorder()
	h(answer, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	require.Zero(t, time.Since(began), "%s waited", path)
	return answer.Code, answer.Body.String()
}

func (s *server) askReady(t *testing.T) (int, Readiness) {
	t.Helper()
	status, body := atOnce(t, s.ready(func(*probe) bool { return true }), "/readyz?verbose")
	var r Readiness
	require.NoError(t, json.Unmarshal([]byte(body), &r), body)
	return status, r
}

// A check that hangs delays neither answer nor the other checks. It is red when it has had no
// result for three intervals, and green with its next result.
func TestACheckThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		release, runs, others := make(chan struct{}), 0, 0
		s := measured(t, checks{
			"hangs": func(ctx context.Context) error {
				if runs++; runs == 1 {
					return nil
				}
				Detail(ctx, "step", 7)
				<-release // and not ctx.Done
				return nil
			},
			"good": func(context.Context) error { others++; return nil },
		})
		interval := defaultConfig().CheckInterval
		status, r := s.askReady(t)
		require.Equal(t, http.StatusOK, status)
		require.Equal(t, time.Now(), r.Checks["hangs"].Measured.Local())

		time.Sleep(staleAfter * interval)
		status, _ = s.askReady(t)
		require.Equal(t, http.StatusOK, status, "three intervals are not over")
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		status, r = s.askReady(t)
		require.Equal(t, http.StatusServiceUnavailable, status)
		require.Equal(t, "no result since 2000-01-01T00:00:00Z, for 3s: the check has not returned for 2s", r.Checks["hangs"].Error)
		require.InDelta(t, 7, r.Checks["hangs"].Details["step"], 0, "how far the check has come")
		require.True(t, r.Checks["good"].OK)
		_, metrics := atOnce(t, s.serveMetrics, "/metrics")
		require.Contains(t, metrics, `millrace_health_check_ok{check="hangs"} 0`)
		require.Contains(t, metrics, `millrace_health_check_ok{check="good"} 1`)

		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, 2, runs, "one run at a time")
		require.Greater(t, others, int(time.Hour/interval))
		close(release)
		synctest.Wait()
		status, _ = s.askReady(t)
		require.Equal(t, http.StatusOK, status)
	})
}

// Requests run no check, however many there are. They see the last result and its error.
func TestRequestsRunNoCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		s := measured(t, checks{"slow": func(ctx context.Context) error {
			runs++
			<-ctx.Done()
			return errors.New("no answer of the server")
		}})
		_, r := s.askReady(t)
		require.Equal(t, "no result yet: the check has not returned for 0s", r.Checks["slow"].Error)
		time.Sleep(defaultConfig().CheckTimeout)
		synctest.Wait()
		for range 100 {
			status, r := s.askReady(t)
			require.Equal(t, http.StatusServiceUnavailable, status)
			require.Equal(t, "no answer of the server", r.Checks["slow"].Error)
			atOnce(t, s.serveMetrics, "/metrics")
		}
		require.Equal(t, 2, runs, "the second run follows the first, which took longer than an interval")

		s.Draining()
		require.NoError(t, s.checking.Stop(t.Context()))
		time.Sleep(time.Hour)
		require.Equal(t, 2, runs, "no check is started during the drain")
		_, metrics := atOnce(t, s.serveMetrics, "/metrics")
		require.Contains(t, metrics, `millrace_health_check_ok{check="slow"} 0`)
		require.Contains(t, s.probes[0].result(time.Now()).Error, "the check does not run; its last error was: no answer of the server")
	})
}

// Each check that fails is told with its reason, with and without an operations server.
func TestFailedChecks(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := measured(t, checks{
			"good": func(context.Context) error { return nil },
			"bad":  func(context.Context) error { return errors.Join(errors.New("one"), errors.New("two")) },
		})
		want := []operate.Check{{Name: "check bad", Level: operate.Fail, Text: "one; two", Remedy: "repair what it names; the panel of the checks has the details"}}
		require.Equal(t, want, s.plugin.FailedChecks(t.Context()))
		s.http = &http.Server{ReadHeaderTimeout: time.Second}
		require.Equal(t, want, s.plugin.FailedChecks(t.Context()))
		s.Draining()
		require.Empty(t, s.plugin.FailedChecks(t.Context()))
	})
}
