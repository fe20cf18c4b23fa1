package store

import (
	"fmt"
	"strconv"
	"strings"
)

// The kinds of sources, as in pipeline.Endpoint.
const (
	KindKafka  = "kafka"
	KindStream = "redis-stream"
)

// Source is where a message came from.
type Source struct {
	Kind      string `json:"kind,omitempty"`      // KindKafka, KindStream, or empty: unknown
	Name      string `json:"name"`                // topic or stream
	Partition *int64 `json:"partition,omitempty"` // of a topic
	Offset    *int64 `json:"offset,omitempty"`    // of a topic
	EntryID   string `json:"entry_id,omitempty"`  // of a stream
}

// ParseSource reads what pipeline.Origin.String writes. Anything else is a Source of that name
// without a kind.
func ParseSource(origin string) Source {
	at := strings.LastIndexByte(origin, '@')
	if at < 0 {
		return Source{Name: origin}
	}
	name, place := origin[:at], origin[at+1:]
	if ms, seq, ok := strings.Cut(place, "-"); ok && digits(ms) && digits(seq) {
		return Source{Kind: KindStream, Name: name, EntryID: place}
	}
	slash := strings.LastIndexByte(name, '/')
	if slash < 0 {
		return Source{Name: origin}
	}
	partition, err1 := strconv.ParseInt(name[slash+1:], 10, 32)
	offset, err2 := strconv.ParseInt(place, 10, 64)
	s := Source{Kind: KindKafka, Name: name[:slash], Partition: &partition, Offset: &offset}
	if err1 != nil || err2 != nil || s.String() != origin { // such as +1, which is no partition
		return Source{Name: origin}
	}
	return s
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}

// String returns topic/partition@offset or stream@entry-id.
func (s Source) String() string {
	switch {
	case s.EntryID != "":
		return s.Name + "@" + s.EntryID
	case s.Partition != nil && s.Offset != nil:
		return fmt.Sprintf("%s/%d@%d", s.Name, *s.Partition, *s.Offset)
	}
	return s.Name
}
