package oncehttp

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// toldEvery is the time between two log lines that say the same of the credential.
const toldEvery = time.Minute

// told logs whether the API refuses our credential, permission or address. It writes each of its two lines at most once
// per toldEvery, because an API of which one server of several refuses us would have a pair of them per call. What the last
// line does not say is then said by a later call.
type told struct {
	refused atomic.Bool // what the last line says

	mu    sync.Mutex
	lines [2]line
}

type line struct {
	at     time.Time // when it was written last
	hidden int       // how often it was not written since
}

// due reports whether the line of a state must be written, and how many times it stands for.
func (t *told) due(refused bool) (times int, due bool) {
	if t.refused.Load() == refused {
		return 0, false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused.Load() == refused {
		return 0, false
	}
	l := &t.lines[0]
	if refused {
		l = &t.lines[1]
	}
	l.hidden++
	if !l.at.IsZero() && time.Since(l.at) < toldEvery {
		return 0, false
	}
	times = l.hidden
	*l = line{at: time.Now()}
	t.refused.Store(refused)
	return times, true
}

func (t *told) refuses(log *slog.Logger, status int, answer string) {
	if times, due := t.due(true); due {
		log.Error("the api refuses our credential, permission or address", "status", status, "answer", answer, "times", times)
	}
}

func (t *told) accepts(log *slog.Logger) {
	if times, due := t.due(false); due {
		log.Info("the api accepts our calls again", "times", times)
	}
}
