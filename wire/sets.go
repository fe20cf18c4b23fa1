package wire

import (
	"github.com/google/wire"

	"github.com/millrace-io/millrace/handlers/eventrouter"
	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/waitingroom"
	"github.com/millrace-io/millrace/handlers/webhook"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/telemetry"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Transports bring messages in and out.
var Transports = wire.NewSet(kafka.New, redis.New)

// Capabilities are shared by handlers.
var Capabilities = wire.NewSet(telemetry.New, provideDeadLetters, reclaim.New, token.New, sse.New, web.New)

// Dead letters are replayed into these transports.
func provideDeadLetters(topics *kafka.Plugin, streams *redis.Plugin) *deadletter.Plugin {
	return deadletter.New(topics, streams).StoreIn(sqldb.Databases{})
}

// Handlers are the business. `millrace new handler` adds one.
var Handlers = wire.NewSet(promotion.New, eventrouter.New, waitingroom.New, provideWebhook)

func provideWebhook(topics *kafka.Plugin, dead *deadletter.Plugin) *webhook.Plugin {
	return webhook.New(topics, dead)
}

// Service is the content of the binary.
type Service struct {
	// Plugins are downstream first. Services start in this order and stop in the reverse order.
	Plugins []pipeline.Plugin
}

func newService(
	ops *telemetry.Plugin, redis *redis.Plugin, topics *kafka.Plugin,
	dead *deadletter.Plugin, claims *reclaim.Plugin, tokens *token.Plugin, events *sse.Plugin, public *web.Plugin,
	payouts *promotion.Plugin, jobs *eventrouter.Plugin, rooms *waitingroom.Plugin, hooks *webhook.Plugin,
) Service {
	return Service{
		Plugins: []pipeline.Plugin{ops, redis, topics, dead, claims, tokens, events, public, payouts, jobs, rooms, hooks},
	}
}
