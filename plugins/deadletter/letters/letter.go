package letters

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// MetaReplay is the header of a message that is replayed: <letter>/<generation>.
const MetaReplay = pipeline.MetaReplay

// The kinds of sources a letter can come from, as in pipeline.Origin.
const (
	KindKafka  = "kafka"
	KindStream = "redis-stream"
)

// State is where a letter is in its life.
type State string

// The states of a letter.
const (
	Open      State = "open"      // waits for a person
	Replaying State = "replaying" // a replay has begun; one that died is finished by the next
	Replayed  State = "replayed"  // on its way again
	Parked    State = "parked"    // came back after a replay; waits for a person who asks for parked ones
	Discarded State = "discarded" // a person has given it up
)

// States lists all of them, waiting ones first.
func States() []State { return []State{Open, Replaying, Parked, Replayed, Discarded} }

// Waiting are the states in which a letter needs a person.
func Waiting() []State { return []State{Open, Replaying, Parked} }

// Source is where the message of a letter came from.
type Source struct {
	Kind      string `json:"kind,omitempty"`      // KindKafka, KindStream or empty: not known
	Name      string `json:"name"`                // topic or stream
	Partition *int64 `json:"partition,omitempty"` // of a topic
	Offset    *int64 `json:"offset,omitempty"`    // of a topic
	EntryID   string `json:"entry_id,omitempty"`  // of a stream
}

// ParseSource reads what pipeline.Origin.String writes. Anything else is a Source of that name without a kind.
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

// Letter is a dead letter of the working copy.
type Letter struct {
	ID string `json:"id"` // the same however often the letter is stored
	// Subject is what a ledger knows the letter by, such as the key of a payout. Empty: no ledger has it.
	Subject string `json:"subject,omitempty"`
	// Lineage is what a letter has in common with those that come after its replay. Empty: the id.
	Lineage     string            `json:"-"`
	State       State             `json:"state"`
	Generation  int               `json:"generation"` // 1, and one more each time it comes back
	Plugin      string            `json:"plugin"`
	Handler     string            `json:"handler"` // route
	Class       string            `json:"class"`
	Error       string            `json:"error"`
	Fingerprint string            `json:"fingerprint"` // of class, handler and error; the same for errors of one kind
	Source      Source            `json:"source"`
	Topic       string            `json:"topic"` // of dead letters
	Attempts    int               `json:"attempts"`
	FirstFailed time.Time         `json:"first_failed_at"`
	Failed      time.Time         `json:"failed_at"` // last
	Stored      time.Time         `json:"stored_at"`
	Changed     time.Time         `json:"changed_at"`
	TraceParent string            `json:"traceparent,omitempty"`
	UUID        string            `json:"uuid,omitempty"` // of the message; may be empty
	Key         string            `json:"key"`            // of the record or entry
	Headers     map[string]string `json:"headers"`        // the message's own
	Payload     []byte            `json:"-"`              // as it came; nil in lists

	seq int64
}

// From returns the letter of a dead letter. id may be empty: it is then made of what the letter is about, so
// that a message that is given up twice is one letter.
func From(id, plugin, topic, uuid string, d pipeline.DeadLetter) Letter {
	if id == "" {
		sum := sha256.Sum256(d.Payload)
		id = ID(d.Handler, d.Origin, uuid, string(sum[:]))
	}
	return Letter{
		ID: id, State: Open, Generation: 1, Plugin: plugin, Topic: topic, UUID: uuid,
		Handler: d.Handler, Class: d.Class, Error: d.Error, Source: ParseSource(d.Origin), Attempts: d.Attempts,
		FirstFailed: d.FirstFailedAt, Failed: d.FailedAt, TraceParent: d.Metadata[pipeline.MetaTraceParent],
		Key: d.Key, Headers: d.Metadata, Payload: d.Payload,
	}
}

// idLength is that of an id, in hexadecimal digits.
const idLength = 16

// ID makes the id of a letter from what makes it the one it is.
func ID(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:idLength/2])
}

// LineageOf is the lineage of the letter that tells what became of a subject of a plugin's ledger. It is one letter,
// however often the subject is given up.
func LineageOf(plugin, subject string) string { return plugin + "/" + subject }

// ReplayHeader is the value of MetaReplay for a replay of this letter as it is.
func (l Letter) ReplayHeader() string { return l.ID + "/" + strconv.Itoa(l.Generation) }

// replayOf returns the letter and generation whose replay this message was. Anybody may write the header: what is not
// as ReplayHeader writes it is no replay.
func (l Letter) replayOf() (id string, generation int, ok bool) {
	id, text, _ := strings.Cut(l.Headers[MetaReplay], "/")
	n, err := strconv.ParseInt(text, 10, 32)
	return id, int(n), err == nil && n > 0 && n < math.MaxInt32 && len(id) == idLength && strings.Trim(id, "0123456789abcdef") == ""
}

// PluginOf returns the plugin of a route: the first part of the route's name.
func PluginOf(handler string) string {
	name, _, _ := strings.Cut(handler, ".")
	return name
}

// maxText bounds texts, in bytes.
const maxText = 16 << 10

// clean makes text storable, of a bounded length.
func clean(s string) string { return sqldb.Text(s, maxText) }

// maxIndexed bounds texts that are indexed, in bytes: an entry of PostgreSQL's indexes has room for 2.7 kB, and one byte
// that is no text becomes three.
const maxIndexed = 500

// indexed makes text storable in a column that is indexed. What had to be changed ends with a hash of all of it, so that
// texts that differ do so still.
func indexed(s string) string {
	if short := clean(s[:min(len(s), maxIndexed)]); short != s {
		return short + "…" + ID(s)
	}
	return s
}

// Headers are stored as a JSON object. A name or value that is no text is an object of its base64.
type headerBytes struct {
	Base64 string `json:"base64"`
}

// base64Name marks the name of a header that is no text.
const base64Name = "base64:"

func encodeHeaders(headers map[string]string) string {
	out := make(map[string]any, len(headers))
	for k, v := range headers {
		if !utf8.ValidString(k) || strings.HasPrefix(k, base64Name) {
			k = base64Name + base64.StdEncoding.EncodeToString([]byte(k))
		}
		if utf8.ValidString(v) {
			out[k] = v
		} else {
			out[k] = headerBytes{base64.StdEncoding.EncodeToString([]byte(v))}
		}
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(out) // strings always encode
	return strings.TrimSuffix(b.String(), "\n")
}

func decodeHeaders(text string) (map[string]string, error) {
	var raw map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &raw); err != nil {
		return nil, fmt.Errorf("headers: %w", err)
	}
	headers := make(map[string]string, len(raw))
	for k, v := range raw {
		if code, ok := strings.CutPrefix(k, base64Name); ok {
			name, err := base64.StdEncoding.DecodeString(code)
			if err != nil {
				return nil, fmt.Errorf("header %q: %w", k, err)
			}
			k = string(name)
		}
		var plain string
		if json.Unmarshal(v, &plain) == nil {
			headers[k] = plain
			continue
		}
		var coded headerBytes
		if err := json.Unmarshal(v, &coded); err != nil {
			return nil, fmt.Errorf("header %q: %w", k, err)
		}
		value, err := base64.StdEncoding.DecodeString(coded.Base64)
		if err != nil {
			return nil, fmt.Errorf("header %q: %w", k, err)
		}
		headers[k] = string(value)
	}
	return headers, nil
}
