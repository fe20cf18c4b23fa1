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
var Transports = wire.NewSet(kafka.New, wire.Bind(new(deadletter.Topics), new(*kafka.Plugin)),
	redispoll.New, wire.Bind(new(deadletter.Streams), new(*redispoll.Plugin)), redisstream.New)

// Capabilities are what handlers share beside transports.
var Capabilities = wire.NewSet(telemetry.New, deadletter.New, reclaim.New)

// Handlers are the business: a new one is its constructor here, and its place in newService.
var Handlers = wire.NewSet(promotion.New)

// Service is what a binary is made of.
type Service struct {
	// Plugins are all plugins, downstream first: services start in this order and stop in the reverse one.
	Plugins []pipeline.Plugin
}

func newService(
	ops *telemetry.Plugin, redis *redispoll.Plugin, topics *kafka.Plugin, bridge *redisstream.Plugin,
	dead *deadletter.Plugin, claims *reclaim.Plugin,
	payouts *promotion.Plugin,
) Service {
	return Service{
		Plugins: []pipeline.Plugin{ops, redis, topics, bridge, dead, claims, payouts},
	}
}
