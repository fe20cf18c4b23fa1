package money

import (
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
)

// Client calls the Money API of the contract. It is safe for concurrent use. Build it with New.
type Client struct {
	cfg       Config
	log       *slog.Logger
	base      *url.URL
	transport *http.Transport
	dialer    *dialer
	close     context.CancelFunc // ends dialer.life

	slots    chan struct{}   // one element per taken slot
	draining context.Context // ends with Drain
	drain    context.CancelFunc
	breaker  *breaker
	gate     gate
	tokens   *tokens
	ownFault atomic.Bool
	metrics  *metrics

	operations sync.Map  // Operation → *operation
	lookups    operation // getCharge
	buffers    sync.Pool // *[]byte, for answers
}

// operation is what calls of one operation share.
type operation struct {
	name    string
	request *http.Request // template; copied for every call
	metrics operationMetrics
}

// State is a snapshot for health checks and for people.
type State struct {
	Ready        bool          `json:"ready"`
	Breaker      string        `json:"breaker"`       // closed, half-open or open
	BreakerOpens time.Duration `json:"breaker_opens"` // until the next probe; 0 unless open
	GateOpens    time.Duration `json:"gate_opens"`    // until the Retry-After ends; 0 when there is none
	InFlight     int           `json:"in_flight"`     // slots that are taken
	OwnFault     bool          `json:"own_fault"`     // the API says that we are not set up right
}

// New returns a client for a valid cfg. It opens no connection; it reads cfg.TokenFile and
// cfg.CAFile. A nil log discards. The caller closes it.
func New(cfg Config, log *slog.Logger) (*Client, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("money: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	base, err := url.Parse(strings.TrimRight(cfg.URL, "/"))
	if err != nil {
		return nil, fmt.Errorf("money: url: %w", err)
	}
	tlsConfig, err := cfg.tls().Load()
	if err != nil {
		return nil, fmt.Errorf("money: %w", err)
	}
	tokens, err := newTokens(&cfg)
	if err != nil {
		return nil, err
	}
	life, end := context.WithCancel(context.Background())
	c := &Client{
		cfg:     cfg,
		log:     log.With("component", "money"),
		base:    base,
		dialer:  &dialer{net: net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second}, clock: systemClock(), life: life},
		close:   end,
		slots:   make(chan struct{}, cfg.Concurrency),
		gate:    gate{start: time.Now()},
		tokens:  tokens,
		buffers: sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }},
	}
	c.draining, c.drain = context.WithCancel(life)
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	c.transport = &http.Transport{
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

// Close closes idle connections and gives up dialing. Calls under way end by themselves within
// their deadline; a call begun afterwards is NotSent, and waits for a slot end. It may be called more than once.
func (c *Client) Close() error {
	c.close()
	c.transport.CloseIdleConnections()
	return nil
}

// Ready reports whether a call begun now would be sent: the breaker lets one through and no
// Retry-After holds for everyone. Routes use it as their gate, so it is cheap. It becomes true again by itself,
// when the Retry-After is over, or when the breaker wants a probe.
func (c *Client) Ready() bool {
	return c.gate.remaining() == 0 && c.breaker.ready()
}

// State returns a snapshot.
func (c *Client) State() State {
	return State{
		Ready:        c.Ready(),
		Breaker:      c.breaker.name(),
		BreakerOpens: c.breaker.remaining(),
		GateOpens:    c.gate.remaining(),
		InFlight:     len(c.slots),
		OwnFault:     c.ownFault.Load(),
	}
}

// operation returns what calls of op share.
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

// newRequest returns a request without context, headers and body. path is under the base URL, and
// has nothing to escape (validKey).
func (c *Client) newRequest(method, path string) *http.Request {
	u := *c.base
	u.Path, u.RawPath = u.Path+path, ""
	return &http.Request{Method: method, URL: &u, Host: u.Host, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
}

var _ API = (*Client)(nil)
