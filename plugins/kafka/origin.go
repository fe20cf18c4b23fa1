package kafka

import (
	"strconv"
	"strings"
)

// position returns the Origin.Position of a record: topic/partition@offset.
func position(topic string, partition int32, offset int64) string {
	return topic + "/" + strconv.Itoa(int(partition)) + "@" + strconv.FormatInt(offset, 10)
}

// ParseOrigin returns the topic of an origin that this plugin wrote, such as one that was stored as
// text. ok is false for the origin of another transport, and for the name of a topic alone.
func ParseOrigin(origin string) (topic string, ok bool) {
	place, offset := cutLast(origin, "@")
	topic, partition := cutLast(place, "/")
	p, err := strconv.ParseInt(partition, 10, 32)
	if err != nil {
		return "", false
	}
	o, err := strconv.ParseInt(offset, 10, 64)
	if err != nil || topic == "" || p < 0 || o < 0 || position(topic, int32(p), o) != origin {
		return "", false
	}
	return topic, true
}

// cutLast cuts s around the last sep. Without one, after is empty.
func cutLast(s, sep string) (before, after string) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):]
	}
	return s, ""
}
