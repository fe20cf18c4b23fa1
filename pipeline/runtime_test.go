package pipeline_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary keeps the order in which things happened.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) write(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

type service struct {
	name     string
	diary    *diary
	startErr error
	failed   chan error
}

func (s *service) Start(context.Context) error { s.diary.write("start " + s.name); return s.startErr }
func (s *service) Stop(context.Context) error  { s.diary.write("stop " + s.name); return nil }
func (s *service) Failed() <-chan error        { return s.failed }

// plugin is a plugin made of functions.
type plugin struct {
	name     string
	register func(*pipeline.Registry)
}

func (p plugin) Name() string { return p.name }

func (p plugin) Register(r *pipeline.Registry) error { p.register(r); return nil }

// lossy is the policy of routes whose failures don't matter.
var lossy = pipeline.Policy{DeadLetter: pipeline.Drop}

func start(t *testing.T, plugins ...pipeline.Plugin) (*pipeline.Runtime, error) {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, plugins...)
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	return rt, rt.Start(t.Context())
}

func TestStartsDownstreamFirstStopsUpstreamFirst(t *testing.T) {
	d := &diary{}
	rt, err := start(t,
		plugin{"redis", func(r *pipeline.Registry) { r.Service("redis", &service{name: "redis", diary: d}) }},
		plugin{"kafka", func(r *pipeline.Registry) { r.Service("kafka", &service{name: "kafka", diary: d}) }})
	require.NoError(t, err)
	require.NoError(t, rt.Stop(t.Context()))
	require.NoError(t, rt.Stop(t.Context()), "Stop is idempotent")
	require.Equal(t, []string{"start redis", "start kafka", "stop kafka", "stop redis"}, d.lines)
}

func TestAFailedStartStopsWhatWasStarted(t *testing.T) {
	d := &diary{}
	_, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Service("a", &service{name: "a", diary: d})
		r.Service("b", &service{name: "b", diary: d, startErr: errors.New("port in use")})
		r.Service("c", &service{name: "c", diary: d})
	}})
	require.ErrorContains(t, err, "start b: port in use")
	require.Equal(t, []string{"start a", "start b", "stop a"}, d.lines)
}

type brokenSource struct{ *pipelinetest.Feed }

func (brokenSource) Open(context.Context, pipeline.Flow) (pipeline.Subscription, error) {
	return nil, errors.New("no such topic")
}

func TestASourceThatDoesNotOpenNamesItsRoute(t *testing.T) {
	_, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "good", From: pipelinetest.NewFeed("a"), Handle: ack, Policy: lossy})
		r.Route(pipeline.Route{Name: "bad", From: brokenSource{pipelinetest.NewFeed("b")}, Handle: ack, Policy: lossy})
	}})
	require.ErrorContains(t, err, "route bad: open feed b: no such topic")
}

func ack(*message.Message) ([]*message.Message, error) { return nil, nil }

func TestAServiceThatDiesIsTheReason(t *testing.T) {
	s := &service{name: "a", diary: &diary{}, failed: make(chan error, 1)}
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) { r.Service("a", s) }})
	require.NoError(t, err)
	s.failed <- errors.New("lost its lease")
	require.EqualError(t, <-rt.Failed(), "a: lost its lease")
	require.NoError(t, rt.Stop(t.Context()))
}

// drainNotifier is a feed that closes drained when it drains and reads no more.
type drainNotifier struct {
	*pipelinetest.Feed
	drained chan struct{}
}

func (s drainNotifier) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	sub, err := s.Feed.Open(ctx, f)
	return drainNotifierSubscription{sub, s.drained}, err
}

type drainNotifierSubscription struct {
	pipeline.Subscription
	drained chan struct{}
}

func (s drainNotifierSubscription) Drain(ctx context.Context) error {
	err := s.Close()
	close(s.drained)
	return errors.Join(err, s.Subscription.Drain(ctx))
}

// No name that a route can have is taken.
func TestARouteMayHaveAnyName(t *testing.T) {
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "keep-alive", From: pipelinetest.NewFeed("a"), Handle: ack, Policy: lossy})
	}})
	require.NoError(t, err)
	require.NoError(t, rt.Stop(t.Context()))
}

// A message in flight when the stop begins is finished and acked, with its context alive.
func TestStopDrains(t *testing.T) {
	feed := drainNotifier{pipelinetest.NewFeed("in"), make(chan struct{})}
	entered, release := make(chan struct{}), make(chan struct{})
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "r", From: feed, Policy: lossy, Handle: func(m *message.Message) ([]*message.Message, error) {
			close(entered)
			<-release
			return nil, m.Context().Err()
		}})
	}})
	require.NoError(t, err)
	feed.SendPayloads("in flight", "not read")
	<-entered
	stopped := make(chan error)
	go func() { stopped <- rt.Stop(context.Background()) }()
	<-feed.drained
	select {
	case err := <-stopped:
		require.FailNow(t, "stopped with a message in flight", err)
	default:
	}
	close(release)
	require.NoError(t, <-stopped)
	require.True(t, (<-feed.Settled()).Acked)
	require.Empty(t, feed.Settled(), "a message was begun after the stop")
}

// phased is a service that writes its phases, and how much time its Stop was given.
type phased struct {
	*service
	left time.Duration
	err  error
}

func (s *phased) Running()  { s.diary.write("running") }
func (s *phased) Draining() { s.diary.write("draining") }

func (s *phased) Stop(ctx context.Context) error {
	deadline, _ := ctx.Deadline()
	s.left, s.err = time.Until(deadline), ctx.Err()
	return s.service.Stop(ctx)
}

// stuck is a source with a message in flight that is never acked: its drain takes all the time it
// is given.
type stuck struct{ *pipelinetest.Feed }

func (s stuck) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	sub, err := s.Feed.Open(ctx, f)
	return stuckSubscription{sub}, err
}

type stuckSubscription struct{ pipeline.Subscription }

func (s stuckSubscription) Drain(ctx context.Context) error {
	<-ctx.Done()
	return errors.Join(s.Subscription.Drain(context.WithoutCancel(ctx)), ctx.Err())
}

// The clock is the bubble's: what Stop takes is exact.
func TestAStuckRouteCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const limit = 2 * time.Second
		healthy, d, begun := pipelinetest.NewFeed("healthy"), &diary{}, atomic.Int32{}
		flush := &phased{service: &service{name: "flush", diary: d}}
		reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, plugin{"toy", func(r *pipeline.Registry) {
			r.Service("flush", flush)
			r.Route(pipeline.Route{Name: "healthy", From: healthy, Policy: lossy, Handle: func(*message.Message) ([]*message.Message, error) {
				begun.Add(1)
				time.Sleep(limit / 4)
				return nil, nil
			}})
			r.Route(pipeline.Route{Name: "stuck", From: stuck{pipelinetest.NewFeed("stuck")}, Handle: ack, Policy: lossy})
		}})
		require.NoError(t, err)
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap, StopTimeout: limit})
		require.NoError(t, rt.Start(t.Context()))
		healthy.SendPayloads("1", "2", "3", "4", "5", "6", "7", "8")
		synctest.Wait()

		begin, before := time.Now(), begun.Load()
		err = rt.Stop(t.Context())
		require.ErrorContains(t, err, "drain route stuck: context deadline exceeded")
		require.NotContains(t, err.Error(), "healthy")
		require.LessOrEqual(t, time.Since(begin), limit, "draining and stopping, together")
		require.Equal(t, before, begun.Load(), "a message was begun after the stop")
		require.True(t, (<-healthy.Settled()).Acked, "what was in flight is finished")
		require.NoError(t, flush.err, "a service is stopped with a context that lives")
		require.Positive(t, flush.left)
		require.Equal(t, []string{"start flush", "running", "draining", "stop flush"}, d.lines)
	})
}

// The Router has a time limit of its own for handlers; Stop does not wait for it.
func TestAHandlerThatNeverReturnsIsWaitedForOnce(t *testing.T) {
	t.Parallel()
	feed, entered, release := pipelinetest.NewFeed("in"), make(chan struct{}), make(chan struct{})
	defer close(release)
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "r", From: feed, Policy: lossy, Handle: func(*message.Message) ([]*message.Message, error) {
			close(entered)
			<-release
			return nil, nil
		}})
	}})
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap, StopTimeout: time.Hour})
	require.NoError(t, rt.Start(t.Context()))
	feed.SendPayloads("never done")
	<-entered
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // there is no time left to drain
	stopped := make(chan error, 1)
	go func() { stopped <- rt.Stop(ctx) }()
	select {
	case err := <-stopped:
		require.ErrorContains(t, err, "route r: ")
	case <-time.After(2 * time.Minute):
		require.Fail(t, "Stop still waits for the handler")
	}
}

// A service that hangs in its Stop leaves time to those after it.
func TestAServiceThatHangsCostsTheOthersNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		flush := &phased{service: &service{name: "flush", diary: d}}
		reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, plugin{"toy", func(r *pipeline.Registry) {
			r.Service("flush", flush)
			r.Service("hangs", hangs{})
		}})
		require.NoError(t, err)
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{StopTimeout: 4 * time.Second})
		require.NoError(t, rt.StartServices(t.Context()))
		require.ErrorContains(t, rt.Stop(t.Context()), "stop hangs: context deadline exceeded")
		require.NoError(t, flush.err)
		require.Equal(t, 2*time.Second, flush.left)
	})
}

// hangs is a service that uses all the time its Stop is given.
type hangs struct{}

func (hangs) Start(context.Context) error { return nil }

func (hangs) Stop(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// drainer is a service that writes its drain, and how much time it was given.
type drainer struct {
	*phased
	hangs bool
	drain time.Duration
}

func (s *drainer) Drain(ctx context.Context) error {
	s.diary.write("drain " + s.name)
	deadline, _ := ctx.Deadline()
	s.drain = time.Until(deadline)
	if s.hangs {
		<-ctx.Done()
	}
	return ctx.Err()
}

// diaryFeed is a feed that writes its drain.
type diaryFeed struct {
	*pipelinetest.Feed
	diary *diary
}

func (s diaryFeed) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	sub, err := s.Feed.Open(ctx, f)
	return diarySubscription{sub, s.diary}, err
}

type diarySubscription struct {
	pipeline.Subscription
	diary *diary
}

func (s diarySubscription) Drain(ctx context.Context) error {
	s.diary.write("drain route")
	return s.Subscription.Drain(ctx)
}

// A Drain that hangs leaves time to the next one, to the routes, and to the services.
func TestServicesDrainUpstreamFirstBeforeTheRoutes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &diary{}
		down := &drainer{phased: &phased{service: &service{name: "down", diary: d}}}
		up := &drainer{phased: &phased{service: &service{name: "up", diary: d}}, hangs: true}
		reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, plugin{"toy", func(r *pipeline.Registry) {
			r.Service("down", down)
			r.Service("plain", &service{name: "plain", diary: d})
			r.Service("up", up)
			r.Route(pipeline.Route{Name: "r", From: diaryFeed{pipelinetest.NewFeed("in"), d}, Handle: ack, Policy: lossy})
		}})
		require.NoError(t, err)
		rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap, StopTimeout: 8 * time.Second})
		require.NoError(t, rt.Start(t.Context()))
		d.lines = nil
		require.EqualError(t, rt.Stop(t.Context()), "drain up: context deadline exceeded")
		require.NoError(t, rt.Stop(t.Context()), "Drain is called once")
		require.Equal(t, []string{"draining", "draining", "drain up", "drain down", "drain route", "stop up", "stop plain", "stop down"}, d.lines)
		require.Equal(t, []time.Duration{4 * time.Second, 2 * time.Second, 4 * time.Second}, []time.Duration{up.drain, down.drain, down.left})
	})
}

func TestAServiceThatDidNotStartIsNotDrained(t *testing.T) {
	d := &diary{}
	_, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Service("a", &drainer{phased: &phased{service: &service{name: "a", diary: d}}})
		r.Service("b", &drainer{phased: &phased{service: &service{name: "b", diary: d, startErr: errors.New("port in use")}}})
		r.Service("c", &drainer{phased: &phased{service: &service{name: "c", diary: d}}})
	}})
	require.ErrorContains(t, err, "start b: port in use")
	require.Equal(t, []string{"start a", "start b", "draining", "drain a", "stop a"}, d.lines)
}

// flowRecorder is a feed that sends the flow it was opened with.
type flowRecorder struct {
	*pipelinetest.Feed
	flow chan pipeline.Flow
}

func (s flowRecorder) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	s.flow <- f
	return s.Feed.Open(ctx, f)
}

// The transport stops keeping a message alive when the policy says so.
func TestTheLongestHoldReachesTheTransport(t *testing.T) {
	for name, tt := range map[string]struct {
		policy pipeline.Policy
		want   time.Duration
	}{
		"as set":            {pipeline.Policy{Timeout: time.Second, LongestHold: time.Minute}, time.Minute},
		"ten times Timeout": {pipeline.Policy{Timeout: 10 * time.Second}, 100 * time.Second},
		"at least a minute": {pipeline.Policy{Timeout: time.Second}, time.Minute},
		"the defaults":      {pipeline.Policy{}, 300 * time.Second},
		"no limit":          {pipeline.Policy{LongestHold: -1}, -1},
		"no time limit":     {pipeline.Policy{Timeout: -1}, -1},
	} {
		t.Run(name, func(t *testing.T) {
			feed := flowRecorder{pipelinetest.NewFeed("in"), make(chan pipeline.Flow, 1)}
			tt.policy.DeadLetter = pipeline.Drop
			rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
				r.Route(pipeline.Route{Name: "r", From: feed, Handle: ack, Policy: tt.policy, Flow: pipeline.Flow{Window: 7}})
			}})
			require.NoError(t, err)
			require.NoError(t, rt.Stop(t.Context()))
			require.Equal(t, pipeline.Flow{Window: 7, LongestHold: tt.want}, <-feed.flow)
		})
	}
}

func TestRegistryReportsEveryMistakeAtOnce(t *testing.T) {
	_, err := pipeline.NewRegistry(pipeline.Env{},
		plugin{"toy", func(r *pipeline.Registry) {
			r.Route(pipeline.Route{Name: "r", Handle: ack, Policy: lossy})
			r.Route(pipeline.Route{Name: "r", From: pipelinetest.NewFeed("a")})
			r.Route(pipeline.Route{Name: "keep alive", From: pipelinetest.NewFeed("b"), Handle: ack, Policy: lossy})
			r.Route(pipeline.Route{Name: "retries", From: pipelinetest.NewFeed("c"), Handle: ack, Policy: pipeline.Policy{
				DeadLetter: pipeline.Drop, Retry: pipeline.Retry{To: pipelinetest.NewRecorder("without-a-route")},
			}})
			for _, name := range []string{"one", "two"} {
				r.Route(pipeline.Route{Name: name, From: pipelinetest.NewFeed("retries"), Handle: ack, Policy: pipeline.Policy{
					DeadLetter: pipeline.Drop, Retry: pipeline.Retry{To: into{pipelinetest.NewFeed("retries").Describe()}},
				}})
			}
		}},
		plugin{"classes", func(r *pipeline.Registry) {
			r.ErrorClasses(pipeline.ErrorClass{Name: pipeline.ClassUndecodable})
		}},
		plugin{"toy", func(*pipeline.Registry) {}},
		plugin{"Not A Name", func(*pipeline.Registry) {}})
	for _, want := range []string{
		"route r: From is nil", "route r: Handle and HandleBatch are nil", `route "r" is already registered by plugin toy`,
		`plugin "toy" is already registered`, `got "Not A Name"`,
		"route r: Policy.DeadLetter is nil: set a sink for messages that can never be handled, or pipeline.Drop to lose them",
		`route name must be lower-case letters and digits, with . - or _ between them, got "keep alive"`,
		"route retries: no route reads its retry topic recorder without-a-route",
		"routes one, two read the retry topic feed retries: one route must read it",
		`error class "undecodable" is already registered`,
	} {
		require.ErrorContains(t, err, want)
	}
}

// into is a sink to an endpoint that is also read.
type into struct{ at pipeline.Endpoint }

func (s into) Describe() pipeline.Endpoint                      { return s.at }
func (into) Publish(context.Context, ...*message.Message) error { return nil }
