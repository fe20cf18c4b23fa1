package streams

import (
	"context"
	"errors"
	"log/slog"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// ownersTogether is how many owners are read in one pipeline.
const ownersTogether = 500

// ours returns the ids whose streams do not belong to another deployment, and how many do. The
// latter are logged.
func (m *Manager) ours(ctx context.Context, ids []string) (own []string, foreign int, err error) {
	if m.opts.Owner() == "" {
		return ids, 0, nil
	}
	for len(ids) > 0 {
		part := ids[:min(len(ids), ownersTogether)]
		ids = ids[len(part):]
		owners := make([]*redis.StringCmd, len(part))
		ctx, cancel := context.WithTimeout(ctx, callTimeout)
		_, _ = m.opts.Client().Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for i, id := range part {
				owners[i] = pipe.HGet(ctx, MetaKey(m.opts.Kind.Stream(id)), "owner")
			}
			return nil
		}) // each command has its own error
		cancel()
		for i, cmd := range owners {
			owner, err := cmd.Result()
			if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
				return nil, 0, err
			}
			switch owner {
			case "", m.opts.Owner():
				own = append(own, part[i])
			default:
				foreign++
				m.sampler.Warn(m.log, "streams of another deployment have this deployment's prefix, they are left alone",
					slog.String(logs.Stream, m.opts.Kind.Stream(part[i])), slog.String("owner", owner))
			}
		}
	}
	return own, foreign, nil
}

// noteForeign remembers whether an active stream belongs to another deployment.
func (s *subscription) noteForeign(id string, foreign bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if foreign {
		s.foreign[id] = struct{}{}
	} else {
		delete(s.foreign, id)
	}
}

// countForeign sets the gauge of the active streams that belong to another deployment.
func (s *subscription) countForeign(wanted map[string]Activation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id := range s.foreign {
		if _, active := wanted[id]; !active {
			delete(s.foreign, id)
		}
	}
	s.m.opts.Metrics.foreign(s.m.opts.Kind.Type, true, len(s.foreign))
}
