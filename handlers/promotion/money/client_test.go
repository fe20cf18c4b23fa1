package money_test

import (
	"bufio"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
)

// newSim returns a running simulator that is stopped at the end of the test.
func newSim(t testing.TB, cfg simulator.Config) *simulator.Server {
	t.Helper()
	s, err := simulator.New(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Stop(t.Context())) })
	return s
}

var nextKey atomic.Int64

// another is a charge that no other call is about.
func another() money.Charge { return charge(fmt.Sprint("POINT:9:", nextKey.Add(1))) }

// quickBreaker opens at the third key that fails, and stays open for longer than any test.
func quickBreaker(cfg *money.Config) {
	cfg.Breaker = money.BreakerConfig{FailureRatio: 1, MinCalls: 3, Window: time.Hour, OpenDelay: time.Hour, HalfOpenSuccesses: 1}
}

// soonProbed is a quickBreaker that soon lets a probe through.
func soonProbed(cfg *money.Config) {
	quickBreaker(cfg)
	cfg.Breaker.OpenDelay = 50 * time.Millisecond
}

func TestBreakerStopsCallsAndLetsThemThroughAgain(t *testing.T) {
	t.Parallel()
	sim := newSim(t, simulator.Config{Faults: simulator.Faults{FailRate: 1}})
	client := newClient(t, sim.URL(), quickBreaker)
	for range 3 {
		require.True(t, client.Ready())
		require.Equal(t, money.Ambiguous, client.Charge(t.Context(), another()).Class)
	}
	require.False(t, client.Ready())
	a := client.Charge(t.Context(), another())
	require.Equal(t, money.NotSent, a.Class)
	require.EqualError(t, a.Err, "breaker open")
	require.Positive(t, a.RetryAfter)
	require.EqualValues(t, 3, sim.Summary().Requests["failed"])
	require.Equal(t, 2.0, metric(t, client, breakerState), "open")

	client = newClient(t, sim.URL(), soonProbed)
	for metric(t, client, breakerState) == 0 {
		client.Charge(t.Context(), another())
	}
	require.NoError(t, sim.SetFaults(simulator.Faults{}))
	require.Eventually(t, client.Ready, 2*time.Minute, time.Millisecond, "by itself")
	require.Equal(t, money.Paid, client.Charge(t.Context(), another()).Class)
	require.Zero(t, metric(t, client, breakerState))
}

func TestRefusedConnectionsOpenTheBreakerToo(t *testing.T) {
	t.Parallel()
	client := newClient(t, "http://127.0.0.1:1", quickBreaker)
	for range 3 {
		require.Equal(t, money.NotSent, client.Charge(t.Context(), another()).Class)
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
		answer := make(chan money.Answer, 1)
		go func() { answer <- client.Charge(ctx, another()) }()
		select {
		case <-reached:
		case a := <-answer: // a call that is not sent must end the test, not stop it
			require.Fail(t, "not sent", "call %d: %s: %s", n, a.Class, a.Text)
		}
		cancel()
		require.Equal(t, money.Ambiguous, (<-answer).Class)
	}
	require.True(t, client.Ready())
}

// throttler answers 429 to the selected keys, and pays the others.
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
		io.WriteString(w, `{"transactionKey":"t-1"}`)
	}))
	t.Cleanup(s.Close)
	return s.URL, requests
}

// A Retry-After delays its payout, and all calls only when several payouts received one.
func TestRetryAfterOfSeveralPayoutsHoldsAllCalls(t *testing.T) {
	t.Parallel()
	var all atomic.Bool
	url, requests := throttler(t, func(key string) bool { return key == "POINT:1:2" || all.Load() })
	client := newClient(t, url, func(cfg *money.Config) { cfg.MaxRetryAfter = time.Minute })
	for range 5 {
		a := client.Charge(t.Context(), charge("POINT:1:2"))
		require.Equal(t, money.Throttled, a.Class)
		require.Equal(t, time.Minute, a.RetryAfter, "capped")
		require.False(t, a.General)
		require.True(t, client.Ready(), "one payout never stops the others")
		require.Equal(t, money.Paid, client.Charge(t.Context(), another()).Class)
	}
	all.Store(true)
	for n := 0; client.Ready(); n++ {
		require.Less(t, n, 30)
		require.Equal(t, money.Throttled, client.Charge(t.Context(), another()).Class)
	}
	require.Positive(t, metric(t, client, throttledSeconds))
	sent := requests.Load()
	for _, a := range []money.Answer{client.Charge(t.Context(), another()), client.Lookup(t.Context(), "POINT:1:3")} {
		require.Equal(t, money.NotSent, a.Class)
		require.EqualError(t, a.Err, "a Retry-After holds")
		require.Positive(t, a.RetryAfter)
		require.LessOrEqual(t, a.RetryAfter, time.Minute)
		require.Zero(t, a.Status)
	}
	require.Equal(t, sent, requests.Load())
	require.Zero(t, metric(t, client, breakerState))

	client = newClient(t, url, func(cfg *money.Config) { cfg.MaxRetryAfter = 300 * time.Millisecond })
	for metric(t, client, throttledSeconds) == 0 {
		require.Equal(t, money.Throttled, client.Charge(t.Context(), another()).Class)
	}
	require.Eventually(t, client.Ready, 2*time.Minute, time.Millisecond)
	all.Store(false)
	require.Equal(t, money.Paid, client.Charge(t.Context(), another()).Class)
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
	client := newClient(t, s.URL, func(cfg *money.Config) {
		cfg.Concurrency, cfg.DefaultRetryAfter, cfg.Breaker.MinCalls = 1, time.Minute, 3
	})
	release, err := client.Slot(t.Context())
	require.NoError(t, err)
	fourth := make(chan money.Answer, 1)
	go func() {
		release, err := client.Slot(t.Context())
		if err != nil {
			fourth <- money.Answer{Err: err}
			return
		}
		defer release()
		fourth <- client.Charge(t.Context(), another())
	}()
	for range 3 {
		require.Equal(t, money.Unrecognized, client.Charge(t.Context(), another()).Class)
	}
	release()
	a := <-fourth
	require.Equal(t, money.NotSent, a.Class)
	require.EqualError(t, a.Err, "a Retry-After holds")
	require.EqualValues(t, 3, requests.Load())
	require.False(t, client.Ready())
}

func TestMisconfiguredAnswersOpenTheBreakerAtTheThirdKey(t *testing.T) {
	t.Parallel()
	sim := newSim(t, simulator.Config{Faults: simulator.Faults{Unauthorized: true}})
	client := newClient(t, sim.URL(), quickBreaker)
	for range 3 {
		require.True(t, client.Ready())
		a := client.Charge(t.Context(), another())
		require.Equal(t, money.Misconfigured, a.Class)
		require.Equal(t, "unauthorized", a.Code)
		require.True(t, a.General, "a credential is never about one payout")
		require.Equal(t, 1.0, metric(t, client, misconfiguredNow))
	}
	require.False(t, client.Ready())
	require.Equal(t, 3.0, metric(t, client, "millrace_money_misconfigured_total"))
	require.Equal(t, money.NotSent, client.Charge(t.Context(), another()).Class)

	client = newClient(t, sim.URL(), soonProbed)
	for metric(t, client, breakerState) == 0 {
		require.Equal(t, money.Misconfigured, client.Charge(t.Context(), another()).Class)
	}
	require.Equal(t, 1.0, metric(t, client, misconfiguredNow))
	require.NoError(t, sim.SetFaults(simulator.Faults{}))
	require.Eventually(t, client.Ready, 2*time.Minute, time.Millisecond)
	require.Equal(t, money.Paid, client.Charge(t.Context(), another()).Class)
	require.Zero(t, metric(t, client, misconfiguredNow))
}

func TestTokenIsReadAgainAfter401(t *testing.T) {
	t.Parallel()
	var want atomic.Value
	want.Store("Bearer old-token")
	var requests atomic.Int32
	file := filepath.Join(t.TempDir(), "token")
	rotate := func() { assert.NoError(t, os.WriteFile(file, []byte("new-token\n"), 0o600)) }
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1)
		if got := r.Header.Get("Authorization"); got != want.Load() {
			rotate() // while the call is on its way, so that it has the old token
			http.Error(w, got+" is not valid", http.StatusUnauthorized)
			return
		}
		w.Write([]byte(`{"transactionKey":"t-1"}`))
	}))
	defer s.Close()
	require.NoError(t, os.WriteFile(file, []byte("old-token\n"), 0o600))
	client := newClient(t, s.URL, func(cfg *money.Config) { require.NoError(t, cfg.Token.UnmarshalText([]byte("file:"+file))) })
	require.Equal(t, money.Paid, client.Charge(t.Context(), charge("POINT:1:2")).Class)

	want.Store("Bearer new-token")
	a := client.Charge(t.Context(), charge("POINT:1:2"))
	require.Equal(t, money.Unrecognized, a.Class, "this attempt was refused; the client does not retry")
	require.Equal(t, "401 Unauthorized: Bearer [redacted] is not valid ", a.Text)
	require.EqualValues(t, 2, requests.Load())
	require.True(t, client.Ready(), "there is a new token: no call needs to wait")
	require.Zero(t, metric(t, client, misconfiguredNow))
	require.Equal(t, money.Paid, client.Charge(t.Context(), charge("POINT:1:2")).Class)

	want.Store("Bearer nobody has it")
	require.Equal(t, money.Unrecognized, client.Charge(t.Context(), charge("POINT:1:2")).Class)
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
	client.Charge(ctx, charge("POINT:1:2"))
	require.Len(t, spans.Ended(), 1)
	span := spans.Ended()[0]
	require.Equal(t, "money chargePoint", span.Name())
	require.Equal(t, parent.SpanContext().SpanID(), span.Parent().SpanID())
	require.Equal(t, codes.Error, span.Status().Code)
	require.Equal(t, "00-"+span.SpanContext().TraceID().String()+"-"+span.SpanContext().SpanID().String()+"-01", (<-headers).Get("Traceparent"))

	remote := trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{1}, SpanID: trace.SpanID{2}, Remote: true})
	client.Charge(trace.ContextWithRemoteSpanContext(t.Context(), remote), charge("POINT:1:2"))
	require.Equal(t, "00-01000000000000000000000000000000-0200000000000000-00", (<-headers).Get("Traceparent"))

	client.Charge(t.Context(), charge("POINT:1:2"))
	require.Empty(t, (<-headers).Get("Traceparent"))
}

func TestTLSWithAnOwnAuthority(t *testing.T) {
	t.Parallel()
	var proto atomic.Value
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto.Store(r.Proto)
		w.Write([]byte(`{"transactionKey":"t-1"}`))
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	ca := filepath.Join(t.TempDir(), "ca.pem")
	require.NoError(t, os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600))
	client := newClient(t, s.URL, func(cfg *money.Config) { cfg.CAFile = ca })
	require.Equal(t, money.Paid, client.Charge(t.Context(), charge("POINT:1:2")).Class)
	require.Equal(t, "HTTP/1.1", proto.Load(), "a shared connection could not count the bytes of one call")
}

func TestLookup(t *testing.T) {
	t.Parallel()
	sim := newSim(t, simulator.Config{})
	client := newClient(t, sim.URL(), nil)
	require.Equal(t, money.NoCharge, client.Lookup(t.Context(), "POINT:1:2").Class)
	paid := client.Charge(t.Context(), charge("POINT:1:2"))
	require.Equal(t, money.Paid, paid.Class)
	found := client.Lookup(t.Context(), "POINT:1:2")
	require.Equal(t, money.Paid, found.Class)
	require.Equal(t, paid.TransactionKey, found.TransactionKey)

	elsewhere := newClient(t, sim.URL()+"/nowhere", nil)
	require.Equal(t, money.Misconfigured, elsewhere.Lookup(t.Context(), "POINT:1:2").Class, "a 404 of another server is no answer")
}

func TestConnectionsAreReused(t *testing.T) {
	t.Parallel()
	onAReusedConnection(t, func() bool {
		s := newRawServer(t, keepAliveForever)
		client := newClient(t, s.url(), nil)
		for range 200 {
			require.Equal(t, money.Paid, client.Charge(t.Context(), charge("POINT:1:2")).Class)
		}
		return s.accepted.Load() == 1
	})
}
