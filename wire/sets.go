package wire

import (
	"github.com/google/wire"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redispoll"
	"github.com/millrace-io/millrace/plugins/redisstream"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// Transports bring messages in and out.
var Transports = wire.NewSet(kafka.New, wire.Bind(new(deadletter.Topics), new(*kafka.Plugin)), redispoll.New, redisstream.New)

// Capabilities are what handlers share beside transports.
var Capabilities = wire.NewSet(telemetry.New, deadletter.New, reclaim.New)

// Handlers are the business.
var Handlers = wire.NewSet(promotion.New)

// list orders the plugins, downstream first: services start in this order and stop in the reverse one.
func list(
	ops *telemetry.Plugin, redis *redispoll.Plugin, topics *kafka.Plugin, bridge *redisstream.Plugin,
	dead *deadletter.Plugin, claims *reclaim.Plugin,
	payouts *promotion.Plugin,
) []pipeline.Plugin {
	return []pipeline.Plugin{ops, redis, topics, bridge, dead, claims, payouts}
}
