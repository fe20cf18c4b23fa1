package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/deadletter/store"
)

// Entry is a dead letter in an outbox.
type Entry struct {
	Topic string
	// ID is unique and the same whenever the entry is relayed; see store.ID. Empty: one is derived
	// from the message.
	ID string
	// Subject is the ledger's name of what the dead letter is about, such as the key of a payout.
	// The Replayer of the plugin replays an entry with a subject. An entry without one is published
	// again.
	Subject string
	// Detached excludes the entry from the lineage of its subject: it never parks other dead
	// letters of the subject.
	Detached bool
	pipeline.DeadLetter
}

// row returns the row of the store.
func (e *Entry) row(plugin string) store.DeadLetter {
	d := store.From(e.ID, plugin, e.Topic, e.UUID, e.DeadLetter)
	d.Subject = e.Subject
	if e.Subject != "" && !e.Detached {
		d.Lineage = store.LineageOf(plugin, e.Subject)
	}
	return d
}

// Outbox keeps the dead letters that a ledger has written until they are published. An
// implementation is one transaction. It takes up to limit entries, oldest first, that no other
// transaction has taken (FOR UPDATE SKIP LOCKED). It publishes them, and removes or marks the
// durable ones. A crash after the publish publishes them again.
type Outbox interface {
	// Relay takes up to limit entries and calls publish once; with no entry it does not. publish
	// returns nil when all are durable, a *PublishError when all but the named ones are, and any
	// other error when some may be. n is the number of entries that Relay removed or marked. The
	// error is that of publish, or of the outbox.
	//
	// After a *PublishError, Relay removes or marks the other entries and moves the named ones
	// behind all others, so that they do not block them.
	Relay(ctx context.Context, limit int, publish func(ctx context.Context, batch []Entry) error) (n int, err error)
}

// Relay returns the service that brings the entries of an outbox into the store and their topics,
// at least once. name is that of the plugin with the ledger; it labels metrics and logs. Register
// the service after that of the outbox's database: it then starts later and stops earlier. Several
// instances may relay one outbox.
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
	cancel  context.CancelFunc // cancels the batch in flight
	quit    chan struct{}      // closed by Stop: no further batch
	done    chan struct{}      // closed when the loop has ended
}

// Start starts the loop. A relay runs once.
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

// Stop waits for the batch in flight. When ctx ends first, Stop cancels it: its entries stay in the
// outbox, and some may be published again.
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

// run relays until Stop: without a pause while the outbox has entries, otherwise once per interval,
// and with an increasing delay after failures.
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
		n, err := r.relayBatch(ctx)
		switch {
		case err != nil && ctx.Err() != nil:
			return // Stop cancelled the batch: no failure of the outbox
		case err != nil:
			failed++
			failures.Inc()
			failing.Set(1)
			r.logFirst(ctx, failed, err)
			timer.Reset(backoff.Delay(failed))
			if n > 0 {
				timer.Reset(0) // some were published; the failed ones are behind the rest now
			}
			continue
		case failed > 0:
			p.log.InfoContext(ctx, "dead letters are relayed again",
				slog.String("outbox", r.name), slog.Int("failed_batches", failed))
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

// relayBatch relays one batch. A panic of the outbox is an error like any other.
func (r *relay) relayBatch(ctx context.Context) (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return r.outbox.Relay(ctx, r.plugin.config.BatchSize, func(ctx context.Context, entries []Entry) error {
		ctx, cancel := context.WithTimeout(ctx, r.plugin.config.PublishTimeout)
		defer cancel()
		return r.plugin.publishEntries(ctx, r.name, entries)
	})
}

// publishEntries publishes entries of the outbox of a plugin.
func (p *Plugin) publishEntries(ctx context.Context, plugin string, entries []Entry) error {
	batch := make([]outgoing, len(entries))
	for i, e := range entries {
		batch[i] = outgoing{e.row(plugin), e.Message()}
	}
	return p.publish(ctx, batch)
}

// logFirst logs the first of several consecutive failures. Dead letters that the broker refuses
// need a person, and are an error. An unavailable broker or database usually does not.
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
