package kafka

// Attribute keys of this package's log lines, in addition to those of package pipeline.
const (
	keyCount     = "count"
	keyHeldFor   = "held_for"
	keyWaited    = "waited"
	keyBrokers   = "brokers"
	keyDeaths    = "deaths"
	keyCommitted = "committed_offset"

	keyTopicID       = "topic_id"
	keyFormerTopicID = "former_topic_id"

	keyStable  = "last_stable_offset"
	keyEnd     = "end_offset"
	keyOpenFor = "open_for"
)
