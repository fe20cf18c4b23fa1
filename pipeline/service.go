package pipeline

import "context"

// Service is something with a life of its own: a client, a server, a loop.
type Service interface {
	// Start returns when the service is ready; ctx bounds the starting only, not the life after it.
	Start(ctx context.Context) error
	// Stop ends the service and waits for everything it owns. It is idempotent, legal before Start,
	// and bounded by ctx.
	Stop(ctx context.Context) error
}

// Failer is implemented by a Service or a Subscription that can fail after it was started. The
// first error received stops the process in order, with that error as its reason.
type Failer interface {
	Failed() <-chan error
}

// Phased is implemented by a Service, or by a Failer of RuntimeOptions, that behaves differently
// during the start or the stop. An example is a server of requests. Both methods are called once at
// most and must return at once.
type Phased interface {
	// Running says that all services have started. The routes are opened next.
	Running()
	// Draining is called when the stop has started, before the first route drains and before the
	// first service stops. It is also called when the start has failed.
	Draining()
}

// Drainer is implemented by a Service that takes in work from outside, such as requests.
type Drainer interface {
	// Drain ends that work, and refuses new work until Stop. It is called once, upstream first,
	// after Draining of all services and before the routes drain. It returns when the work has
	// ended or when ctx ends. ctx leaves half of the remaining time to what stops after it.
	Drain(ctx context.Context) error
}
