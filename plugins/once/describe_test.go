package once_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/console/graph"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// shop has a route that enqueues invoices, and says so in one line.
type shop struct {
	*invoices
	w *oncetest.World
}

func (*shop) Name() string { return "shop" }

func (s *shop) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "orders", From: s.w.Topics.Source("orders", "shop"),
		Handle: pipeline.JSON(func(ctx context.Context, i invoice) error {
			_, err := s.effects.Enqueue(ctx, i)
			return err
		}),
		Policy: pipeline.Policy{DeadLetter: s.w.Topics.Sink("orders-dead")},
		Calls:  []pipeline.Endpoint{s.effects.Describe()},
	})
	return s.effects.Register(r)
}

// The arrow leads from the route to the box that the plugin follows, and what holds the kind back is a condition of the route.
func TestARouteThatEnqueuesLeadsToItsKind(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	s := &shop{newInvoices(w.Once, once.ByKey, nil), w}
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "a"}, w.Once, s)
	require.NoError(t, err)
	g := graph.Of(app.NewTopology(reg))
	kind := graph.PlaceID(pipeline.Endpoint{Kind: "ledger", Name: "invoice"})
	require.Contains(t, g.Edges, graph.Edge{From: graph.RouteID("orders"), To: kind, Way: graph.Forward, Label: pipeline.UseCalls})
	require.Contains(t, g.Edges, graph.Edge{From: kind, To: graph.PluginID("shop", pipeline.UseFollows), Way: graph.Forward})
}
