package once

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// outcomes are the ledger's outcomes of answers. An answer of any other class is Unclear.
var outcomes = map[Class]rules.Outcome{ //nolint:gochecknoglobals // a constant, but Go has none of this type
	Done:          rules.Done,
	NotSent:       rules.NotSent,
	Throttled:     rules.Throttled,
	Rejected:      rules.Rejected,
	Misconfigured: rules.Misconfigured,
	Retry:         rules.TryAgain,
	Unrecognized:  rules.Unrecognized,
}

// outcomeOf returns the ledger's outcome of an answer. A lookup that got no answer of the far side itself
// does not count, and NotDone has a meaning only from a lookup.
func outcomeOf(a Answer, lookup bool) rules.Outcome {
	if outcome, found := outcomes[a.Class]; found {
		return outcome
	}
	switch {
	case lookup && a.Class == NotDone:
		return rules.NotDone
	case lookup && a.Code == "":
		return rules.Unrecognized
	}
	return rules.Unclear
}

// classOf returns the class that attempts and metrics show.
func classOf(a Answer) string {
	if a.Class == Done {
		return ""
	}
	return a.Class.String()
}

// textOfAnswer is what the ledger keeps of an answer, with the far side's own code.
func textOfAnswer(a Answer) string {
	text := a.Text
	if text == "" && a.Err != nil {
		text = a.Err.Error()
	}
	if strings.Contains(text, a.Code) {
		return text
	}
	return strings.TrimSuffix(a.Code+": "+text, ": ")
}

// counts reports whether a released call counts against its effect. It does when it was sent, the trouble
// is not general, and another effect of the kind was answered since this one's previous call. An outage, a
// refused credential or general throttling therefore never ends an effect. counts also notes the answer.
func (w *worker) counts(c ledger.Claimed, a Answer, before time.Time, decoded bool) bool {
	switch {
	case !decoded:
		return true // no other version of this program may ever come that can
	case aboutTheEffect(a):
		w.answered.Note(c.Key, time.Now())
		return false
	case a.Class == NotSent, a.General, c.SinceLastCall == 0:
		return false
	}
	return w.answered.OthersSince(c.Key, before.Add(-c.SinceLastCall))
}

// aboutTheEffect reports whether an answer is the far side's own and about one effect.
func aboutTheEffect(a Answer) bool {
	switch a.Class {
	case Done, Rejected, NotDone:
		return true
	case Unclear:
		return a.Status == http.StatusConflict
	}
	return false
}

// trouble is what a kind remembers of a far side that does not work for any effect: while it lasts, one call
// at a time finds out whether it is over. It is safe for concurrent use.
type trouble struct {
	mu    sync.Mutex
	count int       // troubled answers in a row
	waits int       // the same, but calls that ran at once are one
	since time.Time // of the first of them
	until time.Time // no call before
	last  string    // troubled answer
}

// troubleBackoff is the wait between two calls while no effect is worked on.
var troubleBackoff = pipeline.Backoff{First: 250 * time.Millisecond, Max: 15 * time.Second} //nolint:gochecknoglobals // a constant, but Go has none of this type

// note learns from an answer. Only trouble that all effects have counts.
func (t *trouble) note(a Answer, decoded bool, now time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case !decoded:
	case aboutTheEffect(a): // also while others have trouble
		t.count, t.waits, t.until = 0, 0, time.Time{}
	case a.General || a.Class == NotSent:
		if t.count == 0 {
			t.since = now
		}
		t.count++
		if !now.Before(t.until) {
			t.waits++
			t.until = now.Add(troubleBackoff.Delay(t.waits))
		}
		if a.General {
			t.until = later(t.until, now.Add(a.RetryAfter))
		}
		t.last = strings.TrimSuffix(classOf(a)+": "+textOfAnswer(a), ": ")
	}
}

// learn notes an answer. The gate of a kind has seen its throttled ones, too, and lets fewer calls begin, so they don't
// also make all wait here.
func (w *worker) learn(a Answer, decoded bool, now time.Time) {
	if a.Class != Throttled || !w.effects.gated() {
		w.trouble.note(a, decoded, now)
	}
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// again lets a call begin now, because its client says that it would be sent.
func (t *trouble) again() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.until = time.Time{}
}

// lasting is the number of troubled answers in a row from which on people are told.
const lasting = 2

// reason says why calls wait, or nothing.
func (t *trouble) reason() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.count < lasting {
		return ""
	}
	return fmt.Sprintf("the far side has carried out nothing since %s, so one call at a time tests it; its last answer: %s",
		t.since.UTC().Format(time.RFC3339), t.last)
}

// lasts reports whether the far side works for no effect, as far as is known.
func (t *trouble) lasts() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.count > 0
}

// limit returns how many calls may run at once, of at most all. When fewer run, the caller may wait for
// wait, or for the end of a call.
func (t *trouble) limit(all int, now time.Time) (n int, wait time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.count == 0:
		return all, time.Minute // until a call ends
	case now.Before(t.until):
		return 0, t.until.Sub(now)
	}
	return 1, time.Minute
}

// traced returns a message with the headers of an effect, for pipeline.ExtractTrace.
func traced(headers map[string]string) *message.Message {
	return &message.Message{Metadata: headers}
}
