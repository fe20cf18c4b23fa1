package httpclient_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// The trace of a request goes on at the API. The token endpoint gets none, because many requests share a token.
func TestTheTraceOfARequestGoesOn(t *testing.T) {
	t.Parallel()
	var fetches atomic.Int64
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fetches.Add(1)
		if got := r.Header.Get("Traceparent"); got != "" {
			w.WriteHeader(http.StatusTeapot)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"access_token":"first","token_type":"Bearer","expires_in":600}`)
	}))
	defer tokens.Close()
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.Header.Get("Traceparent")+" "+r.Header.Get("Tracestate"))
	}))
	defer api.Close()

	for name, c := range map[string]httpclient.Config{
		"without a token": {},
		"with a token":    {OAuth2: httpclient.OAuth2{TokenURL: tokens.URL, ClientID: "millrace", ClientSecret: setting.NewSecret("s3cret")}},
	} {
		transport, err := httpclient.NewTransport(c, nil, "api", nil)
		require.NoError(t, err)
		t.Cleanup(transport.CloseIdleConnections)
		client := &http.Client{Transport: transport}

		got, err := ask(t.Context(), client, api.URL)
		require.NoError(t, err, name)
		require.Equal(t, "200  ", got, "%s: no trace", name)

		state, err := trace.ParseTraceState("vendor=value")
		require.NoError(t, err)
		ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
			TraceID: trace.TraceID{0xab, 15: 1}, SpanID: trace.SpanID{7: 2}, TraceFlags: trace.FlagsSampled, TraceState: state,
		}))
		const theirs = "00-ab000000000000000000000000000001-0000000000000002-01"
		got, err = ask(ctx, client, api.URL)
		require.NoError(t, err, name)
		require.Equal(t, "200 "+theirs+" vendor=value", got, name)

		r, err := http.NewRequestWithContext(ctx, http.MethodGet, api.URL, http.NoBody)
		require.NoError(t, err)
		answer, err := transport.RoundTrip(r)
		require.NoError(t, err, name)
		require.NoError(t, answer.Body.Close())
		require.Empty(t, r.Header, "%s: the request is not changed", name)

		r.Header.Set("Traceparent", "of the caller")
		answer, err = transport.RoundTrip(r)
		require.NoError(t, err, name)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err, name)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, "of the caller ", string(text), name)
	}
	require.EqualValues(t, 1, fetches.Load())
}
