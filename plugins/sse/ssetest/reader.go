package ssetest

import (
	"bufio"
	"io"
	"strconv"
	"strings"
	"time"
)

// Event is an event as an EventSource dispatches it.
type Event struct {
	ID   string // the last id that the stream has set, by this event or an earlier one
	Name string // message if the stream gave none
	Data string
}

// Reader reads the events of one response. It is not safe for concurrent use.
type Reader struct {
	in      *bufio.Reader
	started bool // the first line was read, which may begin with a byte order mark
	afterCR bool // a line feed that follows is part of the line break

	id         string
	name, data strings.Builder

	// Retry is the time that the last line retry gave; zero without one.
	Retry time.Duration
	// Heartbeats is the number of events heartbeat. They are not returned, because most clients do
	// not listen to them.
	Heartbeats int
	// Comments is the number of comment lines.
	Comments int
	// LastEventID is what a reconnect sends.
	LastEventID string
}

// NewReader returns a Reader whose first events have the id lastEventID, unless the stream sets
// one.
func NewReader(in io.Reader, lastEventID string) *Reader {
	return &Reader{in: bufio.NewReader(in), id: lastEventID, LastEventID: lastEventID}
}

// Next returns the next event. At the end of the stream, an event without an empty line after it is
// dropped, and the error is that of the stream.
func (r *Reader) Next() (Event, error) {
	for {
		line, err := r.line()
		if err != nil {
			return Event{}, err
		}
		if line != "" {
			r.process(line)
			continue
		}
		r.LastEventID = r.id
		e := Event{ID: r.id, Name: r.name.String(), Data: r.data.String()}
		r.name.Reset()
		r.data.Reset()
		if e.Data == "" {
			continue
		}
		if e.Name == "heartbeat" {
			r.Heartbeats++
			continue
		}
		e.Data = strings.TrimSuffix(e.Data, "\n")
		if e.Name == "" {
			e.Name = "message"
		}
		return e, nil
	}
}

func (r *Reader) process(line string) {
	field, value, _ := strings.Cut(line, ":")
	value = strings.TrimPrefix(value, " ")
	switch field {
	case "":
		r.Comments++
	case "event":
		r.name.Reset()
		r.name.WriteString(value)
	case "data":
		r.data.WriteString(value)
		r.data.WriteByte('\n')
	case "id":
		if !strings.Contains(value, "\x00") {
			r.id = value
		}
	case "retry":
		if ms, err := strconv.ParseUint(value, 10, 32); err == nil {
			r.Retry = time.Duration(ms) * time.Millisecond
		}
	}
}

// line returns the next line, which CR LF, LF or CR has ended.
func (r *Reader) line() (string, error) {
	var line []byte
	for {
		b, err := r.in.ReadByte()
		if err != nil {
			return "", err
		}
		skip := b == '\n' && r.afterCR
		r.afterCR = b == '\r'
		switch {
		case skip:
		case b == '\n', b == '\r':
			text := string([]rune(string(line))) // bytes that are not UTF-8 become U+FFFD
			if !r.started {
				text = strings.TrimPrefix(text, "\uFEFF")
			}
			r.started = true
			return text, nil
		default:
			line = append(line, b)
		}
	}
}
