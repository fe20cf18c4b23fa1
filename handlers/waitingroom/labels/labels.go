// Package labels limits how many events have metric series of their own.
package labels

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
	most   = 50
	others = "other"
	keep   = 10 * time.Minute // time for which an event without users keeps its series
)

// Labels chooses the events that have series of their own. The label "event" of all others is
// "other". It is safe for concurrent use.
type Labels struct {
	mu     sync.Mutex
	events map[string]time.Time // last use of each label
	series []*prometheus.MetricVec
}

// New returns labels for metrics with the label "event".
func New(series ...*prometheus.MetricVec) *Labels {
	return &Labels{events: map[string]time.Time{}, series: series}
}

// Name returns the label of an event. The first 50 events have labels of their own until Choose.
func (l *Labels) Name(event string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, chosen := l.events[event]; !chosen && len(l.events) >= most {
		return others
	}
	l.events[event] = time.Now()
	return event
}

// Choose gives the 50 largest events labels of their own. If there are fewer, an event without
// users keeps its label for ten minutes after its last use. The series of all others are removed.
func (l *Labels) Choose(sizes map[string]int64) {
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), strings.Compare(a, b))
	})
	now, chosen := time.Now(), map[string]time.Time{}
	for _, event := range names[:min(len(names), most)] {
		chosen[event] = now
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for event, last := range l.events {
		if _, found := chosen[event]; found {
			continue
		}
		if len(chosen) < most && now.Sub(last) < keep {
			chosen[event] = last
			continue
		}
		for _, vec := range l.series {
			vec.DeletePartialMatch(prometheus.Labels{"event": event})
		}
	}
	l.events = chosen
}
