package store

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

// State of a dead letter.
type State string

// The states of a dead letter.
const (
	Open      State = "open"      // waits for a person
	Replaying State = "replaying" // a replay has started; see Lease
	Replayed  State = "replayed"  // the message is on its way again
	Parked    State = "parked"    // failed again after a replay; waits for a person
	Discarded State = "discarded" // a person decided against a replay
)

// States lists all states, waiting ones first.
func States() []State { return []State{Open, Replaying, Parked, Replayed, Discarded} }

// Waiting are the states in which a dead letter needs a person.
func Waiting() []State { return []State{Open, Replaying, Parked} }

// DeadLetter is a row of the table.
type DeadLetter struct {
	ID string `json:"id"` // the same however often the dead letter is stored
	// Subject is the ledger's name of what the dead letter is about, such as the key of a payout.
	// Empty: no ledger has it.
	Subject string `json:"subject,omitempty"`
	// Lineage is the same for a dead letter and for the failures of its replays. Empty: the id.
	Lineage     string            `json:"-"`
	State       State             `json:"state"`
	Generation  int               `json:"generation"` // 1, and one more each time a replay fails
	Plugin      string            `json:"plugin"`
	Handler     string            `json:"handler"` // route
	Class       string            `json:"class"`
	Error       string            `json:"error"`
	Fingerprint string            `json:"fingerprint"` // see list --group
	Source      Source            `json:"source"`
	Topic       string            `json:"topic"` // of dead letters
	Attempts    int               `json:"attempts"`
	FirstFailed time.Time         `json:"first_failed_at"`
	Failed      time.Time         `json:"failed_at"` // last
	Stored      time.Time         `json:"stored_at"`
	Changed     time.Time         `json:"changed_at"`
	HeldUntil   time.Time         `json:"held_until,omitzero"` // of a lease; zero: none
	TraceParent string            `json:"traceparent,omitempty"`
	UUID        string            `json:"uuid,omitempty"` // of the message; may be empty
	Key         string            `json:"key"`            // of the record or entry
	Headers     map[string]string `json:"headers"`        // the message's own
	Payload     []byte            `json:"-"`              // nil: none, or a list

	seq int64
}

// From returns the row of a dead letter. An empty id is replaced by a hash of handler, origin, uuid
// and payload: a message that fails twice is one row.
func From(id, plugin, topic, uuid string, d pipeline.DeadLetter) DeadLetter {
	if id == "" {
		sum := sha256.Sum256(d.Payload)
		id = ID(d.Handler, d.Origin, uuid, string(sum[:]))
	}
	return DeadLetter{
		ID: id, State: Open, Generation: 1, Plugin: plugin, Topic: topic, UUID: uuid,
		Handler: d.Handler, Class: d.Class, Error: d.Error, Attempts: d.Attempts,
		Source:      Source{Kind: d.SourceKind, Name: cmp.Or(d.Source, d.Origin), Position: d.Origin},
		FirstFailed: d.FirstFailedAt, Failed: d.FailedAt, TraceParent: d.Metadata[pipeline.MetaTraceParent],
		Key: d.Key, Headers: d.Metadata, Payload: d.Payload,
	}
}

// idLength is the length of an id, in hexadecimal digits.
const idLength = 16

// ID returns an id that is unique for its parts.
func ID(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
	return hex.EncodeToString(h.Sum(nil)[:idLength/2])
}

// LineageOf is the lineage of the dead letter about a subject of a plugin's ledger. A subject has
// one, however often it fails.
func LineageOf(plugin, subject string) string { return plugin + "/" + subject }

// ReplayHeader is the value of the header pipeline.MetaReplay for a replay of this generation.
func (d DeadLetter) ReplayHeader() string { return d.ID + "/" + strconv.Itoa(d.Generation) }

// replayOf returns the dead letter and the generation whose replay this message was. Any producer
// may write the header, so a value that ReplayHeader cannot have written is ignored.
func (d DeadLetter) replayOf() (id string, generation int, ok bool) {
	id, text, _ := strings.Cut(d.Headers[pipeline.MetaReplay], "/")
	n, err := strconv.ParseInt(text, 10, 32)
	return id, int(n), err == nil && n > 0 && n < math.MaxInt32 && len(id) == idLength && strings.Trim(id, "0123456789abcdef") == ""
}

// PluginOf returns the plugin of a route: the first part of the route's name.
func PluginOf(handler string) string {
	name, _, _ := strings.Cut(handler, ".")
	return name
}

// maxText bounds a text, in bytes.
const maxText = 16 << 10

// clean makes a text valid for the database and bounds its length.
func clean(s string) string { return portable.Text(s, maxText) }

// maxIndexed bounds a text in an indexed column, in bytes. An index entry of PostgreSQL has at most
// 2.7 kB, and an invalid byte becomes three.
const maxIndexed = 500

// indexed is clean for an indexed column. A text that had to be changed ends with a hash of the
// original, so that different texts stay different.
func indexed(s string) string {
	if short := clean(s[:min(len(s), maxIndexed)]); short != s {
		return short + "…" + ID(s)
	}
	return s
}
