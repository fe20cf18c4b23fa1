package pipeline

import (
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// longestDelayMillis is a little more than the longest time.Duration, 292 years. plugins/redis/lua/due.lua
// has the same limit.
const longestDelayMillis = 9_300_000_000_000

// Retry is the retry topic of a route: a failed message waits there, and is then handled again.
// Both ends of the topic must be a Delayer, because RetryAfter and Backoff promise a delay.
// NewRegistry refuses a topic of another transport.
type Retry struct {
	// To writes the retry topic. Nil: failed messages are nacked.
	To Sink
	// From reads the retry topic. The registry then adds the route NAME.retry, which is equal to
	// this one except for its source, and the retry topic takes replays. Nil: another route with
	// the same Handle and Policy reads the topic.
	From Source
	// ReadElsewhere says that a route of another process reads the retry topic. That route must
	// retry into the same topic, because only then its source expects records that are not yet due.
	ReadElsewhere bool
	// TakesReplays says that replayed dead letters of this route go to the retry topic, so that
	// other consumers of its source don't get them. Set it if the route that reads the topic has
	// the same Handle. False: a replay goes to where the message came from.
	TakesReplays bool
	// OnlyRetryAfter uses the retry topic for errors of RetryAfter only. Other errors nack: the
	// backlog then stays in the source while a server is unavailable.
	OnlyRetryAfter bool
	// Max is the number of retries before the message becomes a dead letter. Zero: no limit,
	// because the handler counts, for example in a ledger.
	Max int
	// Backoff is the delay before a retry if the error has none (RetryAfter).
	Backoff Backoff
	// Payload returns the payload of retry number retry, from 1. Nil: unchanged.
	Payload func(payload []byte, retry int) ([]byte, error)
}

// Delayer is a Source or a Sink whose topic can be a retry topic. A message that the Sink publishes
// with MetaDue, to a topic that is some route's Retry.To, is delivered by the Source no sooner than
// at that time, also after a restart of either. The delay is the one that the writer computed with
// its own clock, so a transport in which another clock decides converts it. How much later than
// MetaDue a message may be delivered is documented by each transport.
type Delayer interface {
	// Delays works offline, after the settings were decoded. It returns nil, or why this topic
	// can't delay its messages.
	Delays() error
}

// DueTime returns when a retry record may be handled, from MetaDue. The zero time means now: the
// header is absent, can't be read, or is further ahead of now than any delay reaches. Another program
// has then written it, and waiting would never end.
func DueTime(meta message.Metadata, now time.Time) time.Time {
	due, err := time.Parse(time.RFC3339Nano, meta[MetaDue])
	if err != nil || due.UnixMilli()-now.UnixMilli() > longestDelayMillis {
		return time.Time{}
	}
	return due
}

// Topics opens topics by name. A transport plugin, such as that of Kafka, implements it. Topics
// that can be retry topics have Sources and Sinks that are a Delayer. pipelinetest.Transport checks an
// implementation.
type Topics interface {
	Source(topic, group string) Source
	Sink(topic string) Sink
}

// DeadLetters opens topics for dead letters by name. The plugin deadletter implements it.
type DeadLetters interface {
	Sink(topic string) Sink
}

// RetryVia returns a Retry with the retry topic topic, read by group. A message that failed
// 1+retries times becomes a dead letter. A route with it is refused when topics does not delay
// (Delayer).
func RetryVia(topics Topics, topic, group string, retries int, delay Backoff) Retry {
	return Retry{To: topics.Sink(topic), From: topics.Source(topic, group), Max: retries, Backoff: delay}
}

// delays returns nil when an end of a retry topic is a Delayer, otherwise why it delays nothing.
func delays(end any) error {
	if d, ok := end.(Delayer); ok {
		return d.Delays()
	}
	return errors.New("the transport delivers every message at once")
}

// RetriesInto returns the names of the routes whose retry topic is e; the group is ignored. Call it
// when all plugins have registered.
func (r *Registry) RetriesInto(e Endpoint) []string {
	return r.routesWhere(e, func(p Policy) Sink { return p.Retry.To })
}

// DeadLettersInto returns the names of the routes whose DeadLetter is e; the group is ignored. Call
// it when all plugins have registered.
func (r *Registry) DeadLettersInto(e Endpoint) []string {
	return r.routesWhere(e, func(p Policy) Sink { return p.DeadLetter })
}

func (r *Registry) routesWhere(e Endpoint, of func(Policy) Sink) (names []string) {
	for _, route := range r.routes {
		to := of(route.Policy)
		if to == nil {
			continue
		}
		if at := to.Describe(); at.Kind == e.Kind && at.Name == e.Name && !slices.Contains(names, route.Name) {
			names = append(names, route.Name)
		}
	}
	return names
}
