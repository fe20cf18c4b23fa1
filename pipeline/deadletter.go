package pipeline

import (
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// DeadLetter is a message that can never succeed, with what a person needs to judge it.
type DeadLetter struct {
	Payload       []byte            // as it came
	Metadata      map[string]string // the record's own headers
	UUID          string            // of the message; empty where a ledger gives up what it has stored
	Key           string            // record or entry key
	Class         string            // short snake_case class of the error
	Error         string            // the error's text
	Handler       string            // route
	Origin        string            // Origin.String of the message
	Attempts      int               // how often it was tried
	FirstFailedAt time.Time
	FailedAt      time.Time
}

// Message returns the dead letter as it travels: the payload unchanged, provenance in metadata.
func (d DeadLetter) Message() *message.Message {
	m := message.NewMessage(watermill.NewULID(), d.Payload)
	for k, v := range d.Metadata {
		m.Metadata.Set(k, v)
	}
	if d.Key != "" {
		m.Metadata.Set(MetaKey, d.Key)
	}
	if d.UUID != "" {
		m.Metadata.Set(MetaDeadUUID, d.UUID)
	}
	m.Metadata.Set(MetaDeadClass, d.Class)
	m.Metadata.Set(MetaDeadError, d.Error)
	m.Metadata.Set(MetaDeadHandler, d.Handler)
	m.Metadata.Set(MetaDeadOrigin, d.Origin)
	m.Metadata.Set(MetaDeadAttempts, strconv.Itoa(d.Attempts))
	m.Metadata.Set(MetaDeadFirstFailedAt, d.FirstFailedAt.UTC().Format(time.RFC3339Nano))
	m.Metadata.Set(MetaDeadFailedAt, d.FailedAt.UTC().Format(time.RFC3339Nano))
	return m
}
