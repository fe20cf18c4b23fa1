package promotiontype

import (
	"bytes"
	"encoding/json"
	"errors"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/pipeline"
)

// Type is a promotion type.
type Type struct {
	// Name is the type's name in keys, in the ledger, in JSON and in the idempotency key. Topic
	// names have it in lower case.
	Name string
	// Operation is the call of the Money API. Its request is the record without retryCount.
	Operation money.Operation
	// Column is the column for the value in a campaign file.
	Column string
	// IsAmount: the value is an amount in minor units.
	IsAmount bool
	// Sample returns a valid value for a generated campaign. n is from 1 to 10,000.
	Sample func(n int) string

	newRecord func() record
	fields    []field // in addition to the envelope's
	// canonical reads the value in the form that Encode writes, and returns it and what follows. It
	// must refuse every text of which that is not certain. Nil: see decodeCanonical.
	canonical func(text []byte) (value, rest []byte, ok bool)
}

// Payout is a record in the form that all types share.
type Payout struct {
	Promotion, Summary, Target int64
	Request                    []byte // body of the call, the same on every attempt
	Value                      string // what is paid: the amount, the voucher
}

// Decode makes a payout from a record or a request. Its request may be payload itself, so the caller
// must not change payload afterwards. The error is permanent, of class undecodable or too_large.
func (t Type) Decode(payload []byte) (Payout, error) {
	if p, ok := t.decodeCanonical(payload); ok {
		return p, nil
	}
	return t.decodeAny(payload)
}

// decodeAny decodes every payload, in any order of its fields.
func (t Type) decodeAny(payload []byte) (Payout, error) {
	r := t.newRecord()
	if err := decode(payload, r); err != nil {
		return Payout{}, err
	}
	e := r.common()
	if err := errors.Join(e.validateCommon(), r.validate()); err != nil {
		return Payout{}, pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable)
	}
	e.RetryCount = 0
	request, err := json.Marshal(r)
	return Payout{e.PromotionID, e.PromotionSummaryID, e.TargetID, request, r.value()}, err
}

// Encode returns the record of one target. The error says what is wrong with an id or the value.
func (t Type) Encode(promotion, summary, target int64, value string) ([]byte, error) {
	r := t.newRecord()
	if err := r.setValue(value); err != nil {
		return nil, err
	}
	e := r.common()
	*e = envelope{PromotionID: promotion, PromotionSummaryID: summary, TargetID: target}
	if err := errors.Join(e.validateCommon(), r.validate()); err != nil {
		return nil, err
	}
	return json.Marshal(r)
}

// SameRequest reports whether two requests of a type are for the same payout: same promotion,
// summary, target and value. The order of their fields and further fields may differ, because other
// versions may have written them.
func SameRequest(name string, stored, offered []byte) bool {
	if bytes.Equal(stored, offered) {
		return true
	}
	t, known := ByName(name)
	if !known {
		return false
	}
	a, err1 := t.Decode(stored)
	b, err2 := t.Decode(offered)
	return err1 == nil && err2 == nil && bytes.Equal(a.Request, b.Request)
}

// MinorUnits returns the value as an amount, or 0 when it is none.
func (t Type) MinorUnits(value string) int64 {
	if !t.IsAmount {
		return 0
	}
	n, _ := strconv.ParseInt(value, 10, 64) // an invalid value is no amount
	return n
}

func (t Type) topic(suffix string) string {
	return "campaign-promotion-" + strings.ToLower(t.Name) + "-" + suffix
}

// PublishTopic is the Kafka topic with the records of campaigns.
func (t Type) PublishTopic() string { return t.topic("publish") }

// RetryTopic is the Kafka topic with the retry records.
func (t Type) RetryTopic() string { return t.topic("retry") }

// DeadTopic is the Kafka topic with the dead letters.
func (t Type) DeadTopic() string { return t.topic("dead") }

// Group is the consumer group of the publish topic.
func (t Type) Group() string { return "prepay-admin-campaign-" + strings.ToLower(t.Name) }

// RetryGroup is the consumer group of the retry topic.
func (t Type) RetryGroup() string { return t.Group() + "-retry" }

const streamPrefix = "campaign-promotion-stream:"

// StreamName is what the Redis streams of all types are called.
const StreamName = streamPrefix + "<type and number>"

// StreamPrefix comes before the promotion's number in the key of its Redis stream.
func (t Type) StreamPrefix() string { return streamPrefix + t.Name + ":" }

// GroupPrefix comes before the promotion's number in the name of its stream's consumer group.
func (t Type) GroupPrefix() string { return "campaign-promotion-group:" + t.Name + ":" }

// IdempotencyKey identifies a payout at the Money API. It is the same on every attempt.
func (t Type) IdempotencyKey(promotion, target int64) string {
	return t.Name + ":" + strconv.FormatInt(promotion, 10) + ":" + strconv.FormatInt(target, 10)
}
