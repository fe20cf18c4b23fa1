package logs

import (
	"sync"
	"sync/atomic"
	"time"
)

// Outage decides when a log says that something does not work, such as a server, and when that it works again. Each
// of the two lines is due at most once per interval, because a server of which one machine of several is broken would
// have a pair of them per call. What the last line does not say is then said after a later event. It is safe for
// concurrent use.
type Outage struct {
	interval time.Duration
	repeats  bool
	broken   atomic.Bool // what the last line says

	mu    sync.Mutex
	lines [2]outageLine
}

type outageLine struct {
	at     time.Time // when it was due last
	hidden int       // events since
}

// NewOutage returns an Outage with at most one line of each kind per interval. repeats says that the line of what
// does not work is due again while it lasts; otherwise a state that lasts is said once.
func NewOutage(interval time.Duration, repeats bool) *Outage {
	return &Outage{interval: interval, repeats: repeats}
}

// Failed notes that it does not work. When the line is due, times is the number of events that it stands for.
func (o *Outage) Failed() (times int, due bool) { return o.note(true) }

// Works notes that it works. It costs little while nothing is wrong.
func (o *Outage) Works() (times int, due bool) { return o.note(false) }

func (o *Outage) note(broken bool) (times int, due bool) {
	said := func() bool { return o.broken.Load() == broken && !(broken && o.repeats) }
	if said() {
		return 0, false
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if said() {
		return 0, false
	}
	line := &o.lines[0]
	if broken {
		line = &o.lines[1]
	}
	line.hidden++
	if !line.at.IsZero() && time.Since(line.at) < o.interval {
		return 0, false
	}
	times = line.hidden
	*line = outageLine{at: time.Now()}
	o.broken.Store(broken)
	return times, true
}
