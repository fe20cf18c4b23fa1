package streams

import (
	"fmt"
	"strings"

	"github.com/millrace-io/millrace/plugins/redis"
)

// Kind names a family of elastic streams: one stream an id, all alike.
//
// An id is 1 to 300 bytes of graphic ASCII without a colon or a brace. So the stream of an id is never the
// wake-up stream or the companion of another one, and its hash slot in a cluster is that of its companion.
type Kind struct {
	Type         string // the label in logs and metrics, such as POINT
	StreamPrefix string // what the id is appended to, such as campaign-promotion-stream:POINT:
	GroupPrefix  string // the same for the consumer group, such as campaign-promotion-group:POINT:
}

// Stream returns the key of the stream of id.
func (k Kind) Stream(id string) string { return k.StreamPrefix + id }

// Group returns the consumer group of id.
func (k Kind) Group(id string) string { return k.GroupPrefix + id }

// id returns the id of a stream of this kind; ok is false for any other key.
func (k Kind) id(stream string) (id string, ok bool) {
	id, ok = strings.CutPrefix(stream, k.StreamPrefix)
	return id, ok && checkID(id) == nil
}

const longestID = 300 // bytes

// checkID returns an error for an id that would name another key than its own stream.
func checkID(id string) error {
	odd := func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(":{}", r) }
	if id == "" || len(id) > longestID || strings.ContainsFunc(id, odd) {
		return fmt.Errorf("streams: %.40q can't be the id of a stream: an id is 1 to %d bytes of graphic ASCII without a colon or a brace", id, longestID)
	}
	return nil
}

// domain is the text of the prefix before its first colon: the label of reclaim metrics.
func (k Kind) domain() string {
	domain, _, _ := strings.Cut(k.StreamPrefix, ":")
	return domain
}

// MetaKey returns the companion of a stream: {stream}:meta, or stream:meta when the stream has a
// hash tag already. Both hash to the same slot of a Redis Cluster.
func MetaKey(stream string) string { return redis.MetaKey(stream) }
