// Package entry has the fields of a stream entry: how a message is written into a stream, and how
// an entry becomes a message again.
package entry

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
	jsonv1 "github.com/go-json-experiment/json/v1"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// The fields of an entry, in the order in which they are written. All four are always written:
// Redis stores entries with equal field names without repeating the names.
const (
	fieldKey     = "key"
	fieldMessage = "message"
	fieldUUID    = "uuid"
	fieldHeaders = "headers"
)

const (
	// ClassMissingMessage is the class of an entry without the field "message".
	ClassMissingMessage = "missing_message"
	// MetaRawFields has the fields of a malformed entry as JSON, for the reader of the dead letter,
	// at most 64 KiB.
	MetaRawFields = "millrace-raw-fields"
	// MetaRawHeaders has a headers field that is no JSON object, at most 64 KiB. The rest of the
	// message is good.
	MetaRawHeaders = "millrace-raw-headers"
)

// NextID returns the smallest entry id above id, to continue after a page; ok is false when id is
// the largest one or no id. miniredis does not support the exclusive "(<id>".
func NextID(id string) (next string, ok bool) {
	ms, seq, _ := strings.Cut(id, "-")
	n, err := strconv.ParseUint(seq, 10, 64)
	if err != nil {
		return "", false
	}
	if n < math.MaxUint64 {
		return ms + "-" + strconv.FormatUint(n+1, 10), true
	}
	if n, err = strconv.ParseUint(ms, 10, 64); err != nil || n == math.MaxUint64 {
		return "", false
	}
	return strconv.FormatUint(n+1, 10) + "-0", true
}

// maxRaw bounds what is kept of something undecodable, in bytes.
const maxRaw = 64 << 10

// Entry is one stream entry as it is on the wire. Plain fields: any client can write and read it.
type Entry struct {
	Key     string            // may be empty
	UUID    string            // the message's id
	Message []byte            // the payload
	Headers map[string]string // the message's metadata
}

// New returns the entry of a message. Key is the record key, which is not in Headers.
func New(m *message.Message) Entry {
	e := Entry{UUID: m.UUID, Message: m.Payload, Key: m.Metadata.Get(pipeline.MetaKey), Headers: m.Metadata}
	if _, ok := m.Metadata[pipeline.MetaKey]; ok {
		e.Headers = make(map[string]string, len(m.Metadata))
		for k, v := range m.Metadata {
			if k != pipeline.MetaKey {
				e.Headers[k] = v
			}
		}
	}
	return e
}

// Values returns before, then field names and values in their order. Headers are one JSON object of
// strings. In it, bytes that are not UTF-8 are replaced.
func (e Entry) Values(before ...any) []any {
	var headers any = "{}"
	if len(e.Headers) > 0 {
		b, err := json.Marshal(e.Headers)
		if err == nil { // a map of strings can always be encoded
			headers = string(b)
		}
	}
	msg := e.Message
	if msg == nil {
		msg = []byte{}
	}
	values := append(make([]any, 0, len(before)+8), before...)
	return append(values, fieldKey, e.Key, fieldMessage, msg, fieldUUID, e.UUID, fieldHeaders, headers)
}

// Decode returns the message of an entry: plain fields, or those of watermill-redisstream's
// marshaler. Without a uuid, the message has the entry's id.
//
// The message is never nil. An entry without the field "message" becomes a message without payload
// that is marked (pipeline.MetaMalformed, MetaRawFields), so that it can be dead-lettered. The
// error has the same content: permanent, class missing_message.
func Decode(m goredis.XMessage) (*message.Message, error) {
	if _, foreign := m.Values[watermillUUID]; foreign {
		if _, ours := m.Values[fieldMessage]; !ours {
			return decodeWatermill(m)
		}
	}
	payload, ok := stringField(m.Values, fieldMessage)
	if !ok {
		return malformed(m)
	}
	uuid, _ := stringField(m.Values, fieldUUID)
	if uuid == "" {
		uuid = m.ID
	}
	msg := message.NewMessage(uuid, []byte(payload))
	if headers, ok := stringField(m.Values, fieldHeaders); ok {
		readHeaders(msg, headers)
	}
	if key, _ := stringField(m.Values, fieldKey); key != "" {
		msg.Metadata.Set(pipeline.MetaKey, key)
	}
	return msg, nil
}

// Malformed returns the error of a message whose entry could not be decoded, or nil. It is
// permanent and has the class of the mark. In a pipeline it is Delivery.Malformed, and the chain
// dead-letters the message without a handler.
func Malformed(m *message.Message) error {
	class := m.Metadata.Get(pipeline.MetaMalformed)
	if class == "" {
		return nil
	}
	return pipeline.WithClass(pipeline.Permanent(fmt.Errorf("malformed stream entry: %s", strings.ReplaceAll(class, "_", " "))), class)
}

func malformed(m goredis.XMessage) (*message.Message, error) {
	msg := message.NewMessage(m.ID, nil)
	msg.Metadata.Set(pipeline.MetaMalformed, ClassMissingMessage)
	if raw, err := json.Marshal(m.Values); err == nil {
		msg.Metadata.Set(MetaRawFields, clip(string(raw)))
	}
	return msg, Malformed(msg)
}

// readHeaders adds a JSON object to the metadata. Values that are no strings keep their JSON text.
// Marks of this package are ignored.
func readHeaders(msg *message.Message, headers string) {
	if headers == "" || headers == "{}" {
		return
	}
	var plain map[string]string
	if jsonv1.Unmarshal([]byte(headers), &plain) == nil {
		for k, v := range plain {
			setHeader(msg, k, v)
		}
		return
	}
	var mixed map[string]json.RawMessage
	if json.Unmarshal([]byte(headers), &mixed) != nil {
		msg.Metadata.Set(MetaRawHeaders, clip(headers))
		return
	}
	for k, raw := range mixed {
		var s string
		if json.Unmarshal(raw, &s) != nil {
			s = string(raw)
		}
		setHeader(msg, k, s)
	}
}

func setHeader(msg *message.Message, k, v string) {
	if k != pipeline.MetaMalformed {
		msg.Metadata.Set(k, v)
	}
}

func stringField(values map[string]any, name string) (string, bool) {
	s, ok := values[name].(string)
	return s, ok
}

func clip(s string) string {
	if len(s) > maxRaw {
		return strings.ToValidUTF8(s[:maxRaw], "")
	}
	return s
}

// Position returns the Origin.Position of an entry: stream@entry-id.
func Position(stream, entryID string) string { return stream + "@" + entryID }

// ParseOrigin returns the stream of an origin that Position wrote, such as one that was stored as
// text. ok is false for the origin of another transport, and for the name of a stream alone.
func ParseOrigin(origin string) (stream string, ok bool) {
	i := strings.LastIndex(origin, "@")
	if i < 1 {
		return "", false
	}
	ms, seq, _ := strings.Cut(origin[i+1:], "-")
	for _, number := range []string{ms, seq} {
		if n, err := strconv.ParseUint(number, 10, 64); err != nil || strconv.FormatUint(n, 10) != number {
			return "", false
		}
	}
	return origin[:i], true
}
