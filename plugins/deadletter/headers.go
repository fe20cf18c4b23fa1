package deadletter

import (
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/store"
)

// deadHeaders is the prefix of the headers that say why a message is a dead letter.
const deadHeaders = "millrace-dead-"

// fromMessage reads a dead letter from the headers that pipeline.DeadLetter.Message wrote.
func fromMessage(topic string, m *message.Message) store.DeadLetter {
	meta := m.Metadata
	d := pipeline.DeadLetter{
		Payload: m.Payload, Metadata: maps.Clone(map[string]string(meta)), Key: meta.Get(pipeline.MetaKey), Class: meta.Get(pipeline.MetaDeadClass),
		Error: meta.Get(pipeline.MetaDeadError), Handler: meta.Get(pipeline.MetaDeadHandler), Origin: meta.Get(pipeline.MetaDeadOrigin),
	}
	d.Attempts, _ = strconv.Atoi(meta.Get(pipeline.MetaDeadAttempts))
	d.FailedAt, _ = time.Parse(time.RFC3339Nano, meta.Get(pipeline.MetaDeadFailedAt))
	d.FirstFailedAt, _ = time.Parse(time.RFC3339Nano, meta.Get(pipeline.MetaDeadFirstFailedAt))
	maps.DeleteFunc(d.Metadata, func(name, _ string) bool { return name == pipeline.MetaKey || strings.HasPrefix(name, deadHeaders) })
	return store.From("", store.PluginOf(d.Handler), topic, meta.Get(pipeline.MetaDeadUUID), d)
}
