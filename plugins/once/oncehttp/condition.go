package oncehttp

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

const (
	runbookBreaker       = "configs/RUNBOOK.md, MillraceFarSideBreakerOpen"
	runbookMisconfigured = "configs/RUNBOOK.md, MillraceFarSideMisconfigured"
	remedyMisconfigured  = "correct the credential, its permission or the url in the settings"
)

// Reading is how a client is doing at one moment.
type Reading struct {
	Breaker       string        // closed, half-open or open
	Throttled     time.Duration // for how long a Retry-After still holds all calls back; 0: none does
	Pace          float64       // calls per second that may begin, because it throttled all calls before; 0: any number
	Misconfigured bool          // the API refuses our credential, permission or address
	Slots         int           // calls at once
}

// Reading returns how the client is doing. One that is not open refuses no call, so its breaker is closed.
func (c *Client) Reading() Reading {
	n := c.opened.Load()
	if n == nil {
		return Reading{Breaker: stateClosed.String()}
	}
	return Reading{n.breaker.current().String(), n.throttle.remaining(), n.pace.reading(), n.misconfigured.Load(), n.cfg.Concurrency}
}

// Conditions implements operate.Conditioned: why the API is not called, or how its last calls ended. A client that
// is not open knows nothing.
func (c *Client) Conditions() []operate.Condition {
	n := c.opened.Load()
	if n == nil || n.dialer.life.Err() != nil {
		return nil
	}
	all, now := n.ended.Conditions(), time.Now()
	add := func(level operate.Level, remedy, runbook, format string, args ...any) {
		all = append(all, operate.Condition{Place: n.ended.Place, Check: operate.Check{
			Name: n.ended.Name, Level: level, Text: fmt.Sprintf(format, args...), Remedy: remedy, Runbook: runbook,
		}})
	}
	toDo := n.ended.ToDo()
	if n.misconfigured.Load() {
		all, toDo = nil, remedyMisconfigured // that calls fail says the same and less, and who runs it can't help
	}
	if state, since, next := n.breaker.reading(); state != stateClosed {
		all = nil // it says the same and less
		then := "the next call finds out whether it works again"
		if next > 0 {
			then = "the next call, in " + console.Short(next+time.Second) + ", finds out whether it works again"
		}
		add(operate.Fail, toDo+"; nothing is lost meanwhile, and calls begin again by themselves", runbookBreaker,
			"it is not called %s, because its calls failed (the breaker is open); the last answer: %s; %s", operate.Since(since, now), n.ended.Last(), then)
	}
	if n.misconfigured.Load() {
		add(operate.Fail, remedyMisconfigured, runbookMisconfigured,
			"it refuses our credential, our permission or the address; its answer: %s", n.ended.Last())
	}
	if wait := n.throttle.remaining(); wait > 0 {
		add(operate.Warn, "ask who runs it about its limits", "", "it asks for fewer calls, so none is sent for %s (Retry-After)", console.Short(wait+time.Second))
	} else if rate := n.pace.reading(); rate > 0 {
		add(operate.Warn, "ask who runs it about its limits", "", "it refused too many calls (429), so %.3g a second begin here, and more as it answers them", rate)
	}
	return all
}

var _ operate.Conditioned = (*Client)(nil)
