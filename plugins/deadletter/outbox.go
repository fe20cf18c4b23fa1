package deadletter

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

// Letter is a dead letter of an outbox and the topic it goes to.
type Letter struct {
	Topic string
	// ID is the same whenever the letter is relayed, and unique over all letters: letters.ID makes it. Empty: one is
	// made of what the letter says.
	ID string
	// Subject is what the ledger knows the letter by, such as the key of a payout: with one the plugin's
	// Replayer replays it, without it goes back to where it came from.
	Subject string
	// Alone: it has nothing to do with other letters of its subject, so that it parks none of them.
	Alone bool
	pipeline.DeadLetter
}

// kept returns the letter of the working copy.
func (l *Letter) kept(plugin string) letters.Letter {
	k := letters.From(l.ID, plugin, l.Topic, l.UUID, l.DeadLetter)
	k.Subject = l.Subject
	if l.Subject != "" && !l.Alone {
		k.Lineage = letters.LineageOf(plugin, l.Subject)
	}
	return k
}

// Outbox is where a ledger keeps the letters it has written until they are published. An implementation
// is a transaction around publish: take up to limit letters, oldest first, that nobody else has taken
// (FOR UPDATE SKIP LOCKED), publish them, and remove or mark those that are durable. Publishing before
// marking makes it at least once: a crash in between publishes a letter again.
type Outbox interface {
	// Relay takes up to limit letters and gives them to publish in one batch; with none it doesn't call it.
	// publish returns nil when all are durable at their topics, a *PublishError when all but those it names are, and
	// any other error when any of them may be. n is how many letters it removed or marked. The error is publish's own, or the outbox's.
	//
	// When publish returns a *PublishError, the letters it doesn't name are removed or marked, and the named
	// ones are put behind all others, so that one that can't be published doesn't hold the rest up.
	Relay(ctx context.Context, limit int, publish func(ctx context.Context, batch []Letter) error) (n int, err error)
}

// PublishError says that some letters of a batch can't be published while the others are durable. Who
// holds the letters keeps the named ones, behind all others.
type PublishError struct {
	// Failed has the reason of every letter that isn't known to be durable, by its index in the batch. Never empty.
	Failed map[int]error
	// Size is how many letters the batch had.
	Size int
}

// Error names the counts and the first reason.
func (e *PublishError) Error() string {
	return fmt.Sprintf("%d of %s not published: %v", len(e.Failed), counted(e.Size, "dead letter"), e.first())
}

// Unwrap returns the first reason.
func (e *PublishError) Unwrap() error { return e.first() }

func (e *PublishError) first() error {
	indexes := make([]int, 0, len(e.Failed))
	for i := range e.Failed {
		indexes = append(indexes, i)
	}
	if len(indexes) == 0 {
		return nil
	}
	return e.Failed[slices.Min(indexes)]
}
