package streams

import (
	"cmp"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
)

// DelayingGroup is a foreign consumer group of a stream: neither the stream's own group nor a required one. It holds
// entries, pending or unread, that the other groups have released.
type DelayingGroup struct {
	Group string `json:"group"`
	// For is how long it has done so.
	For time.Duration `json:"-"`
	// Ignored: longer than Config.ForeignGroupGrace, so that trimming and deletion no longer wait for it.
	Ignored bool `json:"ignored"`
}

const (
	// delayNoticed is how long a foreign group delays a stream before it is reported. A group that reads along is always
	// a little behind.
	delayNoticed = 10 * time.Second
	// delayNames bounds the group names in the gauge; other groups are counted together.
	delayNames  = 10
	delayOthers = "other"
)

// delays counts streams by the foreign group that delays them.
type delays map[string]int

// groupArgs returns the arguments about groups that scripts begin with.
func (c Config) groupArgs(own string) []any {
	return []any{own, c.ForeignGroupGrace.Milliseconds(), strings.Join(c.RequiredGroups, "\n")}
}

// keys returns the keys of a script about the stream of id.
func (m *Manager) keys(id int64) []string {
	stream := m.kind.Stream(id)
	return []string{stream, MetaKey(stream)}
}

// delayed reports the foreign groups that delay a stream: in all, and in the log at most once per minute and stream.
func (s *subscription) delayed(r *running, t tended, all delays) {
	var worst *DelayingGroup
	for i, g := range t.delaying {
		if g.For < min(delayNoticed, s.m.config().ForeignGroupGrace) {
			continue
		}
		all[g.Group]++
		if worst == nil || g.For > worst.For {
			worst = &t.delaying[i]
		}
	}
	if worst == nil || !s.m.delayLog.due(r.id, time.Now()) {
		return
	}
	s.m.log.Warn("a foreign consumer group delays trimming and deletion of a stream",
		slog.String(pipeline.LogStream, r.stream), slog.String(pipeline.LogGroup, worst.Group), slog.Duration("for", worst.For),
		slog.Bool("ignored", worst.Ignored), slog.Duration("foreign_group_grace", s.m.config().ForeignGroupGrace))
}

// delayedBy replaces the gauge of a kind: the groups that delay most streams by name, the others together.
func (m *Metrics) delayedBy(kind string, all delays) {
	names := make([]string, 0, len(all))
	for name := range all {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(all[b]-all[a], strings.Compare(a, b)) })
	m.delaying.DeletePartialMatch(prometheus.Labels{"type": kind})
	for i, name := range names {
		if i < delayNames {
			m.delaying.WithLabelValues(kind, name).Set(float64(all[name]))
		} else {
			m.delaying.WithLabelValues(kind, delayOthers).Add(float64(all[name]))
		}
	}
}
