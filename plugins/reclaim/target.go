package reclaim

import (
	"context"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// Target is a domain: streams that belong together. Its methods must be safe for concurrent use and
// must not block. Every round calls them.
type Target interface {
	// Domain labels metrics and logs: the text before the first colon of the stream names.
	Domain() string
	// Client is where the streams are. It is borrowed.
	Client() redis.UniversalClient
	// MinIdle is how long an entry must not have been renewed before it may be claimed here. It is
	// at least three times the interval in which the readers renew their entries.
	MinIdle() time.Duration
	// Streams returns the streams that have a reader in this instance and may be read now.
	Streams() []Stream
}

// Stream is one stream of a Target.
type Stream struct {
	Shard    string // labels metrics; never an id, of which there are too many
	Name     string // key
	Group    string
	Consumer string // this instance's consumer: <instance>-<index>
	Meta     string // companion key, in the same slot of a cluster
	Reader   Reader // where claimed entries go
}

// Reader takes over claimed entries. *poll.Reader is one.
type Reader interface {
	// Free returns how many more entries fit.
	Free() int
	// Adopt takes over entries that have been claimed for this reader's consumer. delivered is how
	// often each was delivered, this time included. The reader calls acked for each entry when its
	// acknowledgement is confirmed; acked neither blocks nor calls the reader. After an error none
	// was adopted, and the reader has tried to release them.
	Adopt(ctx context.Context, entries []redis.XMessage, delivered map[string]int64, acked func()) error
}

// holder is a Reader that says which entries it has in flight. An entry that it has held for so
// long that it no longer renews it is not claimed for it again. Other instances claim it.
type holder interface{ Holds(id string) bool }

// rereader is a Reader that can look through its own pending entries, for a claim whose reply was
// lost.
type rereader interface{ Reread() }

const instancePrefix = "i:"

// InstanceField returns the field of a stream's meta that belongs to an instance.
func InstanceField(instance string) string { return instancePrefix + instance }

// FieldInstance is the reverse of InstanceField; ok is false for any other field.
func FieldInstance(field string) (instance string, ok bool) {
	return strings.CutPrefix(field, instancePrefix)
}

// instanceOf returns the instance of a consumer named <instance>-<index>; ok is false for names of
// another shape, about whose owners nothing is known.
func instanceOf(consumer string) (instance string, ok bool) {
	at := strings.LastIndexByte(consumer, '-')
	if at <= 0 || at == len(consumer)-1 {
		return "", false
	}
	for _, c := range consumer[at+1:] {
		if c < '0' || c > '9' {
			return "", false
		}
	}
	return consumer[:at], true
}
