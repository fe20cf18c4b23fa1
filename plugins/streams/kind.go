package streams

import (
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/plugins/redis"
)

// Kind names a family of elastic streams: one stream an id, all alike.
type Kind struct {
	Type         string // the label in logs and metrics, such as POINT
	StreamPrefix string // what the id is appended to, such as campaign-promotion-stream:POINT:
	GroupPrefix  string // the same for the consumer group, such as campaign-promotion-group:POINT:
}

// Stream returns the key of the stream of id.
func (k Kind) Stream(id int64) string { return k.StreamPrefix + strconv.FormatInt(id, 10) }

// Group returns the consumer group of id.
func (k Kind) Group(id int64) string { return k.GroupPrefix + strconv.FormatInt(id, 10) }

// id returns the id of a stream of this kind; ok is false for any other key.
func (k Kind) id(stream string) (id int64, ok bool) {
	digits, ok := strings.CutPrefix(stream, k.StreamPrefix)
	if !ok {
		return 0, false
	}
	id, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || id <= 0 || strconv.FormatInt(id, 10) != digits {
		return 0, false
	}
	return id, true
}

// domain is the text of the prefix before its first colon: the label of reclaim metrics.
func (k Kind) domain() string {
	domain, _, _ := strings.Cut(k.StreamPrefix, ":")
	return domain
}

// MetaKey returns the companion of a stream: {stream}:meta, or stream:meta when the stream has a
// hash tag already. Both hash to the same slot of a Redis Cluster.
func MetaKey(stream string) string { return redis.MetaKey(stream) }
