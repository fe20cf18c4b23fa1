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

// delays is what one round has found about foreign groups.
type delays struct {
	groups  map[string]int // streams per group that delays them
	streams int            // how many are delayed
	stream  string         // the one that is delayed longest
	worst   DelayingGroup  // by this group
}

// groupArgs returns the arguments about groups that scripts begin with.
func (c Config) groupArgs(own string) []any {
	return []any{own, c.ForeignGroupGrace.Milliseconds(), strings.Join(c.RequiredGroups, "\n")}
}

// args returns the arguments that scripts begin with which ask for the owner too.
func (m *Manager) args(id int64) []any {
	return append(m.config().groupArgs(m.kind.Group(id)), m.owner())
}

// keys returns the keys of a script about the stream of id.
func (m *Manager) keys(id int64) []string {
	stream := m.kind.Stream(id)
	return []string{stream, MetaKey(stream)}
}

// note adds the foreign groups that delay a stream.
func (d *delays) note(stream string, groups []DelayingGroup, grace time.Duration) {
	seen := false
	for _, g := range groups {
		if g.For < min(delayNoticed, grace) {
			continue
		}
		d.groups[g.Group]++
		if g.For > d.worst.For || d.stream == "" {
			d.stream, d.worst = stream, g
		}
		seen = true
	}
	if seen {
		d.streams++
	}
}

// delayed reports what one round over all streams has found: the gauge, and the group that delays longest.
func (m *Manager) delayed(d delays) {
	m.metrics.delayedBy(m.kind.Type, d.groups)
	if d.streams > 0 {
		m.notice("a foreign consumer group delays trimming and deletion of a stream",
			slog.String(pipeline.LogStream, d.stream), slog.String(pipeline.LogGroup, d.worst.Group), slog.Duration("for", d.worst.For),
			slog.Bool("ignored", d.worst.Ignored), slog.Duration("foreign_group_grace", m.config().ForeignGroupGrace), slog.Int("streams", d.streams))
	}
}

// delayedBy replaces the gauge of a kind: the groups that delay most streams by name, the others together.
func (m *Metrics) delayedBy(kind string, all map[string]int) {
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
