package console

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Plugin is the console. Put it last in the list of plugins: then it stops first, while the services that
// its pages read still run.
type Plugin struct {
	config Config
	log    *slog.Logger
	server *server
}

// New returns the plugin with default settings.
func New() *Plugin {
	p := &Plugin{config: DefaultConfig(), log: slog.New(slog.DiscardHandler)}
	p.server = newServer(p)
	return p
}

// Name implements pipeline.Plugin.
func (p *Plugin) Name() string { return "console" }

// Settings implements pipeline.Configurable.
func (p *Plugin) Settings() any { return &p.config }

// Register implements pipeline.Plugin. The pages of all plugins are collected when the service starts.
func (p *Plugin) Register(r *pipeline.Registry) error {
	p.log = r.Env().Logger.With(slog.String(logs.Plugin, p.Name()))
	p.server.registry = r
	r.Collect(p.server.connections.Collectors()...)
	r.Service(p.Name(), p.server)
	r.Offer(p)
	p.config.Auth.Declare(r, p.Name())
	return nil
}

// Console implements console.Contributor: the home page, those of one plugin and of one route, and the audit.
func (p *Plugin) Console() []console.Page {
	home := console.Page{Title: "Pipeline", Panels: []console.Panel{
		{Name: "conditions", Title: "Trouble and pauses", Load: p.server.showConditions},
		{Name: "graph", Title: "Graph", Load: p.server.showGraph},
		{Name: "routes", Title: "Routes", Load: p.server.showRoutes, Actions: []string{"routes pause", "routes resume"}},
		{Name: "history", Title: "The last 15 minutes", Load: p.server.showPast},
	}}
	return slices.Concat([]console.Page{home, p.server.partOfPipeline()}, p.server.routePages(), p.server.auditPages())
}

// Addr returns where the server listens, host:port; empty while it doesn't.
func (p *Plugin) Addr() string { return p.server.addr() }

// URL returns the address of the home page for a server at addr.
func (p *Plugin) url(addr string) string {
	scheme := "http"
	if p.config.TLS.CertFile != "" {
		scheme = "https"
	}
	return scheme + "://" + addr + p.config.Prefix + "/"
}

// Announce returns the address of the console (app.Announcer).
func (p *Plugin) Announce() map[string]string {
	addr := p.Addr()
	if addr == "" {
		return nil
	}
	return map[string]string{"console": p.url(addr)}
}

// Reach leads the command open to the address of the running process (app.Reachable), whose port the
// system may have chosen.
func (p *Plugin) Reach() map[string]any {
	addr := p.Addr()
	if addr == "" {
		return nil
	}
	return map[string]any{"plugins.console.listen": addr}
}

// opened is the answer of the report open.
type opened struct {
	Address string `json:"address"`
}

// openLimit is how long the report open waits for an answer.
const openLimit = 2 * time.Second

// Operations implements operate.Operated.
func (p *Plugin) Operations() operate.Operations {
	return operate.Operations{Reports: []operate.Report{{
		About: operate.About{
			Name: "open", Short: "Print the address of the console",
			Long: "Print the address of the console of the instance that has these settings.\n\n" +
				"The exit code is 3 when no instance of these settings answers there, because none runs on this machine, its console is switched off, or another deployment has its address.",
			Examples: []string{"open --config settings.yaml", "open --profile embedded"},
		},
		Read: func(ctx context.Context, _ *pipeline.Registry, _ operate.Input) (operate.Answer, error) {
			address, err := p.find(ctx, openLimit)
			return operate.Answer{Value: opened{address}, Lines: []string{address}}, err
		},
	}}}
}

// address returns that of the console that runs on this machine with these settings.
func (p *Plugin) address() (string, error) {
	host, port, err := net.SplitHostPort(p.config.Listen)
	if err != nil {
		return "", fmt.Errorf("console: plugins.console.listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1" // it listens at all addresses of this machine
	}
	return p.url(net.JoinHostPort(host, port)), nil
}

// find returns the address of the console that runs on this machine, unless it is that of another deployment.
func (p *Plugin) find(ctx context.Context, limit time.Duration) (string, error) {
	address, err := p.address()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address+assetPath(styleSheet), http.NoBody)
	if err != nil {
		return "", fmt.Errorf("console: %w", err)
	}
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		// The certificate is for the name that people use, and nothing secret is sent.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // only whether something answers
	}}
	answer, err := client.Do(request)
	if err != nil {
		return address, fmt.Errorf("%w: the console does not answer at %s: start an instance with these settings and plugins.console.enabled: true: %w",
			pipeline.ErrUnavailable, address, err)
	}
	if err := answer.Body.Close(); err != nil {
		return "", fmt.Errorf("%w: the console at %s: %w", pipeline.ErrUnavailable, address, err)
	}
	if err := p.checkIdentity(ctx, address, answer.Header); err != nil {
		return "", err
	}
	return address, nil
}

var (
	_ pipeline.Configurable = (*Plugin)(nil)
	_ operate.Operated      = (*Plugin)(nil)
	_ console.Contributor   = (*Plugin)(nil)
	_ app.Announcer         = (*Plugin)(nil)
	_ app.Reachable         = (*Plugin)(nil)
)
