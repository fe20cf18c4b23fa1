package web

import "time"

// SetTimeouts shortens the limits of requests that are no streams.
func (p *Plugin) SetTimeouts(write, body time.Duration) { p.writeTimeout, p.bodyTimeout = write, body }

// AllowFetch lets the keys of the sign-in be fetched again at once.
func (p *Plugin) AllowFetch() {
	p.signIn.mu.Lock()
	defer p.signIn.mu.Unlock()
	p.signIn.latest = time.Time{}
}
