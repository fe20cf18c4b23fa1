package pipeline

import "slices"

// RetriesInto returns the names of the registered routes whose Retry.To is the endpoint e; the
// group is ignored. It is empty when e is no retry topic. Call it when all plugins have registered.
// Safe for concurrent use then.
func (r *Registry) RetriesInto(e Endpoint) []string {
	return r.routesWhere(e, func(p Policy) Sink { return p.Retry.To })
}

// DeadLettersInto returns the names of the registered routes whose DeadLetter is the endpoint e;
// the group is ignored. Call it when all plugins have registered. Safe for concurrent use then.
func (r *Registry) DeadLettersInto(e Endpoint) []string {
	return r.routesWhere(e, func(p Policy) Sink { return p.DeadLetter })
}

func (r *Registry) routesWhere(e Endpoint, of func(Policy) Sink) (names []string) {
	for _, route := range r.routes {
		to := of(route.Policy)
		if to == nil {
			continue
		}
		if at := to.Describe(); at.Kind == e.Kind && at.Name == e.Name && !slices.Contains(names, route.Name) {
			names = append(names, route.Name)
		}
	}
	return names
}
