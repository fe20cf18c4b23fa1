package payouts

import "github.com/millrace-io/millrace/plugins/once/ledger/rules"

// Record is a message with everything that dead letters and the feeder need of it.
type Record struct {
	Key
	SummaryID int64
	// Payload is the message, unchanged. The feeder enqueues it again, and dead letters contain it.
	Payload []byte
	// Request is the exact request that every attempt sends. Empty: the payload itself.
	Request []byte
	// Headers are the message's own headers, without those of transports. May be nil.
	Headers map[string]string
	// RecordKey is the key of the record or entry. May be nil.
	RecordKey []byte
	// Origin is where the message was read (pipeline.Origin.String).
	Origin string
	// Route is the name of the route, for dead letters.
	Route string
}

// Limits of a record.
const (
	MaxPayloadBytes   = 64 << 10
	maxRecordKeyBytes = 64 << 10
)

// Validate returns an error that wraps rules.ErrInvalid for a record that can't be stored.
func (r *Record) Validate() error {
	if err := r.Key.Validate(); err != nil {
		return err
	}
	if len(r.Payload) == 0 {
		return rules.Invalid("payout %s: the payload is empty", r.Key)
	}
	if len(r.Payload) > MaxPayloadBytes || len(r.Request) > MaxPayloadBytes {
		return rules.Invalid("payout %s: the payload is larger than %d bytes", r.Key, MaxPayloadBytes)
	}
	if len(r.RecordKey) > maxRecordKeyBytes {
		return rules.Invalid("payout %s: the record key is larger than %d bytes", r.Key, maxRecordKeyBytes)
	}
	return nil
}

// RequestToSend returns the bytes that are sent.
func (r *Record) RequestToSend() []byte {
	if len(r.Request) > 0 {
		return r.Request
	}
	return r.Payload
}
