package web

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/httpserver"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// Plugin is the public server. Plugins add handlers with Handle. Without handlers it does not
// listen. Put it before those plugins in the list of plugins: then it serves after their services
// have started, and it stops after them.
type Plugin struct {
	config  Config
	tokens  *token.Plugin
	streams *sse.Plugin
	log     *slog.Logger
	tracer  trace.Tracer
	sampled *logs.Throttle
	metrics metrics
	mounts  map[string]*mount
	server  *server

	mux      *http.ServeMux // from Start on
	proxies  signin.Networks
	signIn   *signin.Keys // nil without one
	slots    slots
	registry *pipeline.Registry
	logKey   []byte // of the names of users in the log

	headerTimeout, writeTimeout, bodyTimeout time.Duration

	descriptors func() (limit int, limited bool)
	manyClients func(netip.Addr) bool // the address is of a proxy, or of this machine
	maxStreams  int                   // from Start on
}

// Limits of a request. A stream has no writeTimeout.
const (
	headerTimeout = 5 * time.Second  // of its headers, and of the TLS handshake
	bodyTimeout   = 30 * time.Second // of the complete request
	writeTimeout  = 30 * time.Second // of the complete answer
)

const warnEvery = time.Minute

// mount is a handler with its options.
type mount struct {
	pattern string
	handler http.Handler
	origins bool
	users   bool
	stream  bool
	noLinks bool
	// continues says that the trace of the caller goes on
	continues bool

	refused func(*http.Request) // nil: none
	subject func(*http.Request) (context.Context, string)
}

// getHasEffect reports whether a GET of the handler changes something or opens a stream. ServeMux
// gives it each HEAD, too, which must have no effect (RFC 9110, section 9.2.1).
func (m *mount) getHasEffect() bool {
	return (m.stream || m.noLinks) && strings.HasPrefix(m.pattern, http.MethodGet+" ")
}

// Option changes how a handler is served.
type Option func(*mount)

// AllowOrigins permits pages of plugins.web.allowed_origins to send requests and read the answers.
// Without it they get 403.
func AllowOrigins() Option { return func(m *mount) { m.origins = true } }

// Users requires a signed-in user. Other requests get 401.
func Users() Option { return func(m *mount) { m.users = true } }

// Stream counts the requests as streams, which have limits of their own and no time limit. HEAD is
// answered with 405.
func Stream() Option { return func(m *mount) { m.stream = true } }

// NoLinks refuses a link of a page of another origin, and answers HEAD with 405. It is for a GET that
// changes something.
func NoLinks() Option { return func(m *mount) { m.noLinks = true } }

// Refused calls f with each request that is refused because the instance has too many streams. f
// does not wait.
func Refused(f func(*http.Request)) Option { return func(m *mount) { m.refused = f } }

// Subjects is for a stream that is opened by a token of its handler. f returns the user that the
// token of a request names, or "" if the token is not valid or names none. The streams of that user
// are limited per user instead of per address. f is called once for each request without a user of
// the sign-in, and the handler gets the context that f returns.
func Subjects(f func(*http.Request) (context.Context, string)) Option {
	return func(m *mount) { m.subject = f }
}

// New returns the plugin with default settings. It serves the public keys of tokens, and gives
// streams its drain window.
func New(tokens *token.Plugin, streams *sse.Plugin) *Plugin {
	p := &Plugin{
		config: defaultConfig(), tokens: tokens, streams: streams, log: slog.New(slog.DiscardHandler), metrics: newMetrics(),
		sampled: logs.NewThrottle(warnEvery),
		mounts:  map[string]*mount{}, slots: slots{open: map[string]int{}},
		logKey: []byte(rand.Text()), headerTimeout: headerTimeout, writeTimeout: writeTimeout, bodyTimeout: bodyTimeout,
	}
	p.descriptors = httpserver.Descriptors
	p.manyClients = func(a netip.Addr) bool { return a.IsLoopback() || p.trusted(a) }
	p.server = newServer(p)
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "web" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Config returns a copy of the settings, which are final when plugins are registered. It is for
// plugins that stand on this one.
func (p *Plugin) Config() Config { return p.config }

// Register implements pipeline.Plugin. A plugin that calls Handle names this one in its Needs.
func (p *Plugin) Register(r *pipeline.Registry) (err error) {
	p.log = r.Env().Logger.With(slog.String(logs.Plugin, p.Name()))
	p.tracer = r.Env().Tracer.Tracer("github.com/millrace-io/millrace/plugins/web")
	p.registry = r
	r.Collect(append(p.metrics.collectors(), p.server.connections.Collectors()...)...)
	r.Service(p.Name(), p.server)
	r.Offer(p)
	p.config.Auth.Declare(r, p.Name())
	p.streams.DrainOver(p.config.DrainWindow)
	if p.proxies, err = signin.NewNetworks(p.config.TrustedProxies); err != nil {
		return err
	}
	if p.config.Auth.HasKeys() {
		p.signIn, err = signin.NewKeys(p.config.Auth, "plugins.web.auth", p.log)
	}
	return err
}

// Handle adds a handler at a pattern of http.ServeMux, such as GET /jobs/{id}, in Register of the
// plugin that owns it. A pattern in conflict with another one ends the start.
func (p *Plugin) Handle(pattern string, h http.Handler, options ...Option) {
	p.mount(pattern, h, options...)
	if p.registry != nil { // nil if this plugin is switched off
		p.registry.Endpoint(pipeline.UseWeb, pipeline.Endpoint{Kind: pipeline.KindHTTP, Name: pattern})
	}
}

func (p *Plugin) mount(pattern string, h http.Handler, options ...Option) {
	m := &mount{pattern: pattern, handler: h}
	for _, o := range options {
		o(m)
	}
	if p.mounts[pattern] != nil {
		p.server.wrong = append(p.server.wrong, errors.New("web: two handlers have the pattern "+pattern))
	}
	p.mounts[pattern] = m
	p.metrics.initialize(pattern)
	if !m.stream {
		p.metrics.duration.WithLabelValues(pattern)
	}
}

// Addr returns where the server listens, host:port; empty while it doesn't.
func (p *Plugin) Addr() string { return p.server.addr() }

// Announce returns the address of the server (app.Announcer).
func (p *Plugin) Announce() map[string]string {
	addr := p.Addr()
	if addr == "" {
		return nil
	}
	scheme := "http"
	if p.config.TLS.CertFile != "" {
		scheme = "https"
	}
	return map[string]string{"web": scheme + "://" + addr}
}

// serveKeys serves the public keys of plugins/token, which change when their files do.
func (p *Plugin) serveKeys(w http.ResponseWriter, _ *http.Request) {
	text, err := p.tokens.KeySet()
	if err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/jwk-set+json")
	w.Header().Set("Cache-Control", "public, max-age=300")
	_, _ = w.Write(text) // a client that is gone needs no answer
}

// build makes what the server serves.
func (p *Plugin) build(ctx context.Context) error {
	p.mount("GET /.well-known/jwks.json", http.HandlerFunc(p.serveKeys), AllowOrigins())
	p.mux = http.NewServeMux()
	wrong := p.server.wrong
	for pattern, m := range p.mounts {
		if m.users && p.signIn == nil && p.config.Auth.Header == "" {
			wrong = append(wrong, errors.New("web: "+pattern+" needs users: set plugins.web.auth"))
		}
		wrong = append(wrong, handle(p.mux, pattern, p.guard(m)))
	}
	if err := errors.Join(wrong...); err != nil {
		return err
	}
	if p.signIn == nil || !p.signIn.Fetched() {
		return nil
	}
	return p.server.loops.Start(ctx, p.signIn.Run)
}

var _ pipeline.Configurable = (*Plugin)(nil)
