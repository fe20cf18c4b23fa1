package telemetry

import "time"

// SetReadTimeout sets the limit of a complete request. Call it before the start.
func (p *Plugin) SetReadTimeout(d time.Duration) { p.server.readTimeout = d }

// SetPatience sets the time that clients have during a stop for what they are late with.
func (p *Plugin) SetPatience(d time.Duration) { p.server.requests.Patience = d }

// DefaultConfig returns the settings of the README.
var DefaultConfig = defaultConfig
