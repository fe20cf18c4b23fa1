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

// notices tells the log of new letters: the first of a sort at once, then at most a line a minute. It is safe for concurrent
// use. As a service it tells of those that came after the last line, also when it stops.
type notices struct {
	plugin *Plugin

	mu    sync.Mutex
	sorts map[sort]*notice // those of the last minute

	end  context.CancelFunc
	done sync.WaitGroup
}

// sort is what has lines of its own.
type sort struct{ plugin, handler, class string }

type notice struct {
	letters int // since the last line
	example letters.Letter
	told    time.Time // when the last line was
}

func newNotices(p *Plugin) *notices { return &notices{plugin: p, sorts: map[sort]*notice{}} }

// add tells of a batch, or keeps it for the next line.
func (n *notices) add(ctx context.Context, batch []letters.Letter) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range batch {
		s := sort{l.Plugin, l.Handler, l.Class}
		if n.sorts[s] == nil {
			n.sorts[s] = &notice{}
		}
		n.sorts[s].letters++
		n.sorts[s].example = l
	}
	n.tell(ctx, false)
}

// tell writes the lines that are due, or with all those of all letters that none has told of. It is called with the lock held.
func (n *notices) tell(ctx context.Context, all bool) {
	now := time.Now()
	for s, of := range n.sorts {
		due := now.Sub(of.told) >= noticeEvery
		switch {
		case of.letters > 0 && (due || all):
			n.plugin.log.WarnContext(ctx, "messages became dead letters",
				slog.Int("letters", of.letters), slog.String("letters_of", s.plugin), slog.String(pipeline.LogRoute, s.handler), slog.String("class", s.class),
				slog.String(pipeline.LogError, line(of.example.Error, 300)), slog.String(pipeline.LogOrigin, of.example.Source.String()),
				slog.String("subject", of.example.Subject))
			*of = notice{told: now}
		case due:
			delete(n.sorts, s)
		}
	}
}

// Start begins to look for letters to tell of.
func (n *notices) Start(ctx context.Context) error {
	ctx, n.end = context.WithCancel(context.WithoutCancel(ctx))
	n.done.Go(func() {
		tick := time.NewTicker(noticeTick)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				n.flush(ctx, false)
			case <-ctx.Done():
				return
			}
		}
	})
	return nil
}

func (n *notices) flush(ctx context.Context, all bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.tell(ctx, all)
}

// Stop tells of what is left.
func (n *notices) Stop(ctx context.Context) error {
	if n.end != nil {
		n.end()
		n.done.Wait()
		n.end = nil
	}
	n.flush(ctx, true)
	return nil
}

var _ pipeline.Service = (*notices)(nil)
