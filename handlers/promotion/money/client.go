package money

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline/slots"
)

// Client calls the Money API of openapi.yaml. It is safe for concurrent use.
type Client struct {
	cfg       Config
	log       *slog.Logger
	base      *url.URL
	transport *http.Transport
	dialer    *dialer
	close     context.CancelFunc // ends dialer.life

	slots    *slots.Slots
	breaker  *breaker
	throttle throttle
	tokens   *tokens
	metrics  *metrics

	misconfigured atomic.Bool

	operations sync.Map  // Operation → *operation
	lookups    operation // getCharge
	buffers    sync.Pool // *bytes.Buffer, for answers
}

// operation is what calls of one operation share.
type operation struct {
	name    string
	request *http.Request // template; copied for every call
	metrics operationMetrics
}

// New returns a client for a valid cfg. It opens no connection; it reads cfg.CAFile. A nil log discards. The caller closes it.
func New(cfg Config, log *slog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("money: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	base, _ := url.Parse(strings.TrimRight(cfg.URL, "/")) // valid: see Validate
	tlsConfig, err := cfg.tls().Load()
	if err != nil {
		return nil, fmt.Errorf("money: %w", err)
	}
	life, end := context.WithCancel(context.Background())
	c := &Client{
		cfg:     cfg,
		log:     log.With("component", "money"),
		base:    base,
		dialer:  &dialer{net: net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second}, clock: systemClock, life: life},
		close:   end,
		slots:   slots.New(cfg.Concurrency),
		tokens:  newTokens(cfg.Token, log),
		buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }},
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	c.transport = &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            c.dialer.dial,
		TLSClientConfig:        tlsConfig,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		Protocols:              &protocols,
		MaxIdleConns:           cfg.Concurrency,
		MaxIdleConnsPerHost:    cfg.Concurrency,
		IdleConnTimeout:        cfg.IdleConnTimeout,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxBodyBytes,
	}
	c.breaker = newBreaker(cfg.Breaker, c.log)
	c.metrics = newMetrics(c)
	c.lookups = operation{name: "getCharge", metrics: c.metrics.operation("getCharge")}
	return c, nil
}

// Close closes idle connections and ends dialing. Calls in flight end within their deadline. A
// later call is NotSent, and waits for a slot end. Close is idempotent.
func (c *Client) Close() error {
	c.close()
	c.Drain()
	c.transport.CloseIdleConnections()
	return nil
}

// Ready reports whether a call would be sent now: the breaker lets one through, and no Retry-After
// holds for all calls. Routes use it as their gate. It becomes true again without a call.
func (c *Client) Ready() bool {
	return c.throttle.remaining() == 0 && c.breaker.ready()
}

func (c *Client) operation(op Operation) *operation {
	if known, ok := c.operations.Load(op); ok {
		return known.(*operation)
	}
	made, _ := c.operations.LoadOrStore(op, &operation{
		name:    op.Name,
		request: c.newRequest(http.MethodPost, op.Path),
		metrics: c.metrics.operation(op.Name),
	})
	return made.(*operation)
}

// newRequest returns a request without context, headers and body. path has nothing to escape
// (validKey).
func (c *Client) newRequest(method, path string) *http.Request {
	u := *c.base
	u.Path, u.RawPath = u.Path+path, ""
	return &http.Request{Method: method, URL: &u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

var _ API = (*Client)(nil)
