package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// ErrRefused is returned when the server refuses one stream because of what its key or its companion holds: a value of
// another type, or a last entry id that no id can follow. Nothing was added. Other streams are not affected, so a
// caller must not make them wait. The refusal ends when the key is removed or renamed.
var ErrRefused = errors.New("redis refuses this stream's key")

// refusals returns texts of error replies that are about one key. A reply that is not listed is about the server (OOM, LOADING,
// READONLY, CLUSTERDOWN, NOPERM and so on), and concerns every stream.
func refusals() []string {
	return []string{
		"WRONGTYPE",
		"The ID specified in XADD is equal or smaller than the target stream top item",
		"The stream has exhausted the last possible ID",
	}
}

// refusal adds ErrRefused to an error reply about one key. It counts the reply, and logs it at most once per minute
// and stream. All other errors are returned unchanged.
func (m *Manager) refusal(ctx context.Context, id int64, err error) error {
	var reply redis.Error
	if !errors.As(err, &reply) || errors.Is(err, ErrRefused) {
		return err
	}
	for _, text := range refusals() {
		if !strings.Contains(err.Error(), text) {
			continue
		}
		m.metrics.refused(m.kind.Type)
		if m.refusedLog.due(id, time.Now()) {
			m.log.WarnContext(ctx, "redis refuses a stream's key, its work waits; other streams are not affected",
				slog.String(pipeline.LogStream, m.kind.Stream(id)), pipeline.Err(err))
		}
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return err
}

// sampleEvery is the least time between two log lines of one kind about one stream.
const sampleEvery = time.Minute

// sampler limits log lines to one per sampleEvery and stream. The zero value is ready. Safe for concurrent use.
type sampler struct {
	mu   sync.Mutex
	last map[int64]time.Time
}

// manySampled is the number of streams above which those that are due again are forgotten.
const manySampled = 1024

// due reports whether a line about id may be written at now, and remembers that it was.
func (s *sampler) due(id int64, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last, ok := s.last[id]; ok && now.Sub(last) < sampleEvery {
		return false
	}
	if s.last == nil {
		s.last = map[int64]time.Time{}
	}
	if len(s.last) >= manySampled {
		for other, last := range s.last {
			if now.Sub(last) >= sampleEvery {
				delete(s.last, other)
			}
		}
	}
	s.last[id] = now
	return true
}
