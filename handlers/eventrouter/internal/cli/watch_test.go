package cli

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// tokens stands for plugins/token, which the command needs to sign.
type tokens struct{}

func (tokens) Name() string                      { return "token" }
func (tokens) Register(*pipeline.Registry) error { return nil }

// watched runs `jobs watch` at a gateway that ends each stream after max_watch, and the job with the last one.
func watched(t *testing.T, last http.HandlerFunc, args ...string) (code int, out string, seen []string) {
	t.Helper()
	gateway := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		if len(seen) == 3 {
			last(w, r)
			return
		}
		fmt.Fprint(w, "retry: 1\n\nevent: closed\ndata: {\"reason\":\"expired\"}\n\n")
	}))
	defer gateway.Close()
	signed := 0
	p := jobs{Deps{
		Settings: func() Settings { return Settings{MaxWatch: time.Hour} }, WebURL: func() string { return gateway.URL },
		Sign: func(jobs []string, _ string, expires time.Time) (string, error) {
			require.Equal(t, []string{"scan/42"}, jobs)
			require.Greater(t, time.Until(expires), 30*time.Minute)
			signed++
			return fmt.Sprint("signed-", signed), nil
		},
	}}
	var text bytes.Buffer
	code = app.Main(t.Context(), app.Options{
		Name: "millrace", Plugins: []pipeline.Plugin{tokens{}, p}, Args: append([]string{"jobs", "watch", "scan/42"}, args...), Environ: []string{}, Stdout: &text, Stderr: &text,
	})
	return code, text.String(), seen
}

func TestAJobIsWatchedForLongerThanMaxWatch(t *testing.T) {
	t.Parallel()
	done := func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, "id: 1.1-0\nevent: event\ndata: {\"domain\":\"scan\",\"job_id\":\"42\",\"stage\":\"done\",\"seq\":1}\n\nevent: closed\ndata: {\"reason\":\"done\"}\n\n")
	}
	code, out, seen := watched(t, done)
	require.Zero(t, code, out)
	require.Contains(t, out, "1  done\n")
	require.Equal(t, []string{"Bearer signed-1", "Bearer signed-2", "Bearer signed-3"}, seen, "each connection has a token for max_watch")

	code, out, seen = watched(t, done, "--token", "given")
	require.Zero(t, code, out)
	require.Equal(t, []string{"Bearer given", "Bearer given", "Bearer given"}, seen)
}

func TestATokenThatHasExpiredEndsTheWatch(t *testing.T) {
	t.Parallel()
	code, out, _ := watched(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"error":"expired","message":"the token has expired"}`)
	}, "--token", "given")
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "the token has expired")
}
