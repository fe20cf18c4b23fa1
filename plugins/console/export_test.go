package console

import (
	"net/netip"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// Impatient makes requests answer at once that an action still runs.
func (p *Plugin) Impatient() { p.server.patience = patience{} }

// Hurried makes downloads of the audit wait only a moment for each part.
func (p *Plugin) Hurried() { p.server.export.wait = 200 * time.Millisecond }

// Exempt reports whether an address may have any number of connections.
func Exempt(proxies []string, addr netip.Addr) bool {
	networks, _ := signin.NewNetworks(proxies)
	return (&server{login: &login{proxies: networks}}).isExempt(addr)
}

// TextOf returns a page with one panel for a terminal.
func TextOf(title string, b console.Block, width int) string {
	return string(textFormat{width: width}.page(view{Title: title, Instance: "rig", Time: "12:00:00", Panels: []shown{{Title: title, Block: b, At: time.Now()}}}))
}

// Rates returns what the home page shows of a counter, look by look.
func Rates(c operate.AckCounter, route string) func(now time.Time) string {
	r := rates{}
	return func(now time.Time) string {
		return rateCell(r.of([]operate.AckCounter{c}, []string{route}, now), route).Text
	}
}
