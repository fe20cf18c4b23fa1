package app_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// end is one end of a route, of any kind; opening it fails the test.
type end struct {
	t testing.TB
	pipeline.Endpoint
}

func (e end) Describe() pipeline.Endpoint { return e.Endpoint }

// Delays makes it a pipeline.Delayer.
func (e end) Delays() error { return nil }

func (e end) Open(context.Context, pipeline.Flow) (pipeline.Subscription, error) {
	e.t.Error("topology opened a source")
	return nil, context.Canceled
}

func (e end) Publish(context.Context, ...*message.Message) error {
	e.t.Error("topology published")
	return context.Canceled
}

// mill is a plugin of three routes with every kind of end, and of endpoints outside of them.
type mill struct{ t testing.TB }

func (mill) Name() string { return "mill" }

func (m mill) Register(r *pipeline.Registry) error {
	kafka := func(topic, group string) end {
		return end{m.t, pipeline.Endpoint{Kind: "kafka", Name: topic, Group: group}}
	}
	handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	r.Service("mill", toyService{&toy{order: &journal{}, start: func(context.Context) error {
		m.t.Error("topology started a service")
		return nil
	}}})
	r.Route(pipeline.Route{
		Name: "grind", From: kafka("grain", "millers"), To: kafka("flour", ""), Handle: handle,
		Outputs: map[string]pipeline.Sink{"husks": kafka("bran", ""), "dust": end{m.t, pipeline.Endpoint{Kind: "redis-stream", Name: "dust"}}},
		Policy: pipeline.Policy{
			Timeout: 1500 * time.Millisecond, DeadLetter: kafka("grain-dead", ""),
			Retry: pipeline.Retry{To: kafka("grain-retry", ""), Max: 5},
		},
		Flow: pipeline.Flow{Window: 256, Order: pipeline.OrderKey},
		Middlewares: []pipeline.Middleware{
			{Name: "weigh", Place: pipeline.PlaceHandler, Wrap: func(h message.HandlerFunc) message.HandlerFunc { return h }},
			{Name: "sieve", Place: pipeline.PlaceReceived, Wrap: func(h message.HandlerFunc) message.HandlerFunc { return h }},
		},
	})
	r.Route(pipeline.Route{
		Name: "grind-again", From: kafka("grain-retry", "millers-retry"), To: kafka("flour", ""), Handle: handle,
		Policy: pipeline.Policy{DeadLetter: kafka("grain-dead", "")},
	})
	r.Route(pipeline.Route{
		Calls: []pipeline.Endpoint{pipeline.ServerOf("https://user:secret@bells.example:8443/secret?key=secret#x")},
		Name:  "bell", From: end{m.t, pipeline.Endpoint{Kind: "elastic-streams", Name: `bell:<TYPE>:"<id>"`}}, Handle: handle,
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop}, Flow: pipeline.Flow{Order: pipeline.OrderPartition},
	})
	r.HTTP("GET /mill", http.NotFoundHandler())
	r.Endpoint(pipeline.UseWeb, pipeline.Endpoint{Kind: pipeline.KindHTTP, Name: "GET /bells/{id}"})
	r.Endpoint(pipeline.UseWrites, pipeline.Endpoint{Kind: "redis-stream", Name: "bells:<shard>"})
	r.Endpoint(pipeline.UseCalls, pipeline.ServerOf("http://weather.example/v1"))
	r.Endpoint(pipeline.UseFollows, pipeline.Endpoint{Kind: "redis-stream", Name: "bells:<shard>"})
	return nil
}

func TestTopology(t *testing.T) {
	t.Parallel()
	for format, file := range map[string]string{"table": "topology.txt", "mermaid": "topology.mmd", "json": "topology.json"} {
		t.Run(format, func(t *testing.T) {
			t.Parallel()
			r := run(t.Context(), options(mill{t}, "topology", "--format", format))
			require.Zero(t, r.code, r.stderr)
			golden(t, file, r.stdout)
		})
	}
	t.Run("--json", func(t *testing.T) {
		t.Parallel()
		golden(t, "topology.json", run(t.Context(), options(mill{t}, "topology", "--json")).stdout)
		golden(t, "topology_wide.txt", run(t.Context(), options(mill{t}, "topology", "--wide")).stdout)
	})
	t.Run("plugins that are off", func(t *testing.T) {
		t.Parallel()
		o := options(bare{}, "topology")
		o.Environ = []string{"MILL__PLUGINS__BARE__ENABLED=false"}
		const off = "\noff (plugins.NAME.enabled: true switches one on)\n  bare\n"
		require.Equal(t, result{0, "No routes.\n" + off, ""}, run(t.Context(), o))
		o.Args = []string{"topology", "--wide"}
		require.Contains(t, run(t.Context(), o).stdout, off)
		o.Args = []string{"topology", "--json"}
		require.Contains(t, run(t.Context(), o).stdout, "\"off\": [\n    \"bare\"\n  ]")
	})
	t.Run("nothing", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, result{0, "{\n  \"routes\": [],\n  \"endpoints\": []\n}\n", ""}, run(t.Context(), options(bare{}, "topology", "--json")))
	})
}
