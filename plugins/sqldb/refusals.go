package sqldb

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// Refusals are what a database refuses of the work that a process repeats by itself, such as for a missing right, so
// that people see it without reading the log. The zero value has none. It is safe for concurrent use.
type Refusals struct {
	found atomic.Bool // there was one
	mu    sync.Mutex
	all   []refusal // one per operation
}

type refusal struct {
	operation           string
	since, last, worked time.Time
	text, repair        string
}

const (
	// refusalHeld is how long a refusal is shown although its operation works, because another statement of it may be
	// refused.
	refusalHeld = 15 * time.Second
	// refusalStands is how long a refusal is shown that has not come again, and whose operation has not worked. What is
	// refused is tried again sooner.
	refusalStands = 5 * time.Minute
)

func (r *refusal) ended(now time.Time) bool {
	quiet := now.Sub(r.last)
	return quiet > refusalStands || quiet > refusalHeld && !r.worked.Before(r.last)
}

// Note takes the end of an operation, whose name is a constant. refused says that err has a Refusal. Any other error
// proves nothing, and nil says that the operation works.
func (r *Refusals) Note(operation string, err error, refused bool) {
	if err != nil && !refused || err == nil && !r.found.Load() {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	at := 0
	for at < len(r.all) && r.all[at].operation != operation {
		at++
	}
	known := at < len(r.all)
	if err == nil {
		if known {
			r.all[at].worked = now
		}
		return
	}
	if !known {
		r.all = append(r.all, refusal{operation: operation})
	}
	this := &r.all[at]
	if !known || this.ended(now) {
		this.since = now
	}
	this.last, this.worked, this.text, this.repair = now, time.Time{}, err.Error(), ""
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		this.text = pg.Error()
	}
	if why, ok := RefusalOf(err); ok {
		this.repair = why.Repair()
	}
	r.found.Store(true)
}

// Check returns a check that fails while something is refused. Otherwise ok is false.
func (r *Refusals) Check(now time.Time) (c operate.Check, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := now
	var texts, repairs []string
	for i := range r.all {
		one := &r.all[i]
		if one.ended(now) {
			continue
		}
		if one.since.Before(since) {
			since = one.since
		}
		texts = append(texts, one.operation+": "+one.text)
		if !slices.Contains(repairs, one.repair) {
			repairs = append(repairs, one.repair)
		}
	}
	return operate.Check{
		Level: operate.Fail, Text: "the database refuses statements of this instance, " + operate.Since(since, now) + ": " + strings.Join(texts, "; "),
		Remedy: strings.Join(repairs, "; "),
	}, len(texts) > 0
}
