// Package watch follows jobs at a gateway of the event router, as a browser does.
package watch

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline/httpclient"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// The names of the stream's messages. See the README of the event router.
const (
	NameEvent     = "event"     // a numbered event; its ID has the number and the stream entry
	NameTransient = "transient" // an event without a number
	NameState     = "state"     // the event with the highest number
	NameGap       = "gap"       // numbers that are missing, or belong to other events: {"from","to"}
	NameBusy      = "busy"      // try again later: {"reason"}
	NameClosed    = "closed"    // the last message: {"reason"}

	nameHeartbeat = "heartbeat" // shows that the connection is alive
)

// Message is one Server-Sent Event.
type Message struct {
	ID   string // that of this message; empty: it has none
	Name string
	Data []byte
}

// Number returns the number of an event, or the last one that a gap leaves to the client: the part of
// the ID before the first point. It is 0 for a message without an ID, and for the ids of a stream
// with several jobs.
func (m Message) Number() int64 {
	number, _, _ := strings.Cut(m.ID, ".")
	n, _ := strconv.ParseInt(number, 10, 64) // 0 is no number
	return n
}

// Reason returns the field reason of the data of a message busy or closed.
func (m Message) Reason() string {
	var data struct{ Reason string }
	_ = json.Unmarshal(m.Data, &data) // no reason is ""
	return data.Reason
}

// Options say what to watch, and where.
type Options struct {
	// URL is that of the stream: https://host/jobs/<domain>/<job_id>/events.
	URL string
	// Token returns the watch token. It is called for each connection, because a job may run for longer than
	// a token is valid. nil or an empty token: the gateway needs none.
	Token func() string
	// LastEventID is the ID of the last message that was received, to continue after it. The number
	// of an event alone is accepted too, but the gateway then can't notice that the number belongs
	// to another event by now. Empty: the stream begins with the oldest event of the log.
	LastEventID string
	// Client is the HTTP client; nil: http.DefaultClient. It must not limit the time of a request.
	// Redirects are refused unless it has a CheckRedirect: they would take the Token to another server.
	Client *http.Client
	// Message is called for each message but heartbeats, in order.
	Message func(Message)
	// Connected is called for each stream that the gateway has accepted. May be nil.
	Connected func()
	// Disconnected is called when a stream has ended, and another one begins later. May be nil.
	Disconnected func(reason error, delay time.Duration)
}

// defaultRetry is the delay before the next connection if the gateway has not sent one.
const defaultRetry = 3 * time.Second

// silence is the time without a line after which a stream is lost, although its connection is still open. Every gateway
// sends two heartbeats in this time, because plugins.sse.heartbeat is a minute at most.
const silence = 2*time.Minute + 5*time.Second

var errSilent = fmt.Errorf("nothing has arrived for %s", silence)

// ErrRefused says that the gateway refuses the request, and would refuse it again.
var ErrRefused = errors.New("the gateway refused the request")

// Follow watches until the job has ended and returns its last stage. It connects again
// when a stream ends before, or is silent, for as long as ctx allows, and continues after the last
// ID. A gateway ends a stream after its max_watch, and then accepts the next one unless the token has
// expired. The error wraps ErrRefused, or is that of ctx.
func Follow(ctx context.Context, o Options) (reason string, err error) {
	w := watcher{Options: o, retry: defaultRetry, last: o.LastEventID}
	if w.Client == nil {
		w.Client = http.DefaultClient
	}
	if w.Client.CheckRedirect == nil {
		client := *w.Client
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		w.Client = &client
	}
	for {
		reason, err := w.stream(ctx)
		switch {
		case ctx.Err() != nil:
			return "", ctx.Err()
		case reason != "", errors.Is(err, ErrRefused):
			return reason, err
		}
		if o.Disconnected != nil {
			o.Disconnected(err, w.retry)
		}
		if !loop.Sleep(ctx, w.retry) {
			return "", ctx.Err()
		}
	}
}

type watcher struct {
	Options
	retry time.Duration
	last  string // id of the last message that had one
	stage string // of the last event or state
}

// stream reads one stream. It returns a reason when the job has ended.
func (w *watcher) stream(ctx context.Context) (reason string, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	silent := time.AfterFunc(silence, func() { cancel(errSilent) })
	defer silent.Stop()
	reason, err = w.read(ctx, silent)
	if err != nil && errors.Is(context.Cause(ctx), errSilent) {
		err = errSilent
	}
	return reason, err
}

func (w *watcher) read(ctx context.Context, silent *time.Timer) (reason string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.URL, nil)
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrRefused, httpclient.WithoutURL(err))
	}
	req.Header.Set("Accept", "text/event-stream")
	if w.last != "" {
		req.Header.Set("Last-Event-ID", w.last)
	}
	if w.Token != nil {
		if token := w.Token(); token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	resp, err := w.Client.Do(req)
	if err != nil {
		return "", httpclient.WithoutURL(err)
	}
	defer func() { _ = resp.Body.Close() }()
	switch resp.StatusCode {
	case http.StatusOK:
	case http.StatusNoContent:
		return cmp.Or(w.stage, "done"), nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "", errors.New(resp.Status)
	default:
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
		return "", fmt.Errorf("%w: %s: %s", ErrRefused, resp.Status, strings.TrimSpace(string(text)))
	}
	if w.Connected != nil {
		w.Connected()
	}
	return w.readStream(resp.Body, silent)
}

// maxLine limits a line of a stream, in bytes.
const maxLine = 1 << 20

func (w *watcher) readStream(body io.Reader, silent *time.Timer) (reason string, err error) {
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	var m Message
	var data []string
	for silent.Reset(silence); lines.Scan(); silent.Reset(silence) {
		silent.Stop() // the receiver of messages may take its time
		line := lines.Text()
		if line == "" {
			if data == nil {
				m = Message{}
				continue
			}
			m.Data = []byte(strings.Join(data, "\n"))
			if reason, err := w.takeMessage(m); reason != "" || err != nil {
				return reason, err
			}
			m, data = Message{}, nil
			continue
		}
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimPrefix(value, " ")
		switch name {
		case "id":
			m.ID = value
		case "event":
			m.Name = value
		case "data":
			data = append(data, value)
		case "retry":
			if ms, err := strconv.Atoi(value); err == nil && ms >= 0 {
				w.retry = time.Duration(ms) * time.Millisecond
			}
		}
	}
	return "", cmp.Or(lines.Err(), io.ErrUnexpectedEOF)
}

// takeMessage gives a message to its receiver. It returns a reason when the job has ended.
func (w *watcher) takeMessage(m Message) (reason string, err error) {
	if m.ID != "" {
		w.last = m.ID
	}
	if m.Name == nameHeartbeat {
		return "", nil
	}
	w.Message(m)
	switch m.Name {
	case NameEvent, NameState:
		var e struct{ Stage string }
		if json.Unmarshal(m.Data, &e) == nil {
			w.stage = e.Stage
		}
	case NameBusy:
		return "", fmt.Errorf("the gateway is busy: %s", m.Reason())
	case NameClosed:
		switch reason := m.Reason(); reason {
		case "done", "error":
			return reason, nil
		default: // also expired: if it was the token and not max_watch, the next request is refused
			return "", fmt.Errorf("the gateway closed the stream: %s", reason)
		}
	}
	return "", nil
}
