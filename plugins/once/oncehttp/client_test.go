package oncehttp_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// quickBreaker opens at the third key that fails, and stays open for longer than any test.
func quickBreaker(cfg *oncehttp.Config) {
	cfg.Breaker = oncehttp.BreakerConfig{FailureRatio: 1, MinCalls: 3, Window: time.Hour, OpenDelay: time.Hour, HalfOpenSuccesses: 1}
}

// soonProbed is a quickBreaker that soon lets a probe through.
func soonProbed(cfg *oncehttp.Config) {
	quickBreaker(cfg)
	cfg.Breaker.OpenDelay = 50 * time.Millisecond
}

func TestBreakerStopsCallsAndLetsThemThroughAgain(t *testing.T) {
	t.Parallel()
	far := newFarSide(t).answers(failed)
	client := newClient(t, far.URL, quickBreaker)
	for range 3 {
		require.True(t, client.Ready())
		require.Equal(t, once.Unclear, post(t.Context(), client, another()).Class)
	}
	require.False(t, client.Ready())
	a := post(t.Context(), client, another())
	require.Equal(t, once.NotSent, a.Class)
	require.EqualError(t, a.Err, "breaker open")
	require.Positive(t, a.RetryAfter)
	require.True(t, a.General, "so the kind waits that long, and not only this effect")
	require.EqualValues(t, 3, far.requests.Load())
	require.Equal(t, 2.0, metric(t, client, breakerState), "open")

	client = newClient(t, far.URL, soonProbed)
	for metric(t, client, breakerState) == 0 {
		post(t.Context(), client, another())
	}
	far.works()
	require.Eventually(t, client.Ready, 2*time.Minute, time.Millisecond, "by itself")
	require.Equal(t, once.Done, post(t.Context(), client, another()).Class)
	require.Zero(t, metric(t, client, breakerState))
}

func TestRefusedConnectionsOpenTheBreakerToo(t *testing.T) {
	t.Parallel()
	client := newClient(t, "http://127.0.0.1:1", quickBreaker)
	for range 3 {
		require.Equal(t, once.NotSent, post(t.Context(), client, another()).Class)
	}
	require.False(t, client.Ready())
}

// A caller that goes away says nothing about the API: a shutdown must not open the breaker.
func TestCancelledCallsDoNotOpenTheBreaker(t *testing.T) {
	t.Parallel()
	reached := make(chan struct{}, 6)
	s := newRawServer(t, func(_ int, c *net.TCPConn) {
		in := bufio.NewReader(c)
		if _, _, err := readRequest(in); err == nil {
			reached <- struct{}{}
			io.Copy(io.Discard, in)
		}
	})
	client := newClient(t, s.url(), quickBreaker)
	for n := range 6 {
		ctx, cancel := context.WithCancel(t.Context())
		answer := make(chan once.Answer, 1)
		go func() { answer <- post(ctx, client, another()) }()
		select {
		case <-reached:
		case a := <-answer: // a call that is not sent must end the test, not stop it
			require.Fail(t, "not sent", "call %d: %s: %s", n, a.Class, a.Text)
		}
		cancel()
		require.Equal(t, once.Unclear, (<-answer).Class)
	}
	require.True(t, client.Ready())
}

// throttler answers 429 to the selected keys, and does the others.
func throttler(t *testing.T, throttled func(key string) bool) (url string, requests *atomic.Int32) {
	requests = new(atomic.Int32)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if throttled(r.Header.Get("Idempotency-Key")) {
			w.Header().Set("Retry-After", "3600")
			w.WriteHeader(http.StatusTooManyRequests)
			io.WriteString(w, `{"code":"throttled","message":"later"}`)
			return
		}
		io.WriteString(w, `{"id":"t-1"}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

// A Retry-After delays its effect, and all calls only when several effects received one.
func TestRetryAfterOfSeveralEffectsHoldsAllCalls(t *testing.T) {
	t.Parallel()
	var all atomic.Bool
	url, requests := throttler(t, func(key string) bool { return key == "invoice:acme:2" || all.Load() })
	client := newClient(t, url, func(cfg *oncehttp.Config) { cfg.MaxRetryAfter = time.Minute })
	for range 5 {
		a := post(t.Context(), client, "invoice:acme:2")
		require.Equal(t, once.Throttled, a.Class)
		require.Equal(t, time.Minute, a.RetryAfter, "capped")
		require.False(t, a.General)
		require.True(t, client.Ready(), "one effect never stops the others")
		require.Equal(t, once.Done, post(t.Context(), client, another()).Class)
	}
	all.Store(true)
	for n := 0; client.Ready(); n++ {
		require.Less(t, n, 30)
		require.Equal(t, once.Throttled, post(t.Context(), client, another()).Class)
	}
	require.Positive(t, metric(t, client, throttledSeconds))
	sent := requests.Load()
	for _, a := range []once.Answer{post(t.Context(), client, another()), find(t.Context(), client, "invoice:acme:3")} {
		require.Equal(t, once.NotSent, a.Class)
		require.EqualError(t, a.Err, "a Retry-After holds")
		require.Positive(t, a.RetryAfter)
		require.True(t, a.General, "so the kind waits that long, and not only this effect")
		require.LessOrEqual(t, a.RetryAfter, time.Minute)
		require.Zero(t, a.Status)
	}
	require.Equal(t, sent, requests.Load())
	require.Zero(t, metric(t, client, breakerState))

	client = newClient(t, url, func(cfg *oncehttp.Config) { cfg.MaxRetryAfter = 300 * time.Millisecond })
	for metric(t, client, throttledSeconds) == 0 {
		require.Equal(t, once.Throttled, post(t.Context(), client, another()).Class)
	}
	require.Eventually(t, client.Ready, 2*time.Minute, time.Millisecond)
	all.Store(false)
	require.Equal(t, once.Done, post(t.Context(), client, another()).Class)
}

// A caller that waits for its slot while others are throttled gets it, and its call is not sent.
func TestRetryAfterHoldsBackACallThatWaitedForASlot(t *testing.T) {
	t.Parallel()
	var requests atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		w.WriteHeader(http.StatusTooManyRequests)
	}))
	defer s.Close()
	client := newClient(t, s.URL, func(cfg *oncehttp.Config) {
		cfg.Concurrency, cfg.DefaultRetryAfter, cfg.Breaker.MinCalls = 1, time.Minute, 3
	})
	release, err := client.Slot(t.Context())
	require.NoError(t, err)
	fourth := make(chan once.Answer, 1)
	go func() {
		release, err := client.Slot(t.Context())
		if err != nil {
			fourth <- once.Answer{Err: err}
			return
		}
		defer release()
		fourth <- post(t.Context(), client, another())
	}()
	for range 3 {
		require.Equal(t, once.Unrecognized, post(t.Context(), client, another()).Class)
	}
	release()
	a := <-fourth
	require.Equal(t, once.NotSent, a.Class)
	require.EqualError(t, a.Err, "a Retry-After holds")
	require.EqualValues(t, 3, requests.Load())
	require.False(t, client.Ready())
	require.Equal(t, 1.0, metric(t, client, "millrace_once_http_pace"), "it answered none")
}

func TestMisconfiguredAnswersOpenTheBreakerAtTheThirdKey(t *testing.T) {
	t.Parallel()
	far := newFarSide(t).answers(unauthorized)
	client := newClient(t, far.URL, quickBreaker)
	for range 3 {
		require.True(t, client.Ready())
		a := post(t.Context(), client, another())
		require.Equal(t, once.Misconfigured, a.Class)
		require.Equal(t, "unauthorized", a.Code)
		require.True(t, a.General, "a credential is never about one effect")
		require.Equal(t, 1.0, metric(t, client, misconfiguredNow))
	}
	require.False(t, client.Ready())
	require.Equal(t, 3.0, metric(t, client, "millrace_once_http_misconfigured_total"))
	require.Equal(t, once.NotSent, post(t.Context(), client, another()).Class)

	client = newClient(t, far.URL, soonProbed)
	for metric(t, client, breakerState) == 0 {
		require.Equal(t, once.Misconfigured, post(t.Context(), client, another()).Class)
	}
	require.Equal(t, 1.0, metric(t, client, misconfiguredNow))
	far.works()
	require.Eventually(t, client.Ready, 2*time.Minute, time.Millisecond)
	require.Equal(t, once.Done, post(t.Context(), client, another()).Class)
	require.Zero(t, metric(t, client, misconfiguredNow))
}

func TestTokenIsReadAgainAfter401(t *testing.T) {
	t.Parallel()
	for header, scheme := range map[string]string{"Authorization": "Bearer ", "X-Api-Key": ""} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			isReadAgainAfter401(t, header, scheme)
		})
	}
}

func isReadAgainAfter401(t *testing.T, header, scheme string) {
	t.Helper()
	var want atomic.Value
	want.Store(scheme + "old-token")
	var requests atomic.Int32
	file := filepath.Join(t.TempDir(), "token")
	rotate := func() { assert.NoError(t, os.WriteFile(file, []byte("new-token\n"), 0o600)) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if got := r.Header.Get(header); got != want.Load() {
			rotate() // while the call is on its way, so that it has the old token
			http.Error(w, got+" is not valid", http.StatusUnauthorized)
			return
		}
		w.Write([]byte(`{"id":"t-1"}`))
	}))
	defer s.Close()
	require.NoError(t, os.WriteFile(file, []byte("old-token\n"), 0o600))
	var secret setting.Secret
	require.NoError(t, secret.UnmarshalText([]byte("file:"+file)))
	mapping, change := billing(), func(cfg *oncehttp.Config) { cfg.Token = secret }
	if scheme == "" {
		mapping.Headers, change = map[string]setting.Secret{strings.ToLower(header): secret}, nil
	}
	client := newClientOf(t, s.URL, mapping, change)
	require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)

	want.Store(scheme + "new-token")
	a := post(t.Context(), client, "invoice:acme:2")
	require.Equal(t, once.Unrecognized, a.Class, "this attempt was refused; the client does not retry")
	require.Equal(t, "401 Unauthorized: "+scheme+"[redacted] is not valid ", a.Text)
	require.EqualValues(t, 2, requests.Load())
	require.True(t, client.Ready(), "there is a new token: no call needs to wait")
	require.Zero(t, metric(t, client, misconfiguredNow))
	require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)

	want.Store(scheme + "nobody has it")
	require.Equal(t, once.Unrecognized, post(t.Context(), client, "invoice:acme:2").Class)
	require.Equal(t, 1.0, metric(t, client, misconfiguredNow), "the file has nothing new")
}

func TestCallsAreTraced(t *testing.T) {
	t.Parallel()
	headers := make(chan http.Header, 1)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer s.Close()
	client := newClient(t, s.URL, nil)

	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	ctx, parent := provider.Tracer("test").Start(t.Context(), "handle")
	post(ctx, client, "invoice:acme:2")
	require.Len(t, spans.Ended(), 1)
	span := spans.Ended()[0]
	require.Equal(t, "billing invoice", span.Name())
	require.Equal(t, parent.SpanContext().SpanID(), span.Parent().SpanID())
	require.Equal(t, codes.Error, span.Status().Code)
	require.Equal(t, "00-"+span.SpanContext().TraceID().String()+"-"+span.SpanContext().SpanID().String()+"-01", (<-headers).Get("Traceparent"))

	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true})
	post(trace.ContextWithRemoteSpanContext(t.Context(), remote), client, "invoice:acme:2")
	require.Equal(t, "00-01000000000000000000000000000000-0200000000000000-00", (<-headers).Get("Traceparent"))

	post(t.Context(), client, "invoice:acme:2")
	require.Empty(t, (<-headers).Get("Traceparent"))
}

func TestTLSWithAnOwnAuthority(t *testing.T) {
	t.Parallel()
	var proto atomic.Value
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto)
		w.Write([]byte(`{"id":"t-1"}`))
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	client := newClient(t, s.URL, func(cfg *oncehttp.Config) { cfg.CAFile = ca })
	require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)
	require.Equal(t, "HTTP/1.1", proto.Load(), "a shared connection could not count the bytes of one call")
}

func TestLookup(t *testing.T) {
	t.Parallel()
	const key = "invoice:a%3Ab:c/d?e" // as of group a:b and id c/d?e
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodGet && r.URL.Path == "/v1/invoices/by-key/"+key && r.URL.RawQuery == "" && r.Header["Idempotency-Key"] == nil:
			io.WriteString(w, `{"id":"t-1","key":"`+key+`"}`)
		case strings.HasPrefix(r.URL.Path, "/v1/invoices/by-key/"):
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"code":"invoice_not_found"}`)
		default:
			w.WriteHeader(http.StatusNotFound)
			io.WriteString(w, `{"code":"no_such_path"}`)
		}
	}))
	defer s.Close()
	client := newClient(t, s.URL, nil)
	found := find(t.Context(), client, key)
	require.Equal(t, once.Done, found.Class, found.Text)
	require.Equal(t, "t-1", found.Receipt)
	require.Equal(t, once.NotDone, find(t.Context(), client, "invoice:acme:2").Class)

	elsewhere := newClient(t, s.URL+"/nowhere", nil)
	require.Equal(t, once.Misconfigured, find(t.Context(), elsewhere, key).Class, "a 404 about the address is no answer about the effect")
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	onAReusedConnection(t, func() bool {
		s := newRawServer(t, keepAliveForever)
		client := newClient(t, s.url(), nil)
		for range 200 {
			require.Equal(t, once.Done, post(t.Context(), client, "invoice:acme:2").Class)
		}
		return s.accepted.Load() == 1
	})
}
