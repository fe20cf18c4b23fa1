package oncehttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/slots"
)

// Client calls one API. It is safe for concurrent use.
type Client struct {
	config  *Config
	mapping Mapping
	metrics *metrics

	opening sync.Mutex
	opened  atomic.Pointer[connection] // nil before Open
}

// connection is an open client.
type connection struct {
	cfg       Config
	mapping   *Mapping
	log       *slog.Logger
	base      *url.URL
	transport roundTripper
	dialer    *dialer
	close     context.CancelFunc // ends dialer.life

	slots    *slots.Slots
	breaker  *breaker
	throttle throttle
	pace     *pace
	tokens   *tokens
	metrics  *metrics

	misconfigured atomic.Bool
	told          told
	refused       atomic.Pointer[credential] // by the last 401, while there is no other one
	ended         operate.Calls

	targets targets
	buffers sync.Pool // *bytes.Buffer, for answers
}

// roundTripper is a httpclient.Transport, except in tests.
type roundTripper interface {
	http.RoundTripper
	CloseIdleConnections()
}

// New returns a client of the API at config.URL. It opens nothing, because a plugin makes its client in its
// constructor, before its settings are decoded: Open reads them. A zero config gets the defaults here, which
// the settings then overwrite.
func New(config *Config, m Mapping) *Client {
	if config.isZero() {
		*config = DefaultConfig()
	}
	c := &Client{config: config, mapping: m.completed()}
	c.metrics = newMetrics(c)
	return c
}

// Open makes the client ready for calls. It reports all mistakes of the settings and of the mapping, and
// reads the files of certificates, which are followed from then on. It opens no connection. A nil log discards. A call before Open is NotSent. The caller
// closes the client, which can't be opened again then.
func (c *Client) Open(log *slog.Logger) error {
	c.opening.Lock()
	defer c.opening.Unlock()
	if c.opened.Load() != nil {
		return errors.New("oncehttp: the client is open already, or was closed: make another one with New")
	}
	if err := c.mapping.Validate(); err != nil {
		return fmt.Errorf("oncehttp: the mapping of %q: %w", c.mapping.Name, err)
	}
	cfg := *c.config
	if err := cfg.Validate(); err != nil {
		return fmt.Errorf("oncehttp: the settings of %s: %w", c.mapping.Name, err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	log = log.With("component", "oncehttp", "client", c.mapping.Name)
	base, _ := url.Parse(strings.TrimRight(cfg.URL, "/")) // valid: see Validate
	life, end := context.WithCancel(context.Background())
	n := &connection{
		cfg:     cfg,
		mapping: &c.mapping,
		log:     log,
		base:    base,
		dialer:  &dialer{net: net.Dialer{Timeout: cfg.ConnectTimeout, KeepAlive: 15 * time.Second}, clock: systemClock, life: life},
		close:   end,
		slots:   slots.New(cfg.Concurrency),
		pace:    newPace(),
		tokens:  newTokens(c.mapping.Name, cfg.Token, c.mapping.Headers, log),
		metrics: c.metrics,
		told:    newTold(),
		ended:   operate.Calls{Name: "API " + c.mapping.Name, Place: pipeline.ServerOf(cfg.URL), Then: "calls go on"},
		targets: targets{base: base},
		buffers: sync.Pool{New: func() any { return new(bytes.Buffer) }},
	}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	transport, err := httpclient.NewTransport(cfg.Config, &http.Transport{
		DialContext:            n.dialer.dial,
		TLSHandshakeTimeout:    cfg.ConnectTimeout,
		Protocols:              &protocols,
		MaxIdleConns:           cfg.Concurrency,
		MaxIdleConnsPerHost:    cfg.Concurrency,
		IdleConnTimeout:        cfg.IdleConnTimeout,
		DisableCompression:     true,
		MaxResponseHeaderBytes: maxBodyBytes,
	}, c.mapping.Name, log)
	if err != nil {
		end()
		return fmt.Errorf("oncehttp: the settings of %s: %w", c.mapping.Name, err)
	}
	n.transport = transport
	n.breaker = newBreaker(cfg.Breaker, log)
	c.opened.Store(n)
	return nil
}

// Close closes idle connections and ends dialing. Calls in flight end within their deadline. A
// later call is NotSent, and waits for a slot end. Close is idempotent.
func (c *Client) Close() error {
	if n := c.opened.Load(); n != nil {
		n.close()
		n.drain()
		n.transport.CloseIdleConnections()
	}
	return nil
}

// Slot waits for the right to make one call and returns the function that ends this right. release must be
// called exactly once. Slots are given in the order of the calls. After the far side has throttled all calls, slots
// are given at a rate that it answers. An error means that ctx ended, that the client drains or is closed, or that
// it was never opened.
func (c *Client) Slot(ctx context.Context) (release func(), err error) {
	n := c.opened.Load()
	if n == nil {
		return nil, errNotOpen
	}
	if err := n.slots.Acquire(ctx); err != nil {
		return nil, err
	}
	if err := n.pace.wait(ctx); err != nil {
		n.slots.Release()
		return nil, err
	}
	return n.slots.Release, nil
}

// Take returns how many of n calls may begin now, and counts them as begun. It is for callers without Slot. After
// the far side has throttled all calls, they begin at a rate that it answers, and when none may begin, wait is until
// one may.
func (c *Client) Take(n int) (may int, wait time.Duration) {
	open := c.opened.Load()
	if open == nil {
		return n, 0 // the call says so
	}
	return open.pace.take(n, time.Now())
}

// Drain ends all waits for a slot, now and later. A free slot is still given, at once if there is no rate. Drain is idempotent.
func (c *Client) Drain() {
	if n := c.opened.Load(); n != nil {
		n.drain()
	}
}

func (n *connection) drain() {
	n.slots.Close()
	n.pace.end()
}

// Ready reports whether a call would be sent now: the client is open, the breaker lets one through, and no
// Retry-After holds for all calls. Routes use it as their gate. It becomes true again without a call, and at once
// when there is another token than the one that was refused.
func (c *Client) Ready() bool {
	n := c.opened.Load()
	if n == nil {
		return false
	}
	n.tryNewToken()
	return n.throttle.remaining() == 0 && n.breaker.ready()
}
