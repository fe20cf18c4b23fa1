package wire

import (
	"reflect"

	"github.com/google/wire"

	"github.com/millrace-io/millrace/handlers/effects"
	"github.com/millrace-io/millrace/handlers/eventrouter"
	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/waitingroom"
	"github.com/millrace-io/millrace/handlers/webhook"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/console"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/reclaim"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/telemetry"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Transports bring messages in and out. The topics of handlers are those of Kafka.
var Transports = wire.NewSet(kafka.New, redis.New, wire.Bind(new(pipeline.Topics), new(*kafka.Plugin)))

// Capabilities are shared by handlers.
var Capabilities = wire.NewSet(telemetry.New, newDeadLetters, reclaim.New, newOnce, token.New, sse.New, web.New, console.New,
	wire.Bind(new(pipeline.DeadLetters), new(*deadletter.Plugin)))

// newDeadLetters names the transports into which dead letters are replayed.
func newDeadLetters(topics *kafka.Plugin, streams *redis.Plugin) *deadletter.Plugin {
	return deadletter.New(topics, streams).StoreIn(sqldb.Databases{})
}

// newOnce names the Redis of kinds with via: streams.
func newOnce(topics pipeline.Topics, dead pipeline.DeadLetters, streams *redis.Plugin) *once.Plugin {
	return once.NewPlugin(topics, dead).UseStreams(streams)
}

// Handlers are the business. `millrace new handler` adds one.
var Handlers = wire.NewSet(promotion.New, eventrouter.New, waitingroom.New, webhook.New, effects.New)

// Service is what the binary runs. A plugin stands below those that it uses, because the plugins start
// in this order and stop in the reverse one.
type Service struct {
	Telemetry   *telemetry.Plugin
	Redis       *redis.Plugin
	Kafka       *kafka.Plugin
	DeadLetters *deadletter.Plugin
	Reclaim     *reclaim.Plugin
	Once        *once.Plugin
	Tokens      *token.Plugin
	Events      *sse.Plugin
	Web         *web.Plugin
	Console     *console.Plugin

	Promotion   *promotion.Plugin
	EventRouter *eventrouter.Plugin
	WaitingRoom *waitingroom.Plugin
	Webhook     *webhook.Plugin
	Effects     *effects.Plugin
}

// Plugins returns the plugins in the order of the fields.
func (s Service) Plugins() (all []pipeline.Plugin) {
	fields := reflect.ValueOf(s)
	for i := range fields.NumField() {
		all = append(all, fields.Field(i).Interface().(pipeline.Plugin))
	}
	return all
}
