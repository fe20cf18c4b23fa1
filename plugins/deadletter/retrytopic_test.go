package deadletter

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// shop has a route whose retry topic takes replays, and one whose retry topic has the handler of
// another route.
type shop struct {
	to   *topics
	dead *Plugin
}

func (shop) Name() string { return "shop" }

func (s shop) Register(r *pipeline.Registry) error {
	for name, takes := range map[string]bool{"pay": true, "accept": false} {
		r.Route(pipeline.Route{
			Name: "shop." + name, From: pipelinetest.NewFeed("orders"),
			Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
			Policy: pipeline.Policy{DeadLetter: s.dead.Sink("orders-dead"),
				Retry: pipeline.Retry{To: s.to.Sink("orders-retry"), ReadElsewhere: true, TakesReplays: takes}},
		})
	}
	return nil
}

func TestAReplayGoesToTheRetryTopicThatTakesReplays(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.others = func(p *Plugin) []pipeline.Plugin { return []pipeline.Plugin{shop{o.topics, p}} }
		pay, accept, gone := order(1), order(2), order(3)
		pay.Handler, accept.Handler, gone.Handler = "shop.pay", "shop.accept", "shop.removed"
		stream := order(4)
		stream.ID, stream.Handler, stream.Source = "stream", "shop.pay", entryOf("scan:orders:1", "7-0")
		o.put(pay, accept, gone, stream)
		out, code := o.run("show", pay.ID)
		require.Equal(t, app.ExitOK, code, out)
		require.Contains(t, out, "a replay would publish to kafka orders-retry")
		out, _ = o.run("show", accept.ID)
		require.Contains(t, out, "a replay would publish to kafka orders\n")

		require.Equal(t, 4, o.report(0, "replay", "--all", "--why", "x").Replayed)
		require.Equal(t, []string{"order 1", "order 4"}, o.topics.payloads("orders-retry"))
		require.Equal(t, []string{"order 2", "order 3"}, o.topics.payloads("orders"), "the retry topic has another handler, or the route is unknown")
		require.Zero(t, o.streams.called())
		m := o.topics.published["orders-retry"][0]
		require.Equal(t, map[string]string{"own": "header", pipeline.MetaKey: "1", pipeline.MetaReplay: pay.ID + "/1"}, map[string]string(m.Metadata),
			"neither count nor due time: its attempts begin again")
	})
}
