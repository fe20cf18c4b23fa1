package eventrouter

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Each domain has a route with a gate of its own, and each shard its own batches: one that hangs or
// fails delays no other.
func TestEachDomainHasARouteOfItsOwn(t *testing.T) {
	t.Parallel()
	p, shared := newPlugin()
	p.config.Roles = []string{roleRouter}
	for _, prefix := range p.config.Domains {
		shared.Domains = append(shared.Domains, redis.DomainConfig{Prefix: prefix, Shards: 2, Group: "g", Fields: true, Exclusive: true})
	}
	registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	routes := registry.Routes()
	require.Len(t, routes, len(p.config.Domains))
	for i, r := range routes {
		require.True(t, r.Batch.PerSource)
		shard := shared.Domains[i].Stream(1)
		msg := message.NewMessage("", []byte(`{"job_id":"a","stage":"step","seq":"1"}`))
		msg.SetContext(pipeline.WithDelivery(t.Context(), pipeline.Delivery{Origin: pipeline.Origin{Source: shard, Position: shard + "@1-0"}, Delivered: 1}))
		require.Error(t, r.HandleBatch(t.Context(), []*message.Message{msg})[0].Err, "Redis is not started")
		for n, other := range routes {
			require.Equal(t, n > i, other.Flow.Gate(), "the gate of domain %d after the failure of domain %d", n, i)
		}
	}
}

// The command topology shows what a role writes and follows: the keys that the router and the gateway
// use, with the names that they use.
func TestTheTopologyHasWhatTheRolesWriteAndFollow(t *testing.T) {
	t.Parallel()
	uses := func(role string) (list []string) {
		p, shared := newPlugin()
		p.config.Roles, p.config.Domains = []string{role}, []string{"scan:events"}
		shared.Domains = []redis.DomainConfig{{Prefix: "scan:events", Shards: 8, Group: "g", Fields: true, Exclusive: true}}
		registry, err := pipeline.NewRegistry(pipeline.Env{}, p)
		require.NoError(t, err)
		for _, e := range registry.Endpoints() {
			if e.Use == pipeline.UseWrites || e.Use == pipeline.UseFollows {
				require.Equal(t, p.Name(), e.Plugin)
				list = append(list, e.Use+" "+e.String())
			}
		}
		return list
	}
	require.Equal(t, []string{
		"writes redis-stream scan:feed:<0…7>", "writes redis-hash scan:log:{<job_id>}", "writes redis-string scan:state:{<job_id>}",
	}, uses(roleRouter))
	require.Equal(t, []string{"follows redis-stream scan:feed:<0…7>"}, uses(roleGateway))
}
