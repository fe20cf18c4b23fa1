// Package labels limits how many events have metric series of their own.
package labels

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	most   = 50
	others = "other"
)

// Labels chooses the events that have series of their own. The label "event" of all others is
// "other". It is safe for concurrent use.
type Labels struct {
	mu     sync.Mutex
	events map[string]bool
	series []*prometheus.MetricVec
}

// New returns labels for metrics with the label "event".
func New(series ...*prometheus.MetricVec) *Labels {
	return &Labels{events: map[string]bool{}, series: series}
}

// Name returns the label of an event. The first 50 events have labels of their own until Choose.
func (l *Labels) Name(event string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.events) < most {
		l.events[event] = true
	}
	if !l.events[event] {
		return others
	}
	return event
}

// Choose gives the 50 largest events labels of their own, and removes the series of all others.
func (l *Labels) Choose(sizes map[string]int64) {
	names := slices.SortedFunc(maps.Keys(sizes), func(a, b string) int {
		return cmp.Or(cmp.Compare(sizes[b], sizes[a]), strings.Compare(a, b))
	})
	chosen := map[string]bool{}
	for _, event := range names[:min(len(names), most)] {
		chosen[event] = true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for event := range l.events {
		if !chosen[event] {
			for _, vec := range l.series {
				vec.DeletePartialMatch(prometheus.Labels{"event": event})
			}
		}
	}
	l.events = chosen
}
