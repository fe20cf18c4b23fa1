package redistest

import (
	"strings"
	"sync"
)

// Lines collects what a logger writes. The zero value is ready.
type Lines struct {
	mu sync.Mutex
	b  strings.Builder
}

// Write implements io.Writer.
func (l *Lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// Count returns how often text was written.
func (l *Lines) Count(text string) int { return strings.Count(l.String(), text) }

// String returns everything that was written.
func (l *Lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
