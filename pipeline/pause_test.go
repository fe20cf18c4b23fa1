package pipeline_test

import (
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// pauser is a plugin that pauses routes.
type pauser struct {
	mu     sync.Mutex
	paused []string
}

func (*pauser) Name() string                          { return "pauser" }
func (p *pauser) Register(r *pipeline.Registry) error { r.Offer(p); return nil }

func (p *pauser) RoutePaused(route string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Contains(p.paused, route)
}

func (p *pauser) pause(routes ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused = routes
}

// A pause closes the gate with which a route was opened, and that of its retry topic. It opens none that the route
// itself keeps closed.
func TestAPauseClosesTheGates(t *testing.T) {
	t.Parallel()
	source, retries, other := make(chan pipeline.Flow, 1), make(chan pipeline.Flow, 1), make(chan pipeline.Flow, 1)
	orders, again := pipelinetest.NewFeed("orders"), pipelinetest.NewFeed("again")
	orders.Name, again.Name = "orders", "again"
	own := true
	p := &pauser{}
	p.pause("orders")
	var reg *pipeline.Registry
	rt, err := start(t, plugin{"toy", func(r *pipeline.Registry) {
		reg = r
		policy := lossy
		policy.Retry = pipeline.Retry{To: again.Sink(), From: flowRecorder{again, retries}}
		r.Route(pipeline.Route{Name: "orders", From: flowRecorder{orders, source}, Handle: ack, Policy: policy, Flow: pipeline.Flow{Gate: func() bool { return own }}})
		r.Route(pipeline.Route{Name: "other", From: flowRecorder{pipelinetest.NewFeed("in"), other}, Handle: ack, Policy: lossy})
	}}, p)
	require.NoError(t, err)
	defer func() { require.NoError(t, rt.Stop(t.Context())) }()
	gates := []func() bool{(<-source).Gate, (<-retries).Gate, (<-other).Gate}
	open := func() (all []bool) {
		for _, gate := range gates {
			all = append(all, gate())
		}
		return all
	}
	paused := func() (all []bool) {
		for _, name := range []string{"orders", "orders.retry", "other", "absent"} {
			all = append(all, reg.RoutePaused(name))
		}
		return all
	}
	require.Equal(t, []bool{false, false, true}, open(), "paused before the start")
	require.Equal(t, []bool{true, true, false, false}, paused())
	p.pause("orders.retry")
	require.Equal(t, []bool{true, false, true}, open())
	require.Equal(t, []bool{false, true, false, false}, paused())
	p.pause()
	require.Equal(t, []bool{true, true, true}, open())
	own = false
	require.Equal(t, []bool{false, false, true}, open(), "the route keeps its own gate closed")
	require.Equal(t, []bool{false, false, false, false}, paused())
}
