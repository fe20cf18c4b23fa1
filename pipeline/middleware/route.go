package middleware

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

// route is the chain of one route. The fields are prepared once, so that a message costs little.
type route struct {
	*Chain
	pipeline.Route
	from     pipeline.Endpoint
	admit    message.HandlerFunc // of a route with HandleBatch: the middlewares at PlaceReceived
	limit    time.Duration       // zero: none
	hold     time.Duration       // zero: none
	retriers []string
	metrics  routeMetrics
	work     *work

	spanName    string
	spanOptions []trace.SpanStartOption
}

func (c *Chain) newRoute(r pipeline.Route) *route {
	r.Policy.MaxDeliveries = maxDeliveries(r)
	w := &route{
		Chain: c, Route: r, from: r.From.Describe(), limit: r.Policy.TimeLimit(), hold: r.Policy.Hold(),
		retriers: c.retriers(r), metrics: c.metrics.of(r.Name), work: c.workOf(r.Name),
		spanName: "process " + r.Name, spanOptions: []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)},
	}
	if r.HandleBatch != nil {
		w.metrics.batched(c.metrics, r.Name)
		if len(r.Middlewares) > 0 {
			w.admit = added(r.Middlewares, pipeline.PlaceReceived, admitted)
		}
	}
	return w
}

// step is a step of the chain: one of its own, or the middlewares at a place.
type step struct {
	name  string
	on    func(pipeline.Route) bool // nil: on every route
	wrap  func(*route, *message.Message, message.HandlerFunc) ([]*message.Message, error)
	place pipeline.Place
}

// steps are the chain, the outermost step first. The method of each is named after it. What fails inside of failure is decided there, and
// nothing outside of it fails a message that was handled.
func steps() []step {
	return []step{
		{name: "activity", wrap: (*route).stepActivity, on: func(r pipeline.Route) bool { return r.Activity != nil }},
		{name: "metrics", wrap: (*route).stepMetrics},
		{name: "trace", wrap: (*route).stepTrace},
		{name: "owner", wrap: (*route).stepOwner},
		{name: "failure", wrap: (*route).stepFailure},
		{name: "refuse", wrap: (*route).stepRefuse},
		{name: "hold", wrap: (*route).stepHold, on: func(r pipeline.Route) bool { return r.Policy.Hold() > 0 }},
		{place: pipeline.PlaceReceived},
		{place: pipeline.PlaceAttempt},
		{name: "publish", wrap: (*route).stepPublish},
		{name: "correlation", wrap: (*route).stepCorrelation},
		{name: "recover", wrap: (*route).stepRecover},
		{name: "timeout", wrap: (*route).stepTimeout, on: func(r pipeline.Route) bool { return r.Policy.TimeLimit() > 0 }},
		{place: pipeline.PlaceHandler},
	}
}

// Step is a step of the chain of a route.
type Step struct {
	Name string
	// Place is that of a middleware which a binary, a plugin or the route has added. Empty: the step
	// is one of the chain itself.
	Place pipeline.Place
}

// String returns the name, and @ with the place.
func (s Step) String() string {
	if s.Place == "" {
		return s.Name
	}
	return s.Name + "@" + string(s.Place)
}

// Steps returns the chain of a route of a Registry, the outermost step first. The handler follows the
// last one. On a route with HandleBatch the steps after the place PlaceReceived are common to the
// messages of a batch.
func Steps(r pipeline.Route) (list []Step) {
	for _, s := range steps() {
		switch {
		case s.place != "":
			for _, m := range r.Middlewares {
				if m.Place == s.place {
					list = append(list, Step{m.Name, m.Place})
				}
			}
		case s.on == nil || s.on(r):
			list = append(list, Step{Name: s.name})
		}
	}
	return list
}

// single returns the chain of a route with Handle. An error nacks the message.
func (w *route) single() message.HandlerFunc {
	all, h := steps(), w.Handle
	for i := range all {
		s := all[len(all)-1-i]
		switch {
		case s.place != "":
			h = added(w.Middlewares, s.place, h)
		case s.on == nil || s.on(w.Route):
			next := h
			h = func(msg *message.Message) ([]*message.Message, error) { return s.wrap(w, msg, next) }
		}
	}
	return h
}

var errOutputsLost = errors.New("a middleware outside of the place handler returned messages, which are not published there")

// added puts the middlewares at a place around h.
func added(ms []pipeline.Middleware, at pipeline.Place, h message.HandlerFunc) message.HandlerFunc {
	for i := range ms {
		if m := ms[len(ms)-1-i]; m.Place == at {
			if wrapped := m.Wrap(h); wrapped != nil {
				h = wrapped
			}
		}
	}
	return h
}

var errUnsettled = errors.New("the work on the message did not return: a panic of the chain, or runtime.Goexit")

// errNotHeld nacks a message that another instance receives.
var errNotHeld = errors.New("the message belongs to another instance now")

// received notes that a message of a batch has come. It may wait for its batch.
func (w *route) received(msg *message.Message) {
	if w.Activity != nil {
		// A source with a message in flight is never idle.
		w.Activity.Began(pipeline.DeliveryFrom(msg.Context()).Origin)
	}
	w.metrics.received()
}

// stepActivity is the step activity: it notifies the Activity of the route.
func (w *route) stepActivity(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	o := pipeline.DeliveryFrom(msg.Context()).Origin
	w.Activity.Began(o)
	defer w.Activity.Ended(o)
	return next(msg)
}

// stepMetrics is the step metrics: it counts the message as in flight, and measures the time to its end.
func (w *route) stepMetrics(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	w.metrics.received()
	outer, started := msg.Context(), time.Now()
	defer func() {
		w.metrics.end(started, trace.SpanFromContext(msg.Context())) // which the step trace left there
		msg.SetContext(outer)
	}()
	return next(msg)
}

// stepOwner is the step owner: a message that another instance has received meanwhile is nacked.
func (w *route) stepOwner(msg *message.Message, next message.HandlerFunc) ([]*message.Message, error) {
	if !pipeline.DeliveryFrom(msg.Context()).MayStart() {
		return nil, errNotHeld
	}
	return next(msg)
}

// alone passes a message of a batch through the steps hold and those from publish on, with a handler
// of its own.
func (w *route) alone(msg *message.Message, h message.HandlerFunc) error {
	_, err := w.stepHold(msg, func(m *message.Message) ([]*message.Message, error) {
		return w.stepPublish(m, func(m *message.Message) ([]*message.Message, error) {
			return w.stepCorrelation(m, func(m *message.Message) ([]*message.Message, error) { return w.calling(m, h) })
		})
	})
	return err
}

// calling passes a message, or the envelope of a batch, through the steps recover and timeout.
func (w *route) calling(msg *message.Message, h message.HandlerFunc) ([]*message.Message, error) {
	return w.stepRecover(msg, func(m *message.Message) ([]*message.Message, error) { return w.stepTimeout(m, h) })
}
