package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// Relay returns the service that empties an outbox into the working copy and its topics, at least once. name is
// that of the plugin whose letters they are; it labels metrics and logs. Register it after the service that opens the outbox's database: it then starts
// later and stops earlier. Several instances may relay one outbox.
func (p *Plugin) Relay(name string, o Outbox) pipeline.Service {
	return &relay{plugin: p, name: name, outbox: o, quit: make(chan struct{}), done: make(chan struct{})}
}

type relay struct {
	plugin *Plugin
	name   string
	outbox Outbox

	mu      sync.Mutex // guards started, stopped and cancel
	started bool
	stopped bool
	cancel  context.CancelFunc // cuts a round short
	quit    chan struct{}      // closed by Stop: no further round
	done    chan struct{}      // closed when the loop has ended
}

// Start begins to relay. A relay runs once.
func (r *relay) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.started || r.stopped {
		return fmt.Errorf("relay %s: was started or stopped before", r.name)
	}
	r.started = true
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go r.run(ctx)
	return nil
}

// Stop lets the round in hand finish. When ctx ends first the round is cut short; its letters stay in
// the outbox, and some may be published again.
func (r *relay) Stop(ctx context.Context) error {
	r.mu.Lock()
	if !r.stopped {
		r.stopped = true
		close(r.quit)
	}
	started, cancel := r.started, r.cancel
	r.mu.Unlock()
	if !started {
		return nil
	}
	defer cancel()
	select {
	case <-r.done:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("relay %s: %w", r.name, ctx.Err())
	}
}

// run relays until quit: back to back while there are letters, otherwise every interval, and more and
// more seldom while rounds fail.
func (r *relay) run(ctx context.Context) {
	defer close(r.done)
	p := r.plugin
	failures := p.metrics.failures.WithLabelValues(r.name)
	failing := p.metrics.failing.WithLabelValues(r.name)
	backoff := pipeline.Backoff{First: p.config.Interval, Max: p.config.MaxBackoff}
	failed := 0
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-r.quit:
			return
		case <-timer.C:
		}
		n, err := r.round(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return // Stop cut the round short: no failure of the outbox
		case err != nil:
			failed++
			failures.Inc()
			failing.Set(1)
			r.logFirst(ctx, failed, err)
			timer.Reset(backoff.Delay(failed))
			if n > 0 {
				timer.Reset(0) // some letters got through; the others stand behind the rest now
			}
			continue
		case failed > 0:
			p.log.InfoContext(ctx, "dead letters are relayed again",
				slog.String("outbox", r.name), slog.Int("failed_rounds", failed))
			failed = 0
			failing.Set(0)
		}
		if n > 0 {
			timer.Reset(0)
		} else {
			timer.Reset(p.config.Interval)
		}
	}
}

// round relays one batch. A panic of the outbox is an error like any other: the loop goes on.
func (r *relay) round(ctx context.Context) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return r.outbox.Relay(ctx, r.plugin.config.BatchSize, func(ctx context.Context, batch []Letter) error {
		ctx, cancel := context.WithTimeout(ctx, r.plugin.config.PublishTimeout)
		defer cancel()
		return r.plugin.publish(ctx, r.name, batch)
	})
}

// logFirst logs the first failure of a row; the metric tells how long it lasts. Letters that can't be
// published need a person, a broker or a database that is away mostly doesn't.
func (r *relay) logFirst(ctx context.Context, failed int, err error) {
	if failed > 1 {
		return
	}
	level := slog.LevelWarn
	var partial *PublishError
	if errors.As(err, &partial) && len(partial.Failed) < partial.Size {
		level = slog.LevelError
	}
	r.plugin.log.LogAttrs(ctx, level, "dead letters can't be relayed", slog.String("outbox", r.name), pipeline.Err(err))
}

var _ pipeline.Service = (*relay)(nil)
