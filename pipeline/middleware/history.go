package middleware

import (
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// history is what a retry record says about the attempts before it. The zero value is that of a
// message that came first.
type history struct {
	retries int       // spent
	failed  time.Time // first; zero: not yet
}

// firstFailed returns when the message failed first; now, unless it says a time before.
func (h history) firstFailed(now time.Time) time.Time {
	if !h.failed.IsZero() && h.failed.Before(now) {
		return h.failed
	}
	return now
}

// retriers returns the routes whose retry records r reads: those that retry into the endpoint that
// r reads from.
func (c *Chain) retriers(r pipeline.Route) []string {
	names := c.routes.RetriesInto(r.From.Describe())
	if to := r.Policy.Retry.To; to != nil && sameName(to.Describe(), r.From.Describe()) {
		names = append(names, r.Name)
	}
	return names
}

func sameName(a, b pipeline.Endpoint) bool { return a.Kind == b.Kind && a.Name == b.Name }

// mostRetries is the largest number of retries that is accepted from a header.
const mostRetries = 1 << 30

// spentBy reads the history of a message. Any client can write the headers: they count only on a
// record that names a route that writes such records here. A count that is no number is none.
func spentBy(msg *message.Message, retriers []string) (h history) {
	if len(retriers) == 0 || !slices.Contains(retriers, msg.Metadata.Get(pipeline.MetaRetryOf)) {
		return h
	}
	if n, err := strconv.Atoi(msg.Metadata.Get(pipeline.MetaAttempt)); err == nil {
		h.retries = min(max(n, 0), mostRetries)
	}
	if t, err := time.Parse(time.RFC3339Nano, msg.Metadata.Get(pipeline.MetaFirstFailedAt)); err == nil {
		h.failed = t
	}
	return h
}

// ownHeaders belong to one message on its way through one route. A handler's outputs do not inherit
// them.
func ownHeaders() []string {
	return []string{pipeline.MetaDue, pipeline.MetaAttempt, pipeline.MetaFirstFailedAt, pipeline.MetaLastError, pipeline.MetaRetryOf, pipeline.MetaReplay}
}

// withoutHistory returns m without the headers of the message that it was made of. m itself may be
// that message, which still needs them when the publish fails: it is left alone.
func withoutHistory(m *message.Message) *message.Message {
	if !slices.ContainsFunc(ownHeaders(), func(name string) bool { _, has := m.Metadata[name]; return has }) {
		return m
	}
	out := m.Copy()
	out.SetContext(m.Context())
	for _, name := range ownHeaders() {
		delete(out.Metadata, name)
	}
	return out
}

// maxLastError bounds the value of pipeline.MetaLastError, in bytes.
const maxLastError = 256

// headerText returns the beginning of text as a header that any client can print: valid UTF-8 in one
// line, without control characters.
func headerText(text string) string { return textOf(text, maxLastError) }

// maxRecord bounds the place of a message in what a process tells about its work, in bytes.
const maxRecord = 256

func textOf(text string, most int) string {
	text = logs.OneLine(text)
	return strings.Map(func(r rune) rune {
		if unicode.IsPrint(r) {
			return r
		}
		return ' '
	}, strings.ToValidUTF8(text[:min(len(text), most)], ""))
}
