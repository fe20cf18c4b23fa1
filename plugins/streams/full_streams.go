package streams

import (
	"maps"
	"sync"
	"time"
)

// maxFull is how many streams fullStreams remembers before it drops those of the past.
const maxFull = 1024

// fullStreams remembers until when streams count as full.
type fullStreams struct {
	mu    sync.Mutex
	until map[string]time.Time
}

func (f *fullStreams) has(id string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return time.Now().Before(f.until[id])
}

func (f *fullStreams) addStream(id string, memory time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if len(f.until) >= maxFull {
		maps.DeleteFunc(f.until, func(_ string, until time.Time) bool { return !now.Before(until) })
	}
	if f.until == nil {
		f.until = map[string]time.Time{}
	}
	if until := now.Add(memory); until.After(f.until[id]) {
		f.until[id] = until
	}
}
