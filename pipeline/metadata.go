package pipeline

// Metadata keys of messages, the same on the wire as Kafka headers and stream entry headers.
const (
	// MetaDue is when a retry record may be handled, RFC 3339 with nanoseconds, UTC.
	MetaDue = "millrace-due"
	// MetaAttempt is the number of retries spent so far, in decimal. A hint where a ledger counts.
	MetaAttempt = "millrace-attempt"
	// MetaFirstFailedAt is when the message failed first, RFC 3339; travels with retry records.
	MetaFirstFailedAt = "millrace-first-failed-at"
	// MetaKey is the record or entry key.
	MetaKey = "millrace-key"
	// MetaTraceParent is the W3C trace context.
	MetaTraceParent = "traceparent"

	// MetaDeadUUID is the id of the message that is dead; the dead letter has one of its own.
	MetaDeadUUID          = "millrace-dead-uuid"
	MetaDeadClass         = "millrace-dead-class"
	MetaDeadError         = "millrace-dead-error"
	MetaDeadHandler       = "millrace-dead-handler"
	MetaDeadOrigin        = "millrace-dead-origin"
	MetaDeadAttempts      = "millrace-dead-attempts"
	MetaDeadFirstFailedAt = "millrace-dead-first-failed-at"
	MetaDeadFailedAt      = "millrace-dead-failed-at"
)
