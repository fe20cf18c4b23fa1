package streams

import (
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/plugins/reclaim"
)

// ReclaimTarget returns the streams that run here as a domain of plugins/reclaim: the prefix is the
// domain, the type its shard. Paused streams are left out, and all streams while the gate is
// closed.
func (m *Manager) ReclaimTarget() reclaim.Target { return target{m} }

type target struct{ m *Manager }

func (t target) Domain() string                { return t.m.opts.Kind.domain() }
func (t target) Client() redis.UniversalClient { return t.m.opts.Client() }
func (t target) MinIdle() time.Duration        { return t.m.opts.Config().MinIdle }

func (t target) Streams() []reclaim.Stream {
	sub := t.m.opened()
	if sub == nil || !sub.gate() {
		return nil
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	out := make([]reclaim.Stream, 0, len(sub.running))
	for _, r := range sub.running {
		if r.paused {
			continue
		}
		out = append(out, reclaim.Stream{
			Shard: t.m.opts.Kind.Type, Name: r.stream, Group: r.group, Consumer: r.consumer,
			Meta: MetaKey(r.stream), Reader: r.reader,
		})
	}
	return out
}

var _ reclaim.Target = target{}
