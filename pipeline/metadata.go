package pipeline

// Metadata keys of messages, the same on the wire as Kafka headers and stream entry headers.
const (
	// MetaDue is when a retry record may be handled, RFC 3339 with nanoseconds, UTC, by the clock
	// of its writer. It counts only on a topic that is some route's Retry.To. See Delayer, DueTime.
	MetaDue = "millrace-due"
	// MetaAttempt is the number of retries spent so far, in decimal. It counts only together with
	// MetaRetryOf. Where a ledger counts, it decides nothing.
	MetaAttempt = "millrace-attempt"
	// MetaFirstFailedAt is when the message failed first, RFC 3339; travels with retry records. It
	// counts only together with MetaRetryOf.
	MetaFirstFailedAt = "millrace-first-failed-at"
	// MetaLastError is the error of the attempt before, at most 256 bytes of it, as printable text.
	// It travels with retry records for whoever reads the topic, and decides nothing.
	MetaLastError = "millrace-last-error"
	// MetaRetryOf is the name of the route that wrote a retry record. The chain uses the headers
	// of a retry record only when this route retries into the topic that the record came from.
	MetaRetryOf = "millrace-retry-of"
	// MetaReplay marks a message that is a replay of a dead letter: <dead letter>/<generation>.
	MetaReplay = "millrace-replay"
	// MetaKey is the record or entry key.
	MetaKey = "millrace-key"
	// MetaMalformed marks a message that its transport could not decode, with the class of the
	// error. The message cannot be published again.
	MetaMalformed = "millrace-malformed"
	// MetaTraceParent is the W3C trace context.
	MetaTraceParent = "traceparent"

	// MetaDeadPrefix begins the names of the headers that say why a message is dead. A dead letter
	// keeps none of such a name that its message came with.
	MetaDeadPrefix = "millrace-dead-"
	// MetaDeadUUID is the id of the message that is dead; the dead letter has one of its own.
	MetaDeadUUID          = "millrace-dead-uuid"
	MetaDeadClass         = "millrace-dead-class"
	MetaDeadError         = "millrace-dead-error"
	MetaDeadHandler       = "millrace-dead-handler"
	MetaDeadOrigin        = "millrace-dead-origin"
	MetaDeadSourceKind    = "millrace-dead-source-kind"
	MetaDeadSource        = "millrace-dead-source"
	MetaDeadAttempts      = "millrace-dead-attempts"
	MetaDeadFirstFailedAt = "millrace-dead-first-failed-at"
	MetaDeadFailedAt      = "millrace-dead-failed-at"
	// MetaDeadPayloadBytes is the length of the payload in bytes, in decimal, when the dead letter
	// carries only its beginning. MetaDeadOrigin says where the complete message is.
	MetaDeadPayloadBytes = "millrace-dead-payload-bytes"
	// MetaDeadPayloadSHA256 is the SHA-256 of the complete payload, in hexadecimal, when the dead
	// letter carries only its beginning.
	MetaDeadPayloadSHA256 = "millrace-dead-payload-sha256"
)
