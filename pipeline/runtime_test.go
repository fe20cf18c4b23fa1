package pipeline_test

import (
	"context"
	"errors"
	"sync"
	"testing"
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
		r.Route(pipeline.Route{Name: "good", From: pipelinetest.NewFeed("a"), Handle: ack})
		r.Route(pipeline.Route{Name: "bad", From: brokenSource{pipelinetest.NewFeed("b")}, Handle: ack})
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

// drainTold is a feed that tells when it was asked to drain and reads no more.
type drainTold struct {
	*pipelinetest.Feed
	told chan struct{}
}

func (s drainTold) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	sub, err := s.Feed.Open(ctx, f)
	return drainToldSubscription{sub, s.told}, err
}

type drainToldSubscription struct {
	pipeline.Subscription
	told chan struct{}
}

func (s drainToldSubscription) Drain(ctx context.Context) error {
	err := s.Close()
	close(s.told)
	return errors.Join(err, s.Subscription.Drain(ctx))
}

// A message in hand when the stop begins is finished and acked, with its context alive.
func TestStopDrains(t *testing.T) {
	feed := drainTold{pipelinetest.NewFeed("in"), make(chan struct{})}
	entered, release := make(chan struct{}), make(chan struct{})
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		r.Route(pipeline.Route{Name: "r", From: feed, Handle: func(m *message.Message) ([]*message.Message, error) {
			close(entered)
			<-release
			return nil, m.Context().Err()
		}})
	}})
	require.NoError(t, err)
	feed.SendPayloads("in hand", "not read")
	<-entered
	stopped := make(chan error)
	go func() { stopped <- rt.Stop(context.Background()) }()
	<-feed.told
	select {
	case err := <-stopped:
		require.FailNow(t, "stopped with a message in hand", err)
	default:
	}
	close(release)
	require.NoError(t, <-stopped)
	require.True(t, (<-feed.Settled()).Acked)
	require.Empty(t, feed.Settled(), "a message was begun after the stop")
}

// asked is a feed that tells the flow it was opened with.
type asked struct {
	*pipelinetest.Feed
	flow chan pipeline.Flow
}

func (s asked) Open(ctx context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
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
		"ten times Timeout": {pipeline.Policy{Timeout: time.Second}, 10 * time.Second},
		"no limit":          {pipeline.Policy{}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			feed := asked{pipelinetest.NewFeed("in"), make(chan pipeline.Flow, 1)}
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
			r.Route(pipeline.Route{Name: "r", Handle: ack})
			r.Route(pipeline.Route{Name: "r", From: pipelinetest.NewFeed("a")})
		}},
		plugin{"toy", func(*pipeline.Registry) {}},
		plugin{"Not A Name", func(*pipeline.Registry) {}})
	for _, want := range []string{
		"route r: From is nil", "route r: Handle is nil", `route "r" is already registered by plugin toy`,
		`plugin "toy" is already registered`, `got "Not A Name"`,
	} {
		require.ErrorContains(t, err, want)
	}
}
