package deadletter

import (
	"context"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/cli"
	"github.com/millrace-io/millrace/plugins/deadletter/store"
)

const (
	// logInterval is the least time between two lines of one group.
	logInterval = time.Minute
	// logTick is the time between two searches for groups with dead letters that are not logged
	// yet.
	logTick = 10 * time.Second
	// maxLoggedError bounds the error in a line, in characters.
	maxLoggedError = 300
)

// logSampler logs new dead letters: the first of a group at once, later ones in at most one line
// per minute. As a service it logs the last ones of a group, also when it stops. It is safe for
// concurrent use.
type logSampler struct {
	plugin  *Plugin
	sampler *pipeline.Sampler[groupKey, store.DeadLetter]

	loops pipeline.Loops
}

// groupKey identifies the dead letters that share a line.
type groupKey struct{ plugin, handler, class string }

func newLogSampler(p *Plugin) *logSampler {
	return &logSampler{plugin: p, sampler: pipeline.NewSampler[groupKey, store.DeadLetter](logInterval)}
}

// add logs dead letters, or counts them for the next line of their group.
func (s *logSampler) add(ctx context.Context, batch ...store.DeadLetter) {
	for _, d := range batch {
		s.sampler.Add(groupKey{d.Plugin, d.Handler, d.Class}, 1, d)
	}
	s.write(ctx, s.sampler.Due())
}

func (s *logSampler) write(ctx context.Context, lines []pipeline.Sample[groupKey, store.DeadLetter]) {
	for _, l := range lines {
		s.plugin.log.WarnContext(ctx, "messages became dead letters",
			slog.Int("count", l.Count), slog.String("plugin_of", l.Key.plugin), slog.String(pipeline.LogRoute, l.Key.handler), slog.String("class", l.Key.class),
			slog.String(pipeline.LogError, cli.OneLine(l.Latest.Error, maxLoggedError)), slog.String(pipeline.LogOrigin, l.Latest.Source.String()),
			slog.String("subject", l.Latest.Subject))
	}
}

func (s *logSampler) Start(ctx context.Context) error {
	return s.loops.Start(ctx, func(ctx context.Context) {
		pipeline.Every(ctx, logTick, func(ctx context.Context) { s.write(ctx, s.sampler.Due()) })
	})
}

// Stop logs the dead letters that are not logged yet.
func (s *logSampler) Stop(ctx context.Context) error {
	err := s.loops.Stop(ctx)
	s.write(ctx, s.sampler.Rest())
	return err
}
