package web

import (
	"net"
	"net/http"
	"time"
)

// SetTimeouts sets all limits of requests. Call it before the start.
func (p *Plugin) SetTimeouts(limit time.Duration) {
	p.headerTimeout, p.writeTimeout, p.bodyTimeout = limit, limit, limit
}

// SetPatience sets the time that clients have during a stop for what they are late with.
func (p *Plugin) SetPatience(d time.Duration) { p.server.requests.Patience = d }

// SetDescriptors sets the limit of file descriptors that the start sees.
func (p *Plugin) SetDescriptors(limit int, limited bool) {
	p.descriptors = func() (int, bool) { return limit, limited }
}

// CountLoopback lets the limit per address apply to this machine, too.
func (p *Plugin) CountLoopback() { p.manyClients = p.trusted }

// PerAddress is the limit of connections of one address without its setting.
var PerAddress = perAddress

// AllowFetch lets the keys of the sign-in be fetched again at once.
func (p *Plugin) AllowFetch() {
	p.signIn.AllowFetch()
}

// ServeHTTP answers a request without a connection, after the start.
func (p *Plugin) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.serve(w, r) }

// First takes the headers of the first request of a connection in one read.
func First(l net.Listener) net.Listener { return newFirstListener(l) }

// FirstConn has the type of a connection of First.
var FirstConn net.Conn = (*firstConn)(nil)

// Refuse begins the refusal of new requests, as a drain does.
func (p *Plugin) Refuse() { p.server.draining.Store(true) }

// Stopping reports whether the server has begun to stop.
func (p *Plugin) Stopping() bool { return p.server.draining.Load() }

// DefaultConfig returns the settings of the README.
var DefaultConfig = defaultConfig
