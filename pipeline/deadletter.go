package pipeline

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

const (
	// maxDeadError bounds the error's text in the header of a dead letter, in bytes.
	maxDeadError = 4 << 10
	// cutPayload and cutError are what a dead letter keeps of payload and error when its sink
	// refused more, in bytes.
	cutPayload = 8 << 10
	cutError   = 256
)

// DeadLetter is a message that can never succeed, with the data to investigate it.
type DeadLetter struct {
	Payload       []byte            // unchanged
	Metadata      map[string]string // the record's own headers
	UUID          string            // of the message; empty when a ledger abandons a row
	Key           string            // record or entry key
	Class         string            // short snake_case class of the error
	Error         string            // the error's text
	Handler       string            // route
	SourceKind    string            // Origin.Kind of the message; empty: not known
	Source        string            // Origin.Source of the message; empty: not known
	Origin        string            // Origin.String of the message: its position
	Attempts      int               // how often it was tried
	FirstFailedAt time.Time
	FailedAt      time.Time
}

// Message returns the dead letter as it travels: the payload unchanged, provenance in metadata. The
// error's text is cut to 4 KiB. Headers of Metadata that begin with MetaDeadPrefix are left out: any
// client can send them, and one that says that the payload was cut would stop a replay.
func (d DeadLetter) Message() *message.Message {
	m := message.NewMessage(watermill.NewULID(), d.Payload)
	for k, v := range d.Metadata {
		if !strings.HasPrefix(k, MetaDeadPrefix) {
			m.Metadata.Set(k, v)
		}
	}
	if d.Key != "" {
		m.Metadata.Set(MetaKey, d.Key)
	}
	if d.UUID != "" {
		m.Metadata.Set(MetaDeadUUID, d.UUID)
	}
	m.Metadata.Set(MetaDeadClass, d.Class)
	m.Metadata.Set(MetaDeadError, cutText(d.Error, maxDeadError))
	m.Metadata.Set(MetaDeadHandler, d.Handler)
	m.Metadata.Set(MetaDeadOrigin, d.Origin)
	if d.Source != "" {
		m.Metadata.Set(MetaDeadSourceKind, d.SourceKind)
		m.Metadata.Set(MetaDeadSource, d.Source)
	}
	m.Metadata.Set(MetaDeadAttempts, strconv.Itoa(d.Attempts))
	m.Metadata.Set(MetaDeadFirstFailedAt, d.FirstFailedAt.UTC().Format(time.RFC3339Nano))
	m.Metadata.Set(MetaDeadFailedAt, d.FailedAt.UTC().Format(time.RFC3339Nano))
	return m
}

// PublishDeadLetter publishes the message of a DeadLetter. When the sink refuses it permanently (it
// is too large, for instance), only the first 8 KiB of its payload are published. When that is
// refused too, payload, key and the record's own headers are left out. MetaDeadPayloadBytes then
// holds the length of the payload, and MetaDeadPayloadSHA256 its hash. The error is permanent when the sink has refused the smallest
// form. m is not changed.
func PublishDeadLetter(ctx context.Context, to Sink, m *message.Message) error {
	err := to.Publish(ctx, m)
	for _, smaller := range []func(*message.Message) *message.Message{CutDeadLetter, bareDead} {
		if !IsPermanent(err) {
			return err
		}
		if cut := smaller(m); cut != nil {
			err = to.Publish(ctx, cut)
		}
	}
	return err
}

// CutDeadLetter returns the message of a DeadLetter with the first 8 KiB of its payload, and with
// the length and the hash of the complete one. It returns nil when the payload is not longer. m is
// not changed.
func CutDeadLetter(m *message.Message) *message.Message {
	if len(m.Payload) <= cutPayload {
		return nil
	}
	cut := message.NewMessage(m.UUID, m.Payload[:cutPayload])
	cut.Metadata = maps.Clone(m.Metadata)
	describePayload(cut.Metadata, m.Payload)
	return cut
}

// describePayload notes length and hash of a payload that a dead letter does not have completely.
// What is left of a payload that was cut before keeps those of the complete one.
func describePayload(to message.Metadata, payload []byte) {
	if to.Get(MetaDeadPayloadBytes) != "" {
		return
	}
	to.Set(MetaDeadPayloadBytes, strconv.Itoa(len(payload)))
	to.Set(MetaDeadPayloadSHA256, fmt.Sprintf("%x", sha256.Sum256(payload)))
}

// bareDead returns what a dead letter can't do without: why it is dead, and where it came from.
func bareDead(m *message.Message) *message.Message {
	bare := message.NewMessage(m.UUID, nil)
	for k, v := range m.Metadata {
		if strings.HasPrefix(k, MetaDeadPrefix) || k == MetaTraceParent {
			bare.Metadata.Set(k, cutText(v, cutError))
		}
	}
	describePayload(bare.Metadata, m.Payload)
	return bare
}

// cutText returns the beginning of text and how much is missing, in at most limit bytes.
func cutText(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	missing := fmt.Sprintf(" … (%d bytes)", len(text))
	return strings.ToValidUTF8(text[:limit-len(missing)], "") + missing
}
