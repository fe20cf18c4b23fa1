package operate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
)

// Conditioned is what a plugin offers (pipeline.Registry.Offer) that knows how something is doing which it calls
// or has to do, such as the far side of a route. Calls is one for a server that a handler calls.
type Conditioned interface {
	// Conditions returns what the last calls and the last measurement have shown: what is not in order, what a
	// person has paused, and what waits for a person. A condition that is OK only colors its place. It asks no
	// server, because it is called with each look at a page, and returns nothing while the plugin's services
	// do not run. It is safe for concurrent use.
	Conditions() []Condition
}

// Condition is how one thing is doing, and why.
type Condition struct {
	Check
	// Place is what it is about, such as a server that is called. Its box in the graph shows the condition, and
	// so does each route that calls it or has it as an end. Empty: it is about no place.
	Place pipeline.Endpoint `json:"place,omitzero"`
	// Route is the route whose work it is about, with the route of its retry topic. Empty: Place decides.
	Route string `json:"route,omitempty"`
	// Page is the path of the page of the console that shows more, such as effects. Empty: none does.
	Page string `json:"page,omitempty"`
}

// About reports whether the condition is about what a route does.
func (c Condition) About(r pipeline.Route) bool {
	if c.Route != "" {
		return c.Route == r.Name || c.Route == r.RetryOf()
	}
	if c.Place == (pipeline.Endpoint{}) {
		return false
	}
	is := func(e pipeline.Endpoint) bool { return place(e) == place(c.Place) }
	return is(r.From.Describe()) || r.To != nil && is(r.To.Describe()) || slices.ContainsFunc(r.Calls, is)
}

// ConditionReader is offered by the plugin that can ask the instance on this machine for its conditions, because a
// command is a process of its own and has made no calls. instance is where it runs.
type ConditionReader interface {
	ReadConditions(context.Context) (conditions []Condition, instance string, err error)
}

// Checking is offered by the plugin that runs the readiness checks of all plugins.
type Checking interface {
	// FailedChecks returns a check with a reason for each that fails at this instance. It is safe for concurrent use.
	FailedChecks(context.Context) []Check
}

// Membership is offered by the plugin with which the instances of a deployment know each other, so that a command
// believes no instance of another deployment that answers on the same machine.
type Membership interface {
	// Name is also that of the health check that fails while the instance has lost its server.
	Name() string
	// Process identifies this process among all that have, or had, the name of its instance. It is empty while the
	// services of the plugin do not run, as in a command.
	Process() string
	// IsMember reports whether the process has the name of an instance now, in the deployment of the settings.
	IsMember(ctx context.Context, instance, process string) (bool, error)
}

// Conditions returns those of all plugins, the worst first.
func Conditions(reg *pipeline.Registry) []Condition {
	all := []Condition{}
	for _, offer := range pipeline.Offers[Conditioned](reg) {
		if err := recovered(func() error {
			all = append(all, offer.Conditions()...)
			return nil
		}); err != nil {
			all = append(all, Condition{Check: failedCheck(nameOf(offer), err)})
		}
	}
	sorted.By(all, func(a, b Condition) int { return cmp.Compare(b.Level.rank(), a.Level.rank()) })
	return all
}

// Remeasured is what a plugin offers (pipeline.Registry.Offer) whose conditions are those of a measurement that it
// makes now and then.
type Remeasured interface {
	// Remeasure measures now. Afterwards, conditions show what was so at the call. It does nothing where the plugin
	// does not measure, such as in a command, and is safe for concurrent use.
	Remeasure(context.Context)
}

// Remeasure has everything measured now, after an action that may have changed it.
func Remeasure(ctx context.Context, reg *pipeline.Registry) {
	var measuring sync.WaitGroup
	for _, m := range pipeline.Offers[Remeasured](reg) {
		measuring.Go(func() {
			_ = recovered(func() error { // its next measurement says what is wrong
				m.Remeasure(ctx)
				return nil
			})
		})
	}
	measuring.Wait()
}

// rank is higher for what is worse.
func (l Level) rank() int { return slices.Index([]Level{OK, Warn, Fail}, l) }

// Worse reports whether a level is worse than another one. The empty level is better than all others.
func (l Level) Worse(than Level) bool { return l.rank() > than.rank() }

// nameOf returns the name of the plugin that has offered something, or its type.
func nameOf(offer any) string {
	if p, ok := offer.(interface{ Name() string }); ok {
		return p.Name()
	}
	return fmt.Sprintf("%T", offer)
}

// Since says since when, and for how long, such as "since 2026-01-02T03:04:05Z, for 3m20s".
func Since(at, now time.Time) string {
	return fmt.Sprintf("since %s, for %s", at.UTC().Format(time.RFC3339), max(0, now.Sub(at)).Round(time.Second))
}

// Are returns the beginning of a sentence about a number of things, such as "1 group is" and "2 groups are".
func Are[N int | int64](n N, what string) string { return several(int64(n), what, "is", "are") }

// Have is Are with "has" and "have".
func Have[N int | int64](n N, what string) string { return several(int64(n), what, "has", "have") }

func several(n int64, what, one, many string) string {
	if n == 1 {
		return "1 " + what + " " + one
	}
	return fmt.Sprintf("%d %ss %s", n, what, many)
}
