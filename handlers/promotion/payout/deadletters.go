package payout

import (
	"context"
	"fmt"
	"strconv"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// OutboxName is the name of the ledger's outbox in package deadletter. It is part of dead letter
// ids.
const OutboxName = "promotion"

// DeadLetters gives the dead letters in the ledger's outbox to package deadletter.
type DeadLetters struct{ Ledger func() *ledger.Ledger }

// Relay implements deadletter.Outbox.
func (d DeadLetters) Relay(ctx context.Context, limit int, publish func(context.Context, []deadletter.Entry) error) (int, error) {
	return d.Ledger().Relay(ctx, ledger.OutboxDead, limit, func(ctx context.Context, batch []ledger.OutboxMessage) error {
		entries := make([]deadletter.Entry, len(batch))
		for i, m := range batch {
			t, known := promotiontype.ByName(string(m.Key.Type))
			if !known {
				return fmt.Errorf("dead letter %d is of type %s, which this version doesn't have", m.ID, m.Key.Type)
			}
			kind, source := sourceOf(m.Origin)
			entries[i] = deadletter.Entry{
				Topic: t.DeadTopic(), ID: DeadLetterID(m), Subject: m.Key.String(), Detached: Offered(m.Class),
				DeadLetter: pipeline.DeadLetter{
					Payload: m.Payload, Metadata: m.Headers, Key: string(m.RecordKey), Class: m.Class, Error: m.Error, Handler: m.Route,
					SourceKind: kind, Source: source, Origin: m.Origin, Attempts: m.Attempts, FirstFailedAt: m.FirstFailedAt, FailedAt: m.CreatedAt,
				},
			}
		}
		return publish(ctx, entries)
	})
}

// sourceOf returns the transport and the topic or stream of an origin. The ledger stores only the
// text of pipeline.Origin, so each transport that promotions read is asked whether it wrote the text.
func sourceOf(origin string) (kind, source string) {
	if topic, ok := kafka.ParseOrigin(origin); ok {
		return kafka.Kind, topic
	}
	if stream, ok := entry.ParseOrigin(origin); ok {
		return poll.Kind, stream
	}
	return "", origin
}

// DeadLetterID returns the same id each time a dead letter is relayed. The time distinguishes the
// rows of two ledgers.
func DeadLetterID(m ledger.OutboxMessage) string {
	return store.ID(OutboxName, strconv.FormatInt(m.ID, 10), strconv.FormatInt(m.CreatedAt.UnixMicro(), 10))
}

// Offered reports whether a dead letter of that class has a message that is not the stored record
// of its payout. It then says nothing about the payout.
func Offered(class string) bool {
	return class == rules.ClassConflict || class == rules.ClassUnannounced
}
