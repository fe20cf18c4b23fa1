package streams

import (
	"log/slog"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
)

// DelayingGroup is a foreign consumer group of a stream: neither the stream's own group nor a
// required one. It holds entries, pending or unread, that the other groups have released.
type DelayingGroup = redis.DelayingGroup

// groupArgs returns the arguments about groups that scripts begin with.
func (c Config) groupArgs(own string) []any {
	return []any{own, c.ForeignGroupGrace.Milliseconds(), strings.Join(c.RequiredGroups, "\n")}
}

// args returns the arguments of scripts that check the owner too.
func (m *Manager) args(id string) []any {
	return append(m.opts.Config().groupArgs(m.opts.Kind.Group(id)), m.opts.Owner())
}

// keys returns the keys of a script about the stream of id.
func (m *Manager) keys(id string) []string {
	stream := m.opts.Kind.Stream(id)
	return []string{stream, MetaKey(stream)}
}

// delayed reports what one round over all streams has found: the gauge, and the group that delays
// longest.
func (m *Manager) delayed(d *redis.Delays) {
	m.opts.Metrics.delayedBy(m.opts.Kind.Type, d)
	if d.Streams > 0 {
		m.sampler.Warn(m.log, "a foreign consumer group delays trimming and deletion of a stream",
			slog.String(logs.Stream, d.Stream), slog.String(logs.Group, d.Worst.Group), slog.Duration("for", d.Worst.For),
			slog.Bool("ignored", d.Worst.Ignored), slog.Duration("foreign_group_grace", m.opts.Config().ForeignGroupGrace), slog.Int("streams", d.Streams))
	}
}

// delayedBy replaces the gauge of a kind.
func (m *Metrics) delayedBy(kind string, d *redis.Delays) {
	m.delaying.DeletePartialMatch(prometheus.Labels{"type": kind})
	for group, streams := range d.ByGroup() {
		m.delaying.WithLabelValues(kind, group).Set(float64(streams))
	}
}
