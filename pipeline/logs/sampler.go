package logs

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/loop"
)

// Sampler thins out log lines that repeat. The first line of a key is due at once. Later ones are
// counted and due together, at most once per interval. It is safe for concurrent use.
type Sampler[K comparable, V any] struct {
	interval time.Duration

	mu   sync.Mutex
	keys map[K]*counted[V] // those of the last interval
}

type counted[V any] struct {
	count  int // since the last line
	latest V
	at     time.Time // of the latest
	logged time.Time // when the last line was due
}

// Sample is the content of one log line.
type Sample[K comparable, V any] struct {
	Key    K
	Count  int // events since the last line of this key, this one included
	Latest V   // the last event

	// At is when the last event was added. Its line may be written up to an interval later, see Late.
	At time.Time
}

// lateAfter is how long a line may be written after its event before it says so.
const lateAfter = time.Second

// Late returns the attribute with the time of the last event if that was a second ago or longer, and
// otherwise an empty one, which handlers leave out. A line without it reads as if the failure were one
// of this moment, although the server may have been back for most of a minute.
func (s Sample[K, V]) Late() slog.Attr {
	if time.Since(s.At) < lateAfter {
		return slog.Attr{}
	}
	return slog.Time(LastAt, s.At)
}

// NewSampler returns a sampler for at most one line per key and interval.
func NewSampler[K comparable, V any](interval time.Duration) *Sampler[K, V] {
	return &Sampler[K, V]{interval: interval, keys: map[K]*counted[V]{}}
}

// Add counts n events of a key; latest is the last of them.
func (s *Sampler[K, V]) Add(key K, n int, latest V) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[key] == nil {
		s.keys[key] = &counted[V]{}
	}
	s.keys[key].count += n
	s.keys[key].latest, s.keys[key].at = latest, time.Now()
}

// Due removes and returns the lines that are to be logged now.
func (s *Sampler[K, V]) Due() []Sample[K, V] { return s.take(false) }

// Rest returns everything that was counted and not logged yet, for a program that stops.
func (s *Sampler[K, V]) Rest() []Sample[K, V] { return s.take(true) }

func (s *Sampler[K, V]) take(all bool) (lines []Sample[K, V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for key, of := range s.keys {
		due := now.Sub(of.logged) >= s.interval
		switch {
		case of.count > 0 && (due || all):
			lines = append(lines, Sample[K, V]{key, of.count, of.latest, of.at})
			*of = counted[V]{logged: now}
		case due:
			delete(s.keys, key)
		}
	}
	return lines
}

// sampleTick is the time between two searches for lines that are due.
const sampleTick = 10 * time.Second

// Sampled writes the lines of a Sampler: each when it is due, and the rest at its Stop. It is a
// Service. Before Start it writes due lines only at the next Add. It is safe for concurrent use.
type Sampled[K comparable, V any] struct {
	sampler *Sampler[K, V]
	write   func(Sample[K, V])
	loops   loop.Group
}

// NewSampled returns a log with at most one line per key and interval.
func NewSampled[K comparable, V any](interval time.Duration, write func(Sample[K, V])) *Sampled[K, V] {
	return &Sampled[K, V]{sampler: NewSampler[K, V](interval), write: write}
}

// Add counts an event, and writes its line or counts it for the next line of its key.
func (l *Sampled[K, V]) Add(key K, event V) {
	l.sampler.Add(key, 1, event)
	l.lines(l.sampler.Due())
}

func (l *Sampled[K, V]) lines(lines []Sample[K, V]) {
	for _, line := range lines {
		l.write(line)
	}
}

// Start writes due lines until Stop.
func (l *Sampled[K, V]) Start(ctx context.Context) error {
	return l.loops.Start(ctx, func(ctx context.Context) {
		loop.Every(ctx, sampleTick, func(context.Context) { l.lines(l.sampler.Due()) })
	})
}

// Stop writes the lines that are not written yet.
func (l *Sampled[K, V]) Stop(ctx context.Context) error {
	err := l.loops.Stop(ctx)
	l.lines(l.sampler.Rest())
	return err
}

// Throttle writes warnings that many streams or messages may cause at once, at most one line per
// text and interval. Build it with NewThrottle. It is safe for concurrent use.
type Throttle struct {
	sampler *Sampler[string, []slog.Attr] // by text
}

// NewThrottle returns a Throttle that writes at most one line per text and interval.
func NewThrottle(interval time.Duration) *Throttle {
	return &Throttle{NewSampler[string, []slog.Attr](interval)}
}

// Warn writes text to log, now or with a later call. The line has the attributes of the latest call
// with that text. Its attribute "times" is the number of calls since the last line, and "last_at"
// their last one, if that was a second ago or longer.
func (l *Throttle) Warn(log *slog.Logger, text string, attrs ...slog.Attr) {
	l.sampler.Add(text, 1, attrs)
	for _, line := range l.sampler.Due() {
		log.LogAttrs(context.Background(), slog.LevelWarn, line.Key, append(slices.Clone(line.Latest), slog.Int("times", line.Count), line.Late())...) //nolint:sloglint // the callers' texts are constants
	}
}
