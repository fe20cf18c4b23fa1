package webhook_test

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/handlers/webhook"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const secret = "a secret of the test"

// start runs the plugin with url as its receiver.
func start(t *testing.T, url string, change ...func(*webhook.Config)) (in *pipelinetest.Feed, dead *pipelinetest.Recorder) {
	t.Helper()
	var topics pipelinetest.Topics
	p := webhook.New(&topics, &topics)
	config := p.Settings().(*webhook.Config)
	config.URL, config.Secret, config.MaxRetries = url, setting.NewSecret(secret), 3
	for _, c := range change {
		c(config)
	}
	require.NoError(t, config.Validate())
	pipelinetest.Start(t, p)
	return topics.Feed("webhook"), topics.Published("webhook-dead")
}

// waitFor returns the first dead letter.
func waitFor(t *testing.T, dead *pipelinetest.Recorder) *message.Message {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got, err := dead.Wait(ctx, 1)
	require.NoError(t, err, "no dead letter")
	return got[0]
}

func TestTheHandlerIsOffByDefault(t *testing.T) {
	t.Parallel()
	var config webhook.Config
	require.False(t, config.EnabledByDefault())
}

func TestConformance(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin {
		p := webhook.New(&pipelinetest.Topics{}, &pipelinetest.Topics{})
		config := p.Settings().(*webhook.Config)
		config.URL, config.Secret = "https://shop.example/hooks", setting.NewSecret(secret)
		return []pipeline.Plugin{p}
	})
}

func TestARecordIsPostedWithASignature(t *testing.T) {
	t.Parallel()
	type request struct {
		header http.Header
		body   string
	}
	got := make(chan request, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- request{r.Header, string(body)}
	}))
	defer receiver.Close()
	in, _ := start(t, receiver.URL)
	in.Send(message.NewMessage("order-1", []byte(`{"id":1}`)))
	select {
	case r := <-got:
		require.Equal(t, `{"id":1}`, r.body)
		require.Equal(t, "order-1", r.header.Get("Webhook-Id"))
		at := r.header.Get("Webhook-Timestamp")
		mac := hmac.New(sha256.New, []byte(secret))
		fmt.Fprintf(mac, "order-1.%s.%s", at, r.body)
		require.Equal(t, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)), r.header.Get("Webhook-Signature"))
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the receiver got no request")
	}
}

// The receiver continues the trace of the record.
func TestTheTraceOfARecordGoesOn(t *testing.T) {
	t.Parallel()
	const id = "4bf92f3577b34da6a3ce929d0e0e4736"
	got := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.Header.Get("Traceparent") }))
	defer receiver.Close()
	in, _ := start(t, receiver.URL)
	for _, parent := range []string{"00-" + id + "-00f067aa0ba902b7-01", ""} {
		m := message.NewMessage("order-1", []byte(`{"id":1}`))
		if parent != "" {
			m.Metadata.Set(pipeline.MetaTraceParent, parent)
		}
		in.Send(m)
		select {
		case header := <-got:
			require.Equal(t, parent != "", strings.HasPrefix(header, "00-"+id+"-"), header)
			require.Equal(t, parent == "", header == "", header)
		case <-time.After(2 * time.Minute):
			require.FailNow(t, "the receiver got no request")
		}
	}
}

// The request has a span of its own, which says how it ended without a word of an error.
func TestTheSpanOfARequest(t *testing.T) {
	t.Parallel()
	var status atomic.Int64
	status.Store(http.StatusOK)
	headers := make(chan string, 1)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		headers <- r.Header.Get("Traceparent")
		w.WriteHeader(int(status.Load()))
	}))
	defer receiver.Close()
	spans := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(spans))
	var topics pipelinetest.Topics
	p := webhook.New(&topics, &topics)
	config := p.Settings().(*webhook.Config)
	config.URL, config.Secret = receiver.URL+"/orders/ann", setting.NewSecret(secret)
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	post := func() sdktrace.ReadOnlySpan {
		ctx, parent := provider.Tracer("test").Start(t.Context(), "handle")
		_, _ = reg.Routes()[0].Handle(message.NewMessageWithContext(ctx, "order-1", []byte("{}")))
		span := spans.Ended()[len(spans.Ended())-1]
		require.Equal(t, []any{"webhook POST", trace.SpanKindClient, parent.SpanContext().SpanID()}, []any{span.Name(), span.SpanKind(), span.Parent().SpanID()})
		require.NotContains(t, fmt.Sprint(span.Attributes(), span.Status()), "ann")
		return span
	}
	has := func(span sdktrace.ReadOnlySpan, want ...attribute.KeyValue) {
		require.Subset(t, span.Attributes(), want)
	}

	good := post()
	require.Contains(t, <-headers, good.SpanContext().SpanID().String(), "the receiver continues it")
	require.Equal(t, codes.Unset, good.Status().Code)
	has(good, attribute.String("http.request.method", "POST"), attribute.String("server.address", "127.0.0.1"), attribute.Int("http.response.status_code", 200))

	status.Store(http.StatusForbidden)
	bad := post()
	<-headers
	require.Equal(t, codes.Error, bad.Status().Code)
	has(bad, attribute.String("error.type", "403"), attribute.Int("http.response.status_code", 403))

	receiver.Close()
	away := post()
	require.Equal(t, codes.Error, away.Status().Code)
	has(away, attribute.String("error.type", pipeline.Class(errors.New("refused"))))
}

// A receiver decides when it gets the next attempt.
func TestRetryAfterOfTheReceiver(t *testing.T) {
	t.Parallel()
	const date = "Fri, 02 Jan 2026 03:04:05 GMT"
	for name, c := range map[string]struct {
		status     int
		retryAfter string
		want       time.Duration // negative: that of the settings
	}{
		"seconds":          {http.StatusServiceUnavailable, "6", 6 * time.Second},
		"too many":         {http.StatusTooManyRequests, "90", 90 * time.Second},
		"a date":           {http.StatusServiceUnavailable, "Fri, 02 Jan 2026 03:05:05 GMT", time.Minute},
		"longer than ours": {http.StatusServiceUnavailable, "90000", 24 * time.Hour},
		"out of range":     {http.StatusServiceUnavailable, "99999999999999999999", 24 * time.Hour},
		"no time":          {http.StatusServiceUnavailable, "soon", -1},
		"none":             {http.StatusServiceUnavailable, "", -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Date", date)
				if c.retryAfter != "" {
					w.Header().Set("Retry-After", c.retryAfter)
				}
				w.WriteHeader(c.status)
			}))
			defer receiver.Close()
			p := webhook.New(&pipelinetest.Topics{}, &pipelinetest.Topics{})
			config := p.Settings().(*webhook.Config)
			config.URL, config.Secret = receiver.URL, setting.NewSecret(secret)
			registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
			require.NoError(t, err)
			_, err = registry.Routes()[0].Handle(message.NewMessage("order-1", []byte(`{"id":1}`)))
			require.ErrorContains(t, err, "answered "+strconv.Itoa(c.status))
			require.False(t, pipeline.IsPermanent(err))
			wait, given := pipeline.RetryDelay(err)
			require.Equal(t, c.want >= 0, given)
			require.Equal(t, max(0, c.want), wait)
		})
	}
}

// A receiver that asks for no wait, as a proxy may, does not spend all retries at once.
func TestARetryIsNotSoonerThanTheSettingsSay(t *testing.T) {
	t.Parallel()
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer receiver.Close()
	p := webhook.New(&pipelinetest.Topics{}, &pipelinetest.Topics{})
	config := p.Settings().(*webhook.Config)
	config.URL, config.Secret, config.Retry = receiver.URL, setting.NewSecret(secret), pipeline.Backoff{First: time.Hour, Max: 10 * time.Hour}
	registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	m := message.NewMessage("order-1", []byte(`{"id":1}`))
	m.Metadata.Set(pipeline.MetaAttempt, "1")
	_, err = registry.Routes()[0].Handle(m)
	wait, given := pipeline.RetryDelay(err)
	require.True(t, given)
	require.GreaterOrEqual(t, wait, 96*time.Minute, "two hours, less the jitter")
}

func TestAnAnswerDecidesWhatHappensToTheRecord(t *testing.T) {
	t.Parallel()
	for status, attempts := range map[int]int{
		http.StatusBadRequest: 1, http.StatusGone: 1, http.StatusFound: 1,
		http.StatusUnauthorized: 4, http.StatusRequestTimeout: 4, http.StatusTooManyRequests: 4, http.StatusBadGateway: 4,
	} {
		t.Run(http.StatusText(status), func(t *testing.T) {
			t.Parallel()
			ids := make(chan string, 100)
			receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				ids <- r.Header.Get("Webhook-Id")
				w.Header().Set("Location", "/elsewhere")
				w.WriteHeader(status)
			}))
			defer receiver.Close()
			in, dead := start(t, receiver.URL)
			in.Send(message.NewMessage("order-1", []byte(`{"id":1}`)))
			require.Equal(t, `{"id":1}`, string(waitFor(t, dead).Payload))
			require.Len(t, ids, attempts)
			for range attempts {
				require.Equal(t, "order-1", <-ids, "a retry has the same id")
			}
		})
	}
}

func TestARecordIsRetriedUntilTheReceiverIsBack(t *testing.T) {
	t.Parallel()
	answered := make(chan struct{}, 1)
	failures := make(chan struct{}, 2) // one per request that fails
	failures <- struct{}{}
	failures <- struct{}{}
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-failures:
			panic(http.ErrAbortHandler) // the connection ends without an answer
		default:
			w.WriteHeader(http.StatusNoContent)
			answered <- struct{}{}
		}
	}))
	defer receiver.Close()
	in, dead := start(t, receiver.URL)
	in.SendPayloads(`{"id":1}`)
	select {
	case <-answered:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the record was not posted again")
	}
	require.Empty(t, dead.Messages())
}

// A receiver that does not work is told to whoever looks, without the path of its address, until it answers again. A
// record that it refuses says nothing about it.
func TestAReceiverThatIsDownIsACondition(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	p := webhook.New(&topics, &topics)
	config := p.Settings().(*webhook.Config)
	var status atomic.Int32
	status.Store(http.StatusBadGateway)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) }))
	defer receiver.Close()
	config.URL, config.Secret, config.MaxRetries = receiver.URL+"/hidden", setting.NewSecret(secret), 3
	registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	post := registry.Routes()[0]
	send := func(times int) (known []operate.Condition) {
		for range times {
			m := message.NewMessage("order-1", []byte(`{"id":1}`))
			_, _ = post.Handle(m)
		}
		return operate.Conditions(registry)
	}
	known := send(3)
	require.Len(t, known, 1)
	require.True(t, known[0].About(post))
	require.Equal(t, operate.Warn, known[0].Level)
	require.Regexp(t, "3 have failed; the last one.*: answered 502 Bad Gateway; each record waits for its retry$", known[0].Text)
	status.Store(http.StatusForbidden)
	require.Equal(t, operate.OK, send(1)[0].Level)
	for range 3 { // this process gives up, as when its partition is revoked
		m := message.NewMessage("order-1", []byte(`{"id":1}`))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		m.SetContext(ctx)
		_, err := post.Handle(m)
		require.ErrorIs(t, err, context.Canceled)
	}
	require.Equal(t, operate.OK, operate.Conditions(registry)[0].Level, "the receiver is not to blame")
	receiver.Close()
	known = send(3)
	require.Contains(t, known[0].Text, "connection refused")
	require.NotContains(t, known[0].Text, "hidden")
}

// A receiver that takes requests and does not answer is a condition before their time is over.
func TestAReceiverThatHangsIsACondition(t *testing.T) {
	t.Parallel()
	var topics pipelinetest.Topics
	p := webhook.New(&topics, &topics)
	config := p.Settings().(*webhook.Config)
	seen, ended := make(chan struct{}), make(chan struct{})
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-seen }))
	t.Cleanup(func() { close(seen); <-ended; receiver.Close() })
	config.URL, config.Secret = receiver.URL, setting.NewSecret(secret)
	registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	go func() {
		defer close(ended)
		for again := true; again; {
			m := message.NewMessage("order-1", []byte(`{"id":1}`))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			m.SetContext(ctx)
			_, _ = registry.Routes()[0].Handle(m)
			cancel()
			select {
			case <-seen:
				again = false
			default:
			}
		}
	}()
	require.Eventually(t, func() bool {
		return slices.ContainsFunc(operate.Conditions(registry), func(c operate.Condition) bool {
			return c.Level == operate.Warn && strings.Contains(c.Text, "the longest has waited ")
		})
	}, 2*time.Minute, time.Millisecond)
}

func TestMistakesInSettings(t *testing.T) {
	t.Parallel()
	config := webhook.Config{Retry: pipeline.Backoff{First: -1, Max: -1}}
	err := config.Validate()
	for _, path := range []string{"url", "topic", "secret", "timeout", "max_retries", "retry.first", "retry.max"} {
		require.ErrorContains(t, err, path+": must be")
	}
}

func Example() {
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		fmt.Println(r.Header.Get("Webhook-Id"), string(body))
	}))
	defer receiver.Close()
	p := webhook.New(&pipelinetest.Topics{}, &pipelinetest.Topics{})
	config := p.Settings().(*webhook.Config)
	config.URL = receiver.URL
	config.Secret = setting.NewSecret("known to the receiver")
	registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
	if err != nil {
		panic(err)
	}
	_, err = registry.Routes()[0].Handle(message.NewMessage("order-1", []byte(`{"id":1}`)))
	fmt.Println(err)
	// Output:
	// order-1 {"id":1}
	// <nil>
}

// The receiver is reached through the proxy of the environment.
func TestTheProxyOfTheEnvironmentIsUsed(t *testing.T) {
	t.Parallel()
	got := make(chan struct{}, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- struct{}{} }))
	defer receiver.Close()
	pipelinetest.BehindProxy(t, map[string]string{"hooks.invalid:80": receiver.Listener.Addr().String()}, func() error {
		in, dead := start(t, "http://hooks.invalid/", func(c *webhook.Config) { c.MaxRetries, c.Retry.First = 1, 0 })
		in.Send(message.NewMessage("order-1", []byte("{}")))
		failed := make(chan error, 1)
		go func() {
			if _, err := dead.Wait(t.Context(), 1); err == nil {
				failed <- errors.New("the record is a dead letter")
			}
		}()
		select {
		case <-got:
			return nil
		case err := <-failed:
			return err
		case <-time.After(2 * time.Minute):
			require.FailNow(t, "neither posted nor a dead letter")
			return nil
		}
	})
}

// A token that can't be fetched, or that the receiver refuses, says nothing about the record: it waits and
// is posted later.
func TestARecordWaitsForAToken(t *testing.T) {
	t.Parallel()
	var fetches, posts atomic.Int64
	got := make(chan string, 10)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/token" && fetches.Add(1) <= 2: // both ways to send the secret
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/token":
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"access_token":"of the endpoint","token_type":"Bearer","expires_in":600}`)
		case posts.Add(1) == 1:
			w.WriteHeader(http.StatusUnauthorized)
		default:
			body, _ := io.ReadAll(r.Body)
			got <- r.Header.Get("Authorization") + " " + string(body)
		}
	}))
	defer receiver.Close()
	in, dead := start(t, receiver.URL, func(c *webhook.Config) {
		c.MaxRetries = 10_000_000 // topics in memory keep nothing back
		c.OAuth2 = httpclient.OAuth2{TokenURL: receiver.URL + "/token", ClientID: "shop", ClientSecret: setting.NewSecret("s3cret")}
	})
	in.Send(message.NewMessage("order-1", []byte(`{"id":1}`)))
	select {
	case posted := <-got:
		require.Equal(t, `Bearer of the endpoint {"id":1}`, posted)
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "the receiver got no request")
	}
	require.Empty(t, dead.Messages())
	require.EqualValues(t, 2, posts.Load())
}
