// Package topevents limits how many events have metric series of their own.
package topevents

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	maxLabels = 50
	others    = "other"
	keep      = 10 * time.Minute // time for which an event without users keeps its series
)

// Labels chooses the events that have series of their own, for all parts of a process. The label
// "event" of all others is "other". It is safe for concurrent use. Build it with New.
type Labels struct {
	ended *prometheus.CounterVec

	mu     sync.Mutex
	events map[string]time.Time        // last use of each label
	sizes  map[string]map[string]int64 // users of each event, by part of the process
	series []series
}

// series are those that an event has in a metric.
type series struct {
	vec    *prometheus.CounterVec
	values []string // of the second label
}

// New returns labels without series.
func New() *Labels {
	l := &Labels{
		events: map[string]time.Time{}, sizes: map[string]map[string]int64{},
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "millrace_room_ended_total",
			Help: "Leases that ended by a tick, a result of the shop or a departure, by event and state (SOLD, ABANDONED, EXPIRED).",
		}, []string{"event", "state"}),
	}
	l.Add(l.ended, "SOLD", "ABANDONED", "EXPIRED")
	return l
}

// Add adds a metric with the label "event", and the values of its second label if it has one. Each
// event with a label of its own has these series, at first with 0.
func (l *Labels) Add(vec *prometheus.CounterVec, values ...string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.series = append(l.series, series{vec, values})
}

// begin creates the series of an event.
func (l *Labels) begin(event string) {
	for _, s := range l.series {
		if len(s.values) == 0 {
			s.vec.WithLabelValues(event)
		}
		for _, value := range s.values {
			s.vec.WithLabelValues(event, value)
		}
	}
}

// Collectors returns the metrics that several parts of a process count.
func (l *Labels) Collectors() []prometheus.Collector { return []prometheus.Collector{l.ended} }

// Ended counts leases of an event that ended in a state.
func (l *Labels) Ended(event, state string, leases int) {
	l.ended.WithLabelValues(l.Name(event), state).Add(float64(leases))
}

// Name returns the label of an event. The first 50 events have labels of their own until Choose.
func (l *Labels) Name(event string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, chosen := l.events[event]; !chosen {
		if len(l.events) >= maxLabels {
			return others
		}
		l.begin(event)
	}
	l.events[event] = time.Now()
	return event
}

// Choose gives the 50 largest events labels of their own. The sizes of one part of the process are
// new, and those of the others stay. If there are fewer events, one without users keeps its label
// for ten minutes after its last use. The series of all others are removed.
func (l *Labels) Choose(part string, sizes map[string]int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sizes[part] = sizes
	all := map[string]int64{}
	for _, known := range l.sizes {
		for event, size := range known {
			all[event] = max(all[event], size)
		}
	}
	names := slices.SortedFunc(maps.Keys(all), func(a, b string) int {
		return cmp.Or(cmp.Compare(all[b], all[a]), strings.Compare(a, b))
	})
	now, chosen := time.Now(), map[string]time.Time{}
	for _, event := range names[:min(len(names), maxLabels)] {
		chosen[event] = now
	}
	for event, last := range l.events {
		if _, found := chosen[event]; found {
			continue
		}
		if len(chosen) < maxLabels && now.Sub(last) < keep {
			chosen[event] = last
			continue
		}
		for _, s := range l.series {
			s.vec.DeletePartialMatch(prometheus.Labels{"event": event})
		}
	}
	for event := range chosen {
		if _, found := l.events[event]; !found {
			l.begin(event)
		}
	}
	if len(names) > maxLabels {
		l.begin(others)
	}
	l.events = chosen
}
