package streams

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

const (
	wakeInterval = 80 * time.Millisecond  // between two reads of the wake-up stream
	wakeLength   = 1000                   // entries of it, approximately
	wakeTimeout  = 250 * time.Millisecond // of adding wake-ups in a cluster
	wakeSilence  = 5 * time.Second        // after a failure of that
)

// WakeKey returns the key of the kind's wake-up stream. Each enqueue adds the id of its stream.
func (k Kind) WakeKey() string { return k.StreamPrefix + ":wake" }

// wakeUps are the streams to add to the wake-up stream of a cluster. Elsewhere enqueue.lua does it.
type wakeUps struct {
	crossSlot atomic.Bool // a plain client is connected to a cluster
	mu        sync.Mutex
	ids       map[string]struct{}
	sending   bool
	silent    time.Time // nothing is added before
}

// isCluster reports whether the keys of different streams are in different slots.
func (m *Manager) isCluster() bool {
	_, cluster := m.opts.Client().(*goredis.ClusterClient)
	return cluster || m.wakeUps.crossSlot.Load()
}

// announce adds id to the wake-up stream of a cluster. It does not wait for it.
func (m *Manager) announce(id string) {
	w := &m.wakeUps
	w.mu.Lock()
	defer w.mu.Unlock()
	if !m.isCluster() || time.Now().Before(w.silent) {
		return
	}
	if w.ids == nil {
		w.ids = map[string]struct{}{}
	}
	w.ids[id] = struct{}{}
	if !w.sending {
		w.sending = true
		go m.sendWakeUps()
	}
}

// sendWakeUps sends the wake-ups, one pipeline at a time. A failure drops those of wakeSilence.
func (m *Manager) sendWakeUps() {
	w := &m.wakeUps
	for {
		w.mu.Lock()
		ids := w.ids
		w.ids, w.sending = nil, len(ids) > 0
		w.mu.Unlock()
		if len(ids) == 0 {
			return
		}
		if err := m.addWakeUps(ids); err != nil {
			w.mu.Lock()
			w.ids, w.silent = nil, time.Now().Add(wakeSilence)
			w.mu.Unlock()
			m.wakeFailed(err)
		}
	}
}

func (m *Manager) addWakeUps(ids map[string]struct{}) error {
	ctx, cancel := context.WithTimeout(context.Background(), wakeTimeout)
	defer cancel()
	pipe := m.opts.Client().Pipeline()
	for id := range ids {
		pipe.XAdd(ctx, &goredis.XAddArgs{
			Stream: m.opts.Kind.WakeKey(), MaxLen: wakeLength, Approx: true, Values: []any{"id", id, "by", m.opts.Instance},
		})
	}
	_, err := pipe.Exec(ctx)
	return err
}

func (m *Manager) wakeFailed(err error) {
	m.sampler.Warn(m.log, "the wake-up stream can't be used, new entries wait for the poll interval",
		slog.String(logs.Stream, m.opts.Kind.WakeKey()), logs.Err(err))
	m.opts.Metrics.failed(m.opts.Kind.Type, "wake")
}

// listen reads the wake-up stream until ctx ends, and wakes the readers of the streams in it. A
// reader that misses its entry polls at its poll interval.
func (s *subscription) listen(ctx context.Context) {
	last := "0"
	loop.Every(ctx, wakeInterval, func(ctx context.Context) {
		for more := true; more && s.hasRunning(); {
			last, more = s.readWakeUps(ctx, last)
		}
	})
}

// readWakeUps reads the wake-ups after last. It returns the last one, and whether there may be
// more.
func (s *subscription) readWakeUps(ctx context.Context, last string) (string, bool) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	entries, err := s.m.opts.Client().XRangeN(ctx, s.m.opts.Kind.WakeKey(), "("+last, "+", wakeLength).Result()
	if err != nil {
		if s.Reading.Err() == nil {
			s.m.wakeFailed(err)
		}
		return last, false
	}
	for _, e := range entries {
		last = e.ID
		id, _ := e.Values["id"].(string)
		if e.Values["by"] == s.m.opts.Instance {
			continue // its own enqueue has woken the reader
		}
		if r := s.get(id); r != nil {
			r.reader.Wake()
		}
	}
	return last, len(entries) == wakeLength
}

func (s *subscription) hasRunning() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running) > 0
}
