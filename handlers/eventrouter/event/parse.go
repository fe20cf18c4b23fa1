package event

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline"
)

const (
	// maxDataBytes limits Event.Data.
	maxDataBytes = 64 << 10
	// maxDataDepth limits the lists and objects inside each other in Event.Data. A JSON decoder has
	// a limit of its own, which the event around the data must not exceed.
	maxDataDepth = 1000
	// maxTextBytes limits the other fields.
	maxTextBytes = 128
	// maxSeq is the largest number that Lua and JavaScript represent exactly.
	maxSeq = 1<<53 - 1
)

var (
	jobIDs       = regexp.MustCompile(`^[A-Za-z0-9._-]{1,128}$`)
	numbers      = regexp.MustCompile(`^[1-9][0-9]{0,15}$`)
	milliseconds = regexp.MustCompile(`^[0-9]{13}$`)
	unixSeconds  = regexp.MustCompile(`^[0-9]{1,12}(\.[0-9]{1,9})?$`)
	traceparents = regexp.MustCompile(`^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$`)
)

// Parse returns the event of a message. The payload is a JSON object with the fields of an event.
// Each value may be a string, as in the fields of a stream entry; the string of data is JSON.
// Unknown fields are ignored, and so are an invalid timestamp and an invalid traceparent, because no
// watcher needs them. Unix milliseconds become seconds. Domain and StreamID come from the origin.
//
// The error is permanent and has one of the classes of this package, or pipeline.ClassTooLarge.
func (s Stages) Parse(payload []byte, origin pipeline.Origin) (Event, error) {
	var fields map[string]json.RawMessage
	if !utf8.Valid(payload) || json.Unmarshal(payload, &fields) != nil {
		return Event{}, refuse(ClassBadEvent, "the event is no JSON object: the field message of an entry must have the whole event, so a text for the watchers needs another name, or belongs into data")
	}
	p := parser{fields: fields}
	e := Event{
		JobID: p.text("job_id"), Stage: p.text("stage"), Status: p.text("status"), EventID: p.text("event_id"),
		Timestamp: timestamp(fields["timestamp"]), Traceparent: traceparent(fields["traceparent"]),
	}
	e.Domain, _, _ = strings.Cut(origin.Source, ":")
	_, e.StreamID, _ = strings.Cut(origin.Position, "@")
	seq, data := p.number("seq"), p.data()
	if p.bad != "" {
		return Event{}, refuse(ClassBadEvent, "%s %s", p.bad, p.why)
	}
	e.Data = data
	if !s.IsTransient(e.Stage) && numbers.MatchString(seq) {
		e.Seq, _ = strconv.ParseInt(seq, 10, 64)
	}
	if err := s.Check(e); err != nil {
		return Event{}, err
	}
	return e, nil
}

// ValidJobID reports whether a text can be the id of a job. Browsers and servers resolve "." and ".."
// in an address, so nobody could watch such a job.
func ValidJobID(id string) bool { return jobIDs.MatchString(id) && id != "." && id != ".." }

// Check returns the reason why an event is not valid, as Parse does.
func (s Stages) Check(e Event) error {
	if e.JobID == "" {
		return refuse(ClassMissingJobID, "job_id is missing")
	}
	if !ValidJobID(e.JobID) {
		return refuse(ClassBadEvent, "job_id must be 1 to 128 characters of A-Za-z0-9._-, and not . or ..")
	}
	if e.Stage == "" {
		return refuse(ClassBadEvent, "stage is missing")
	}
	if max(len(e.Stage), len(e.Status), len(e.EventID)) > maxTextBytes {
		return refuse(ClassBadEvent, "stage, status and event_id must have at most %d bytes each", maxTextBytes)
	}
	if !s.IsTransient(e.Stage) && (e.Seq < 1 || e.Seq > maxSeq) {
		return refuse(ClassBadSeq, "seq must be an integer from 1 to 2^53-1, except in transient stages")
	}
	if len(e.Data) > maxDataBytes {
		return refuse(pipeline.ClassTooLarge, "data has more than 64 KiB")
	}
	if e.Data != nil && !json.Valid(e.Data) {
		return refuse(ClassBadEvent, "data is no JSON")
	}
	if depth(e.Data) > maxDataDepth {
		return refuse(ClassBadEvent, "data has more than %d lists and objects inside each other", maxDataDepth)
	}
	if e.Timestamp != "" && !validTime(e.Timestamp) {
		return refuse(ClassBadEvent, "timestamp must be RFC 3339 or Unix seconds")
	}
	return nil
}

// depth returns how many lists and objects of valid JSON are inside each other.
func depth(data []byte) (deepest int) {
	open, inText := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case c == '"':
			inText = !inText
		case inText && c == '\\':
			i++
		case inText:
		case c == '[' || c == '{':
			open++
			deepest = max(deepest, open)
		case c == ']' || c == '}':
			open--
		}
	}
	return deepest
}

func validTime(text string) bool {
	_, err := time.Parse(time.RFC3339, text)
	return err == nil || unixSeconds.MatchString(text)
}

// timestamp returns a time in one of the valid forms, or "".
func timestamp(raw json.RawMessage) string {
	p := parser{fields: map[string]json.RawMessage{"": raw}}
	text := p.number("")
	if milliseconds.MatchString(text) {
		text = text[:10] + "." + text[10:]
	}
	if p.bad != "" || !validTime(text) {
		return ""
	}
	return text
}

// traceparent returns a valid trace context, or "".
func traceparent(raw json.RawMessage) string {
	p := parser{fields: map[string]json.RawMessage{"": raw}}
	if text := p.text(""); traceparents.MatchString(text) {
		return text
	}
	return ""
}

// parser reads the fields of an event. It keeps the name of the first one that is not valid, and why.
type parser struct {
	fields   map[string]json.RawMessage
	bad, why string
}

func (p *parser) refuse(name, why string) {
	if p.why == "" {
		p.bad, p.why = name, why
	}
}

// text returns a string, or "" where the field is absent or null.
func (p *parser) text(name string) string {
	raw, ok := p.fields[name]
	if !ok {
		return ""
	}
	var text *string
	if json.Unmarshal(raw, &text) != nil {
		p.refuse(name, "has the wrong type")
	} else if hasLoneSurrogate(raw) {
		p.refuse(name, "has bytes that are not UTF-8")
	}
	if text == nil {
		return ""
	}
	return *text
}

// number returns the text of a number or a string.
func (p *parser) number(name string) string {
	var number json.Number
	if raw := p.fields[name]; !bytes.HasPrefix(raw, []byte(`"`)) && json.Unmarshal(raw, &number) == nil {
		return number.String()
	}
	return p.text(name)
}

// hasLoneSurrogate reports whether a JSON string has an escape that is no character. The reader of a
// stream writes such an escape for a byte that is not UTF-8, and a decoder would replace it.
func hasLoneSurrogate(raw []byte) bool {
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		high := escape(raw[i:])
		if !utf16.IsSurrogate(high) {
			i++ // the escaped character
			continue
		}
		if utf16.DecodeRune(high, escape(raw[i+escapeBytes:])) == utf8.RuneError {
			return true
		}
		i += 2*escapeBytes - 1
	}
	return false
}

// escapeBytes is the length of an escape such as \udcff.
const escapeBytes = 6

// escape returns the code of the escape \uXXXX with which a JSON text begins, or 0.
func escape(raw []byte) rune {
	if len(raw) < escapeBytes || raw[0] != '\\' || raw[1] != 'u' {
		return 0
	}
	n, err := strconv.ParseUint(string(raw[2:escapeBytes]), 16, 32)
	if err != nil {
		return 0
	}
	return rune(n)
}

// data returns the field data, which is JSON or a string with JSON. Nil: there is none.
func (p *parser) data() json.RawMessage {
	raw := p.fields["data"]
	if bytes.HasPrefix(raw, []byte(`"`)) {
		raw = json.RawMessage(p.text("data"))
	}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	return raw
}
