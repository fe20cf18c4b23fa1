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

// AllowFetch lets the keys of the sign-in be fetched again at once.
func (p *Plugin) AllowFetch() {
	p.signIn.mu.Lock()
	defer p.signIn.mu.Unlock()
	p.signIn.latest = time.Time{}
}

// ServeHTTP answers a request without a connection, after the start.
func (p *Plugin) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.serve(w, r) }

// First takes the headers of the first request of a connection in one read.
func First(l net.Listener) net.Listener { return newFirstListener(l) }

// FirstConn has the type of a connection of First.
var FirstConn net.Conn = (*firstConn)(nil)
