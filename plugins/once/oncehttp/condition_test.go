package oncehttp_test

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// The client says since when it calls nothing, the last answer, and when it tries again, until the API answers.
func TestAnAPIThatIsDownSaysWhy(t *testing.T) {
	t.Parallel()
	far := newFarSide(t).answers(`500 {"code":"database_down"}`)
	client := newClient(t, far.URL, quickBreaker)
	require.Empty(t, client.Conditions(), "nobody knows before the first call")
	for range 3 {
		post(t.Context(), client, another())
	}
	all := client.Conditions()
	require.Len(t, all, 1)
	require.Equal(t, pipeline.ServerOf(far.URL), all[0].Place)
	require.Equal(t, operate.Fail, all[0].Level)
	require.Equal(t, "API billing", all[0].Name)
	require.NotContains(t, all[0].Text, "since 0001-")
	require.Regexp(t, `^it is not called since \d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ, for \S+, because its calls failed \(the breaker is open\); `+
		`the last answer: .*database_down.*; the next call, in \S+, finds out whether it works again$`, all[0].Text)

	client = newClient(t, far.URL, soonProbed)
	for metric(t, client, breakerState) == 0 {
		post(t.Context(), client, another())
	}
	far.works()
	require.Eventually(t, client.Ready, 2*time.Minute, time.Millisecond)
	require.Equal(t, operate.Fail, client.Conditions()[0].Level, "nobody has called since")
	require.Equal(t, once.Done, post(t.Context(), client, another()).Class)
	require.Equal(t, []operate.Condition{{Place: pipeline.ServerOf(far.URL), Check: operate.Check{Name: "API billing", Level: operate.OK, Text: "it answers"}}}, client.Conditions())
	require.NoError(t, client.Close())
	require.Empty(t, client.Conditions(), "after its end")
}

// One effect that always fails is a warning, because the breaker lets the others be called.
func TestAnEffectThatAlwaysFailsIsAWarning(t *testing.T) {
	t.Parallel()
	far := newFarSide(t).answers(failed)
	client := newClient(t, far.URL, nil)
	key := another()
	for range 2 {
		post(t.Context(), client, key)
	}
	require.Empty(t, client.Conditions())
	post(t.Context(), client, key)
	require.Equal(t, operate.Warn, client.Conditions()[0].Level)
	require.Contains(t, client.Conditions()[0].Text, "no call has succeeded since ")
}

// An API that takes calls and does not answer them is a warning before the first of them has failed.
func TestAnAPIThatHangsIsAWarning(t *testing.T) {
	t.Parallel()
	seen, ended := make(chan struct{}), make(chan struct{})
	hanging := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-seen }))
	t.Cleanup(func() { close(seen); <-ended; hanging.Close() })
	client := newClient(t, hanging.URL, func(cfg *oncehttp.Config) { cfg.CallTimeout = time.Second })
	go func() {
		defer close(ended)
		for again := true; again; {
			post(t.Context(), client, another())
			select {
			case <-seen:
				again = false
			default:
			}
		}
	}()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(client.Conditions(), func(c operate.Condition) bool {
			return c.Level == operate.Warn && c.Place == pipeline.ServerOf(hanging.URL) && strings.Contains(c.Text, "1 of 1 calls in flight: no answer yet")
		})
	}, 2*time.Minute, time.Millisecond)
}

// Each cause is a condition of its own.
func TestAnAPIWithSeveralTroubles(t *testing.T) {
	t.Parallel()
	far := newFarSide(t).answers(unauthorized)
	client := newClient(t, far.URL, quickBreaker)
	for range 3 {
		post(t.Context(), client, another())
	}
	all := client.Conditions()
	require.Len(t, all, 2)
	require.Contains(t, all[0].Text, "the breaker is open")
	const last = "; nothing is lost meanwhile, and calls begin again by themselves"
	require.Equal(t, "correct the credential, its permission or the url in the settings"+last, all[0].Remedy)
	require.Contains(t, all[1].Text, "it refuses our credential, our permission or the address; its answer: ")

	limited := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "3600")
		http.Error(w, `{"code":"slow_down"}`, http.StatusTooManyRequests)
	}))
	t.Cleanup(limited.Close)
	client = newClient(t, limited.URL, func(cfg *oncehttp.Config) {
		quickBreaker(cfg)
		cfg.MaxRetryAfter = time.Hour
	})
	for range 3 {
		post(t.Context(), client, another())
	}
	all = client.Conditions()
	require.Len(t, all, 1)
	require.Equal(t, operate.Warn, all[0].Level)
	require.Contains(t, all[0].Text, "it asks for fewer calls, so none is sent for ")
}

// What to do about an API depends on whether its url leads to it.
func TestAWrongURLIsCorrectedInTheSettings(t *testing.T) {
	t.Parallel()
	const last = "; nothing is lost meanwhile, and calls begin again by themselves"
	for _, url := range []string{"http://127.0.0.1:1", "https://" + strings.TrimPrefix(newFarSide(t).URL, "http://")} { // nobody listens, or without TLS
		client := newClient(t, url, quickBreaker)
		for range 3 {
			post(t.Context(), client, another())
		}
		all := client.Conditions()
		require.Len(t, all, 1)
		require.Equal(t, "correct its address in the settings, or let this machine reach it: doctor connects to it and says what is wrong"+last, all[0].Remedy, all[0].Text)
	}
	client := newClient(t, newFarSide(t).answers(failed).URL, quickBreaker)
	for range 3 {
		post(t.Context(), client, another())
	}
	require.Equal(t, "ask who runs it"+last, client.Conditions()[0].Remedy)
}

// A refused credential has one cause and one remedy: nobody who runs the API can help.
func TestARefusedCredentialIsSaidOnce(t *testing.T) {
	t.Parallel()
	far := newFarSide(t).answers(`401 {"code":"bad_token"}`)
	client := newClient(t, far.URL, nil)
	for range 3 {
		post(t.Context(), client, another())
	}
	all := client.Conditions()
	require.Len(t, all, 1, "%v", all)
	require.Equal(t, operate.Fail, all[0].Level)
	require.Contains(t, all[0].Text, "it refuses our credential")
	require.Contains(t, all[0].Text, "bad_token")
	require.Equal(t, "correct the credential, its permission or the url in the settings", all[0].Remedy)
}
