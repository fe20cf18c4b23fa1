package pipeline

import "slices"

// RoutePauser is offered (Registry.Offer) by a plugin that keeps what operators have ordered about routes.
type RoutePauser interface {
	// RoutePaused reports whether a route takes no new messages now. It is called often and concurrently, from
	// the moment at which the route is opened, so it answers from memory.
	RoutePaused(route string) bool
}

// RetryOf returns the name of the route whose Retry.From has added this one. It is empty for any other route.
func (r Route) RetryOf() string { return r.retryOf }

// RoutePaused reports whether an operator has paused a route, or the route whose failed messages it retries. A
// check that fails without progress asks it first, because a pause is no failure.
func (r *Registry) RoutePaused(name string) bool {
	i := slices.IndexFunc(r.routes, func(route Route) bool { return route.Name == name })
	return i >= 0 && isPaused(Offers[RoutePauser](r), r.routes[i])
}

func isPaused(pausers []RoutePauser, route Route) bool {
	for _, p := range pausers {
		if p.RoutePaused(route.Name) || route.retryOf != "" && p.RoutePaused(route.retryOf) {
			return true
		}
	}
	return false
}

// gateOf returns the Flow.Gate that a route is opened with: its own, which is also closed while an operator has
// paused the route.
func (r *Registry) gateOf(route Route) func() bool {
	pausers, own := Offers[RoutePauser](r), route.Flow.Gate
	if len(pausers) == 0 {
		return own
	}
	return func() bool { return !isPaused(pausers, route) && (own == nil || own()) }
}
