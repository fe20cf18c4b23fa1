package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// RuntimeOptions says how the routes of a Registry are run.
type RuntimeOptions struct {
	// Wrap puts the middleware chain around a route's handler (middleware.Chain.Wrap). Required.
	// With HandleBatch, received is called for each message before it waits for its batch.
	Wrap func(Route) (handle message.HandlerFunc, received func(*message.Message))
	// StopTimeout bounds Stop as a whole: draining the routes and stopping the services. Zero: 30s.
	StopTimeout time.Duration
	// ServicesOf names the plugins whose services are started. Nil: all.
	ServicesOf []string
	// Failers are watched in addition to the services and subscriptions: the chain reports stuck
	// handlers here. A Failer that is Phased is notified like a service.
	Failers []Failer
}

// Runtime runs what a Registry holds: services in order, then every route on one Watermill Router.
// Only the Runtime starts and closes the Router. The Router ends with its last handler, Close
// cancels and drops messages in flight, and a failed handler can't be removed. A Runtime runs once.
type Runtime struct {
	reg        *Registry
	opts       RuntimeOptions
	log        *slog.Logger
	failed     chan error
	workers    workerPool
	life       context.Context // of batches; ends when the routes have drained
	end        context.CancelFunc
	collectors sync.WaitGroup
	draining   chan struct{} // closed when Stop begins

	mu       sync.Mutex // guards what follows; held by Start and by Stop from beginning to end
	started  []NamedService
	open     []openRoute
	router   *message.Router
	running  chan struct{} // closed when Router.Run has returned
	watchers sync.WaitGroup
	quit     chan struct{}
	stopped  bool
}

type openRoute struct {
	name string
	Subscription
}

// NewRuntime returns a Runtime that has not been started.
func NewRuntime(reg *Registry, opts RuntimeOptions) *Runtime {
	if opts.StopTimeout <= 0 {
		opts.StopTimeout = 30 * time.Second
	}
	r := &Runtime{
		reg: reg, opts: opts, log: reg.Env().Logger, failed: make(chan error, 1), quit: make(chan struct{}),
		draining: make(chan struct{}),
	}
	r.workers.log = r.log
	r.life, r.end = context.WithCancel(context.Background())
	return r
}

// Start starts the services downstream first, opens the routes and returns when messages flow.
// When anything fails, what was started is stopped again and the error says which part it was.
func (r *Runtime) Start(ctx context.Context) error {
	if err := r.StartServices(ctx); err != nil {
		return err
	}
	if err := r.startRoutes(ctx); err != nil {
		return errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
	}
	r.log.InfoContext(ctx, "running", slog.String(logs.Instance, r.reg.Env().Instance), slog.Int("routes", len(r.open)))
	return nil
}

// StartServices starts the services alone: commands that need clients but consume nothing use it.
func (r *Runtime) StartServices(ctx context.Context) error {
	for _, s := range r.reg.services {
		if r.opts.ServicesOf != nil && !slices.Contains(r.opts.ServicesOf, s.Plugin) {
			continue
		}
		begin := time.Now()
		if err := s.Start(ctx); err != nil {
			err = fmt.Errorf("start %s: %w", s.Name, err)
			return errors.Join(err, r.Stop(context.WithoutCancel(ctx)))
		}
		r.mu.Lock()
		r.started = append(r.started, s)
		r.mu.Unlock()
		r.watch(s.Name, s.Service)
		r.log.DebugContext(ctx, "service started", slog.String("service", s.Name), slog.Duration("took", time.Since(begin)))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.notify(Phased.Running)
	return nil
}

// notify calls the phase of every started service and of every Failer that is Phased.
func (r *Runtime) notify(phase func(Phased)) {
	for _, s := range r.started {
		if p, ok := s.Service.(Phased); ok {
			phase(p)
		}
	}
	for _, f := range r.opts.Failers {
		if p, ok := f.(Phased); ok {
			phase(p)
		}
	}
}

func (r *Runtime) startRoutes(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.reg.CheckMiddlewares(); err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: routerCloseTimeout}, routerLog{r.log})
	if err != nil {
		return fmt.Errorf("new router: %w", err)
	}
	// The Router ends itself when its last handler ends; this one ends only with the Router.
	// No route can have a name with a space.
	router.AddConsumerHandler("keep alive", "", newKeepAlive(), func(*message.Message) error { return nil })
	for _, route := range r.reg.routes {
		flow := route.Flow
		flow.LongestHold, flow.Gate = route.Policy.Hold(), r.reg.gateOf(route)
		if flow.LongestHold == 0 {
			flow.LongestHold = -1
		}
		sub, err := route.From.Open(ctx, flow)
		if err != nil {
			return fmt.Errorf("route %s: open %s: %w", route.Name, route.From.Describe(), err)
		}
		r.open = append(r.open, openRoute{route.Name, sub})
		r.watch("route "+route.Name, sub)
		// The publish step of the Router is outside the middleware; the chain publishes route.To
		// itself.
		handle, received := r.opts.Wrap(route)
		var source message.Subscriber = borrowed{sub}
		if route.HandleBatch != nil {
			batches := newCollector(r, source, route.Batch, received)
			source, handle = batches, batches.handle(handle)
		}
		router.AddConsumerHandler(route.Name, route.From.Describe().Name, source, func(m *message.Message) error {
			return r.workers.do(func() error {
				_, err := handle(m)
				return err
			})
		})
	}
	for _, f := range r.opts.Failers {
		r.watch("", f)
	}
	r.router, r.running = router, make(chan struct{})
	result := make(chan error, 1)
	go func() {
		defer close(r.running)
		// Messages in flight must outlive a cancelled ctx: Stop ends the Router, not its context.
		err := router.Run(context.WithoutCancel(ctx))
		result <- err
		if err != nil {
			r.fail(fmt.Errorf("router: %w", err))
		}
	}()
	select {
	case <-router.Running():
		return nil
	case <-r.running:
		r.router = nil // it never ran, so it can't be closed in order
		return fmt.Errorf("start routes: %w", <-result)
	}
}

// watch makes a failure of v, when it can fail, the failure of the process.
func (r *Runtime) watch(name string, v any) {
	f, ok := v.(Failer)
	if !ok {
		return
	}
	r.watchers.Go(func() {
		select {
		case err, ok := <-f.Failed():
			if ok && err != nil {
				if name != "" {
					err = fmt.Errorf("%s: %w", name, err)
				}
				r.fail(err)
			}
		case <-r.quit:
		}
	})
}

func (r *Runtime) fail(err error) {
	select {
	case r.failed <- err:
	default: // the first reason is the one that counts
	}
}

// Failed delivers the first failure of a service, a subscription or the chain. The owner of the
// Runtime then calls Stop.
func (r *Runtime) Failed() <-chan error { return r.failed }

// routerCloseTimeout is how long the Router's Close waits for handlers. Drain has waited for them
// already; this wait must only be short. Zero would mean the Router's default of 30s.
const routerCloseTimeout = time.Millisecond

// maxServicesReserve and reserveShare bound the part of StopTimeout that draining leaves to the
// services.
const (
	maxServicesReserve = 5 * time.Second
	reserveShare       = 4
)

// Stop calls Draining of every Phased service, then drains the services that are Drainers, upstream
// first. It then drains all routes at once, and stops the services upstream first. Messages in
// flight are finished and acked. ctx and StopTimeout bound all of it together. The routes leave a
// quarter of their time, at most 5s, to the services, because a handler may not return. Stop is
// idempotent and legal before Start.
func (r *Runtime) Stop(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return nil
	}
	r.stopped = true
	close(r.draining)
	r.notify(Phased.Draining)
	ctx, cancel := context.WithTimeout(ctx, r.opts.StopTimeout)
	defer cancel()

	errs := r.drainServices(ctx)
	errs = append(errs, r.drain(ctx)...)
	r.end()
	r.collectors.Wait()
	if r.router != nil {
		// Its only error is that handlers are still running: Drain has reported those already.
		if err := r.router.Close(); err != nil {
			r.log.DebugContext(ctx, "router closed", logs.Err(err))
		}
		<-r.running
	}
	r.workers.end()
	errs = append(errs, r.stopServices(ctx)...)
	close(r.quit)
	r.watchers.Wait()
	return errors.Join(errs...)
}

// drain drains and closes all routes at once. They read durable sources, so their order does not
// matter. Draining leaves reserve to what follows, and closing leaves half of it: a Close that
// waits longer is left behind.
func (r *Runtime) drain(ctx context.Context) []error {
	deadline, _ := ctx.Deadline() // Stop has set one
	reserve := min(maxServicesReserve, time.Until(deadline)/reserveShare)
	drainCtx, cancelDrain := context.WithDeadline(ctx, deadline.Add(-reserve))
	defer cancelDrain()
	closeCtx, cancelClose := context.WithDeadline(ctx, deadline.Add(-reserve/2))
	defer cancelClose()

	results := make([]chan error, len(r.open))
	for i, route := range r.open {
		results[i] = make(chan error, 2) // one of the drain, one of the closing
		go func() {
			defer close(results[i])
			if err := route.Drain(drainCtx); err != nil {
				results[i] <- fmt.Errorf("drain route %s: %w", route.name, err)
			}
			if err := route.Close(); err != nil {
				results[i] <- fmt.Errorf("close route %s: %w", route.name, err)
			}
		}()
	}
	var errs []error
	for i, route := range r.open {
		for open := true; open; {
			var err error
			select {
			case err, open = <-results[i]:
			case <-closeCtx.Done():
				select {
				case err, open = <-results[i]:
				default:
					err, open = fmt.Errorf("close route %s: it does not return: %w", route.name, closeCtx.Err()), false
				}
			}
			errs = append(errs, err)
		}
	}
	return errs
}

// drainServices drains the services that are Drainers, upstream first. Each may use half of the
// remaining time.
func (r *Runtime) drainServices(ctx context.Context) []error {
	var errs []error
	for _, s := range slices.Backward(r.started) {
		if d, ok := s.Service.(Drainer); ok {
			errs = append(errs, withShare(ctx, 2, "drain "+s.Name, d.Drain))
			r.log.DebugContext(ctx, "service drained", slog.String("service", s.Name))
		}
	}
	return errs
}

// stopServices stops the services upstream first. Each service may use half of the remaining time,
// and the last one all of it.
func (r *Runtime) stopServices(ctx context.Context) []error {
	var errs []error
	for i, s := range slices.Backward(r.started) {
		share := 2
		if i == 0 {
			share = 1
		}
		errs = append(errs, withShare(ctx, share, "stop "+s.Name, s.Stop))
		r.log.DebugContext(ctx, "service stopped", slog.String("service", s.Name))
	}
	return errs
}

// withShare calls f with one share of the time that ctx has left. If f hangs, the other shares are
// left to what follows.
func withShare(ctx context.Context, shares int, what string, f func(context.Context) error) error {
	deadline, _ := ctx.Deadline() // Stop has set one
	ctx, cancel := context.WithTimeout(ctx, time.Until(deadline)/time.Duration(shares))
	defer cancel()
	if err := f(ctx); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// borrowed hides Close from the Router, which would close subscriptions with messages in flight.
// The Runtime drains and closes them.
type borrowed struct{ Subscription }

func (borrowed) Close() error { return nil }

func (b borrowed) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	return b.Subscription.Subscribe(context.WithoutCancel(ctx), topic)
}

// keepAlive is a subscriber without messages.
type keepAlive struct {
	once sync.Once
	ch   chan *message.Message
}

func newKeepAlive() *keepAlive { return &keepAlive{ch: make(chan *message.Message)} }

func (k *keepAlive) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return k.ch, nil
}

func (k *keepAlive) Close() error {
	k.once.Do(func() { close(k.ch) })
	return nil
}

var _ message.Subscriber = (*keepAlive)(nil)
