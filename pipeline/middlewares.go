package pipeline

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/sorted"
)

// Place is a position in the chain at which a Middleware may stand.
type Place string

// The places of the chain, the outermost first. The order of the middlewares at one place is: those
// of the binary, those of plugins in the order of their registration, those of the Route.
const (
	// PlaceReceived is before a message is handled, outside of the time limit but inside the longest
	// hold. The middleware may change the message, pass on another one, wait, refuse it with an
	// error, or end it without a call of the handler.
	//
	// On a route with HandleBatch it runs once per message, before the batch is handled, for one
	// message after another. What it calls then returns nil at once and says nothing about the
	// outcome. A message whose middleware fails, or does not call it, is left out of the batch.
	//
	// The batch has the message that was passed on, with the payload, metadata and context values
	// that it had then. Its context must be derived from that of the message that was received, as
	// CopyWithContext does, and only one message may be passed on for each. Otherwise the message
	// fails permanently.
	PlaceReceived Place = "received"
	// PlaceAttempt is around the handler and the publishing of its outputs, outside of the time
	// limit but inside the longest hold. The middleware sees the error of both, also that of a panic,
	// before the route's Policy decides about it. A route with HandleBatch has no such place.
	PlaceAttempt Place = "attempt"
	// PlaceHandler is innermost, inside the time limit and the recovery of panics. The middleware
	// sees the outputs of the handler and may replace them. A route with HandleBatch has no such
	// place.
	PlaceHandler Place = "handler"
)

// places returns all places in order.
func places() []Place { return []Place{PlaceReceived, PlaceAttempt, PlaceHandler} }

// Middleware is a step of the chain that a binary, a plugin or a route adds (app.Options.Middlewares,
// Registry.Middleware, Route.Middlewares). Its errors and panics count as those of the handler, so
// the route's Policy decides about them.
type Middleware struct {
	// Name is shown by the command topology. Required, and unique on a route. It has the shape of a
	// route's name.
	Name string
	// Place is where it stands. Required.
	Place Place
	// Wrap is any middleware of Watermill's type. It is called once per route, before the first
	// message, and what it returns is called for many messages at once. A result of nil leaves the
	// chain as it is. Only at PlaceHandler may it return messages: those of another place would not
	// be published, so they fail the message permanently. Required.
	Wrap message.HandlerMiddleware
	// Routes are the names of the routes that it is for. Each of them must exist when the routes are
	// started, and its route NAME.retry belongs to it. Nil: all routes of the process. Not used in
	// Route.Middlewares.
	Routes []string
}

// Middleware adds middlewares to routes of any plugin. NewRegistry returns their mistakes. A
// middleware at PlaceAttempt or PlaceHandler is refused if one of its routes has HandleBatch.
func (r *Registry) Middleware(ms ...Middleware) {
	for _, m := range ms {
		r.middlewares = append(r.middlewares, addedMiddleware{r.plugin, m})
	}
}

type addedMiddleware struct {
	plugin string
	Middleware
}

// placeMiddlewares gives each route its middlewares in the order of the chain, when all plugins have
// registered.
func (r *Registry) placeMiddlewares() {
	for _, m := range r.middlewares {
		r.plugin = m.plugin
		r.checkMiddleware("", m.Middleware)
	}
	for i := range r.routes {
		route := &r.routes[i]
		var all []Middleware
		for _, m := range r.middlewares {
			if m.Routes == nil || slices.ContainsFunc(m.Routes, func(name string) bool { return name == route.Name || name == route.retryOf }) {
				all = append(all, m.Middleware)
				r.plugin = m.plugin
				r.checkPlace(*route, m.Middleware)
			}
		}
		r.plugin = route.plugin
		for _, m := range route.Middlewares {
			all = append(all, m)
			if route.retryOf != "" {
				continue // its route has reported them
			}
			r.checkMiddleware("route "+route.Name+": ", m)
			r.checkPlace(*route, m)
			if m.Routes != nil {
				r.fail("route %s: middleware %s has Routes: leave them nil, because it is for its route", route.Name, m.Name)
			}
		}
		names := map[string]bool{}
		for _, m := range all {
			if names[m.Name] {
				r.fail("route %s has two middlewares %q: name each differently", route.Name, m.Name)
			}
			names[m.Name] = true
		}
		sorted.By(all, func(a, b Middleware) int { return slices.Index(places(), a.Place) - slices.Index(places(), b.Place) })
		route.Middlewares = all
	}
}

// CheckMiddlewares reports middlewares for routes that do not exist. The Runtime calls it before it
// opens the routes: a registry for a command may have only some of the plugins.
func (r *Registry) CheckMiddlewares() error {
	var errs []error
	for _, m := range r.middlewares {
		for _, name := range m.Routes {
			if !slices.ContainsFunc(r.routes, func(route Route) bool { return route.Name == name }) {
				errs = append(errs, fmt.Errorf("plugin %s: middleware %s: there is no route %q: name one that the command topology shows, or enable its plugin", m.plugin, m.Name, name))
			}
		}
	}
	return errors.Join(errs...)
}

func (r *Registry) checkMiddleware(of string, m Middleware) {
	if !routeShape.MatchString(m.Name) {
		r.fail("%smiddleware name must be lower-case letters and digits, with . - or _ between them, got %q", of, m.Name)
	}
	if !slices.Contains(places(), m.Place) {
		var names []string
		for _, p := range places() {
			names = append(names, string(p))
		}
		r.fail("%smiddleware %s: Place must be one of %s, got %q", of, m.Name, strings.Join(names, ", "), m.Place)
	}
	if m.Wrap == nil {
		r.fail("%smiddleware %s: Wrap is nil", of, m.Name)
	}
}

// checkPlace refuses what a batch can't do: its handler is called for all messages together.
func (r *Registry) checkPlace(route Route, m Middleware) {
	if route.HandleBatch != nil && (m.Place == PlaceAttempt || m.Place == PlaceHandler) {
		r.fail("route %s: middleware %s needs a call of the handler per message, and the route has HandleBatch: "+
			"use the place %s, or name only other routes", route.Name, m.Name, PlaceReceived)
	}
}
