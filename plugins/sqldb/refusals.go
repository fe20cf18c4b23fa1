package sqldb

import (
	"errors"
	"maps"
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
	found atomic.Bool // all is not empty
	mu    sync.Mutex
	all   map[string]refusal // by operation
}

type refusal struct {
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

func (r refusal) ended(now time.Time) bool {
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
	before, known := r.all[operation]
	if err == nil {
		if before.worked = now; before.ended(now) {
			delete(r.all, operation)
			r.found.Store(len(r.all) > 0)
		} else if known {
			r.all[operation] = before
		}
		return
	}
	this := refusal{since: now, last: now, text: err.Error()}
	if pg, ok := errors.AsType[*pgconn.PgError](err); ok {
		this.text = pg.Error()
	}
	if why, ok := RefusalOf(err); ok {
		this.repair = why.Repair()
	}
	if known && !before.ended(now) {
		this.since = before.since
	}
	if r.all == nil {
		r.all = map[string]refusal{}
	}
	r.all[operation] = this
	r.found.Store(true)
}

// Check returns a check that fails while something is refused. Otherwise ok is false.
func (r *Refusals) Check(now time.Time) (c operate.Check, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	since := now
	var texts, repairs []string
	for _, operation := range slices.Sorted(maps.Keys(r.all)) {
		one := r.all[operation]
		if one.ended(now) {
			continue
		}
		if one.since.Before(since) {
			since = one.since
		}
		texts = append(texts, operation+": "+one.text)
		if !slices.Contains(repairs, one.repair) {
			repairs = append(repairs, one.repair)
		}
	}
	return operate.Check{
		Level: operate.Fail, Text: "the database refuses statements of this instance, " + operate.Since(since, now) + ": " + strings.Join(texts, "; "),
		Remedy: strings.Join(repairs, "; "),
	}, len(texts) > 0
}
