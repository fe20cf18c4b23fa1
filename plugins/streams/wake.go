package streams

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

const (
	wakeInterval = 80 * time.Millisecond  // between two reads of the wake-up stream
	wakeLength   = 1000                   // entries of it, approximately
	wakeTimeout  = 250 * time.Millisecond // how long an enqueue in a cluster waits for it
)

// WakeKey returns the key of the kind's wake-up stream. Each enqueue adds the id of its stream.
func (k Kind) WakeKey() string { return k.StreamPrefix + "wake" }

// isCluster reports whether the keys of different streams are in different slots.
func (m *Manager) isCluster() bool {
	_, cluster := m.o.Client().(*goredis.ClusterClient)
	return cluster
}

// announce adds id to the wake-up stream of a cluster. Elsewhere enqueue.lua does it. After a
// failure it does nothing for one poll interval, so that enqueues are not delayed.
func (m *Manager) announce(ctx context.Context, id int64) {
	now := time.Now()
	if !m.isCluster() || now.UnixNano() < m.silentUntil.Load() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, wakeTimeout)
	defer cancel()
	err := m.o.Client().XAdd(ctx, &goredis.XAddArgs{
		Stream: m.o.Kind.WakeKey(), MaxLen: wakeLength, Approx: true, Values: []any{"id", id, "by", m.o.Instance},
	}).Err()
	if err != nil {
		m.silentUntil.Store(now.Add(m.o.Config().PollInterval).UnixNano())
		m.wakeFailed(err)
	}
}

func (m *Manager) wakeFailed(err error) {
	m.o.Metrics.failed(m.o.Kind.Type, "wake")
	m.sampler.Warn(m.log, "the wake-up stream can't be used, new entries wait for the poll interval",
		slog.String(pipeline.LogStream, m.o.Kind.WakeKey()), pipeline.Err(err))
}

// listen reads the wake-up stream until ctx ends, and wakes the readers of the streams in it. A
// reader that misses its entry polls at its poll interval.
func (s *subscription) listen(ctx context.Context) {
	last := "0"
	pipeline.Every(ctx, wakeInterval, func(ctx context.Context) {
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
	entries, err := s.m.o.Client().XRangeN(ctx, s.m.o.Kind.WakeKey(), "("+last, "+", wakeLength).Result()
	if err != nil {
		if s.Reading.Err() == nil {
			s.m.wakeFailed(err)
		}
		return last, false
	}
	for _, e := range entries {
		last = e.ID
		text, _ := e.Values["id"].(string)
		id, err := strconv.ParseInt(text, 10, 64)
		if err != nil || e.Values["by"] == s.m.o.Instance {
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
