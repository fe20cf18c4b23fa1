package deadletter

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

const (
	// noticeEvery is the least time between two lines about letters of one sort.
	noticeEvery = time.Minute
	// noticeTick is how often letters are looked for that no line has told of yet.
	noticeTick = 10 * time.Second
)

// notices logs new letters: the first of a sort at once, then at most a line per minute. It is safe for concurrent
// use. As a service it logs those that came after the last line, also when it stops.
type notices struct {
	plugin  *Plugin
	sampler *pipeline.Sampler[sort, letters.Letter]

	end  context.CancelFunc
	done sync.WaitGroup
}

// sort is what has lines of its own.
type sort struct{ plugin, handler, class string }

func newNotices(p *Plugin) *notices {
	return &notices{plugin: p, sampler: pipeline.NewSampler[sort, letters.Letter](noticeEvery)}
}

// add logs a batch, or keeps it for the next line.
func (n *notices) add(ctx context.Context, batch []letters.Letter) {
	for _, l := range batch {
		n.sampler.Add(sort{l.Plugin, l.Handler, l.Class}, 1, l)
	}
	n.tell(ctx, n.sampler.Due())
}

func (n *notices) tell(ctx context.Context, lines []pipeline.Sample[sort, letters.Letter]) {
	for _, l := range lines {
		n.plugin.log.WarnContext(ctx, "messages became dead letters",
			slog.Int("letters", l.Count), slog.String("letters_of", l.Key.plugin), slog.String(pipeline.LogRoute, l.Key.handler), slog.String("class", l.Key.class),
			slog.String(pipeline.LogError, line(l.Latest.Error, 300)), slog.String(pipeline.LogOrigin, l.Latest.Source.String()),
			slog.String("subject", l.Latest.Subject))
	}
}

// Start begins to look for letters that no line has named yet.
func (n *notices) Start(ctx context.Context) error {
	ctx, n.end = context.WithCancel(context.WithoutCancel(ctx))
	n.done.Go(func() {
		tick := time.NewTicker(noticeTick)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n.tell(ctx, n.sampler.Due())
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

// Stop logs what is left.
func (n *notices) Stop(ctx context.Context) error {
	if n.end != nil {
		n.end()
		n.done.Wait()
		n.end = nil
	}
	n.tell(ctx, n.sampler.Rest())
	return nil
}

var _ pipeline.Service = (*notices)(nil)
