package httpclient

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"sync"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// ErrNotSent means that a request has no token, so not a byte of it was sent. The caller counts the call
// as one that was not made, and repeats it later.
var ErrNotSent = errors.New("not sent")

// Transport sends the requests to one HTTP API, with the certificates, the token and the proxy that apply
// at that moment. Files of certificates are followed as setting.LiveTLS says: requests after a change use
// new connections, while those under way go on. Build it with NewTransport. It is safe for concurrent use.
type Transport struct {
	base         *http.Transport // never used itself, but cloned
	certificates *setting.LiveTLS
	tokens       *tokens // nil: requests have none

	mu      sync.Mutex // guards what follows
	config  *tls.Config
	current *http.Transport
}

// NewTransport returns the transport of an API. base has the limits of its connections, and belongs to the
// Transport from then on; nil means those of http.DefaultTransport. Without a Proxy of its own it has the
// one of the environment (HTTPS_PROXY, HTTP_PROXY, NO_PROXY). The name says in warnings what the API is,
// such as the path of its settings. The error is a *setting.FieldError. A nil log discards.
func NewTransport(c Config, base *http.Transport, name string, log *slog.Logger) (*Transport, error) {
	if base == nil {
		base = http.DefaultTransport.(*http.Transport).Clone()
	}
	if base.Proxy == nil {
		base.Proxy = http.ProxyFromEnvironment
	}
	certificates, err := c.tls().Live(name, log)
	if err != nil {
		return nil, err
	}
	t := &Transport{base: base, certificates: certificates}
	if c.OAuth2.Enabled() {
		t.tokens = newTokens(c.OAuth2, t.transport, name, log)
	}
	return t, nil
}

// RoundTrip implements http.RoundTripper. The trace of the request's context goes on at the API, in the
// headers traceparent and tracestate, unless the request has a traceparent of its own. The error wraps
// ErrNotSent if there is no token to send. A request whose token is refused (401) is sent once more with a
// new one, if its body can be read again.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	r = traced(r)
	if t.tokens == nil {
		return t.transport(r.Context()).RoundTrip(r)
	}
	token, err := t.tokens.get(r.Context())
	if err != nil {
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, fmt.Errorf("%w: %w", ErrNotSent, err)
	}
	answer, err := t.send(r, token)
	if err != nil || answer.StatusCode != http.StatusUnauthorized || !t.tokens.refuse(token) {
		return answer, err
	}
	again := r
	switch {
	case r.Body == nil || r.Body == http.NoBody:
	case r.GetBody == nil:
		return answer, nil
	default:
		body, err := r.GetBody()
		if err != nil {
			return answer, nil //nolint:nilerr // the refusal is the answer
		}
		again = r.WithContext(r.Context())
		again.Body = body
	}
	if token, err = t.tokens.get(r.Context()); err != nil {
		return answer, nil //nolint:nilerr // the refusal is the answer
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // the connection is used again
	_ = answer.Body.Close()
	return t.send(again, token)
}

// traced returns the request with the trace of its context. A RoundTripper must not change the request, so
// one that gets headers is a copy.
func traced(r *http.Request) *http.Request {
	at := trace.SpanContextFromContext(r.Context())
	if _, has := r.Header[headerTraceParent]; has || !at.IsValid() || r.Header == nil { // net/http refuses nil
		return r
	}
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	propagation.TraceContext{}.Inject(r.Context(), propagation.HeaderCarrier(r.Header))
	return r
}

const headerTraceParent = "Traceparent" // in its canonical form

func (t *Transport) send(r *http.Request, token string) (*http.Response, error) {
	r = r.WithContext(r.Context()) // a RoundTripper must not change the request
	r.Header = r.Header.Clone()
	r.Header.Set("Authorization", token)
	return t.transport(r.Context()).RoundTrip(r)
}

// transport returns the transport for the certificates of this moment.
func (t *Transport) transport(ctx context.Context) *http.Transport {
	config := t.certificates.Config(ctx)
	t.mu.Lock()
	defer t.mu.Unlock()
	if config == t.config {
		return t.current
	}
	before := t.current
	t.current, t.config = t.base.Clone(), config
	t.current.TLSClientConfig = config.Clone() // net/http adds its protocols
	if before != nil {
		before.CloseIdleConnections()
	}
	return t.current
}

// CloseIdleConnections closes the connections that no request uses.
func (t *Transport) CloseIdleConnections() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current != nil {
		t.current.CloseIdleConnections()
	}
}

var _ http.RoundTripper = (*Transport)(nil)
