package once

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// acceptTimeout bounds the acceptance of a batch of records.
const acceptTimeout = 15 * time.Second

// classConflict is the class of a record whose key was accepted with another request before.
const classConflict = "effect_conflict"

func errorClasses() []pipeline.ErrorClass {
	return []pipeline.ErrorClass{{
		Name:   classForeign,
		Cause:  "another program has added an entry to a stream of a kind of effects. An entry alone asks for nothing, because the ledger decides",
		Action: "publish its record to the kind's topic if the effect is wanted, and discard",
	}, {
		Name:   classConflict,
		Cause:  "an effect with the same key and another request was accepted before, so this one is not called",
		Action: "compare the two: `once explain` shows the first. The publisher corrects the key, or discard",
	}}
}

// acceptRoute is the route of the kind's topic.
func acceptRoute(kind string) string { return kind + ".accept" }

// accept accepts the records of the kind's topic in one transaction. A record is acknowledged once its
// effect is in the ledger.
func (e *Effects[T]) accept(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
	results := make([]pipeline.BatchResult, len(msgs))
	records, at := make([]ledger.Record, 0, len(msgs)), make([]int, 0, len(msgs))
	for i, m := range msgs {
		rec, err := e.recordOf(m)
		if err != nil {
			results[i].Err = err
			continue
		}
		records, at = append(records, rec), append(at, i)
	}
	if len(records) == 0 {
		return results
	}
	failpoint.Hit(failpoint.BeforeInsert)
	accepted, err := e.worker.accept(ctx, e.plugin.ledger.Load(), records)
	for n, i := range at {
		if err == nil {
			results[i].Err = refusedRecord(records[n].Key, accepted[n])
		} else {
			results[i].Err = fmt.Errorf("once: accept %s: %w", textOf(records[n].Key), err)
		}
	}
	return results
}

// recordOf returns what the ledger stores of a message. Its errors name the place that the message came from,
// because that is what its publisher knows.
func (e *Effects[T]) recordOf(m *message.Message) (ledger.Record, error) {
	delivery := pipeline.DeliveryFrom(m.Context())
	origin := delivery.String()
	v, err := e.kind.decode(m.Payload)
	if err != nil {
		if !pipeline.IsPermanent(err) {
			err = pipeline.WithClass(pipeline.Permanent(fmt.Errorf("once: decode a record of kind %s: %w", e.kind.Name, err)), pipeline.ClassUndecodable)
		}
		return ledger.Record{}, withOrigin(origin, err)
	}
	rec, err := e.record(v, m.Payload)
	if err != nil {
		return ledger.Record{}, withOrigin(origin, pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable))
	}
	rec.Headers, rec.Origin, rec.Published, rec.RecordKey = traceHeaders(m.Context(), m.Metadata), origin, delivery.Published, m.Metadata.Get(pipeline.MetaKey)
	return rec, nil
}

func withOrigin(origin string, err error) error {
	return fmt.Errorf("the record at %s: %w", origin, err)
}

// refusedRecord returns the error of one record, or nil.
func refusedRecord(k ledger.Key, r ledger.AcceptResult) error {
	switch {
	case errors.Is(r.Err, rules.ErrInvalid):
		return pipeline.WithClass(pipeline.Permanent(fmt.Errorf("once: accept %s: %w", textOf(k), r.Err)), pipeline.ClassInvalid)
	case r.Err != nil:
		return fmt.Errorf("once: accept %s: %w", textOf(k), r.Err)
	case r.Accepted == Conflict:
		return pipeline.WithClass(pipeline.Permanent(fmt.Errorf("once: %s was accepted before with another request", textOf(k))), classConflict)
	}
	return nil
}

// textOf returns kind:group:id, which no other key has.
func textOf(k ledger.Key) string { return k.Kind + ":" + Key{Group: k.Group, ID: k.ID}.String() }

// reservedPrefix begins the metadata keys that are not the record's own headers.
const reservedPrefix = "millrace-"

// traceHeaders returns the headers that stay with an effect: those of its record that are text, because those of some
// publishers are numbers in binary form, and the trace of ctx.
func traceHeaders(ctx context.Context, all message.Metadata) message.Metadata {
	own := message.Metadata{}
	for name, value := range all {
		if !strings.HasPrefix(name, reservedPrefix) && name != pipeline.MetaTraceParent && utf8.ValidString(name) && utf8.ValidString(value) {
			own[name] = value
		}
	}
	pipeline.InjectTrace(ctx, own)
	return own
}
