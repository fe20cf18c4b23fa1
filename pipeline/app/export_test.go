package app

import "time"

// SetEcho changes the time after the first signal during which another one has no effect.
func (o *Options) SetEcho(d time.Duration) { o.echo = d }
