package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// Entry is a dead letter in an outbox. Without SourceKind and Source it is not published again.
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
	d.Headers = maps.Clone(d.Headers)
	maps.DeleteFunc(d.Headers, func(name, _ string) bool { return strings.HasPrefix(name, pipeline.MetaDeadPrefix) }) // as its message
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
	// returns nil when all are durable, a *pipeline.PartialError when all but the named ones are,
	// and any other error when some may be. n is the number of entries that Relay removed or
	// marked. The error is that of publish, or of the outbox.
	//
	// After a *pipeline.PartialError, Relay removes or marks the other entries and moves the named
	// ones behind all others, so that they do not block them.
	Relay(ctx context.Context, limit int, publish func(ctx context.Context, batch []Entry) error) (n int, err error)
}

// Relay returns the service that brings the entries of an outbox into the store and their topics,
// at least once. name is that of the plugin with the ledger; it labels metrics and logs. Register
// the service after that of the outbox's database: it then starts later and stops earlier. Several
// instances may relay one outbox. The service runs once.
func (p *Plugin) Relay(name string, o Outbox) pipeline.Service {
	r := &relay{plugin: p, name: name, outbox: o,
		failures: p.metrics.failures.WithLabelValues(name), failing: p.metrics.failing.WithLabelValues(name)}
	r.work, r.cancel = context.WithCancel(context.Background())
	return r
}

type relay struct {
	plugin   *Plugin
	name     string
	outbox   Outbox
	failures prometheus.Counter
	failing  prometheus.Gauge

	loops  loop.Group
	work   context.Context // of the batches: it ends later than the loop
	cancel context.CancelFunc
	failed int // consecutive batches
	said   said
}

func (r *relay) Start(ctx context.Context) error {
	return r.wrap(r.loops.Start(ctx, func(ctx context.Context) { loop.Repeat(ctx, 0, r.next) }))
}

// Stop waits for the batch in flight. When ctx ends first, Stop cancels it: its entries stay in the
// outbox, and some may be published again.
func (r *relay) Stop(ctx context.Context) error {
	defer r.cancel()
	return r.wrap(r.loops.Stop(ctx))
}

func (r *relay) wrap(err error) error {
	if err != nil {
		return fmt.Errorf("relay %s: %w", r.name, err)
	}
	return nil
}

// next relays a batch and returns the delay before the next one: none while the outbox has entries.
// The delay increases with each failure.
func (r *relay) next(ctx context.Context) time.Duration {
	c := r.plugin.config
	n, err := r.relayBatch()
	switch {
	case r.work.Err() != nil: // Stop cancelled the batch: no failure of the outbox
	case err != nil:
		r.failed++
		r.failures.Inc()
		r.failing.Set(1)
		r.logFailure(ctx, err)
		if n == 0 { // otherwise the failed ones are behind the rest now
			return pipeline.Backoff{First: c.Interval, Max: c.MaxBackoff}.Delay(r.failed)
		}
	default:
		if r.failed > 0 {
			r.plugin.log.InfoContext(ctx, "dead letters are relayed again",
				slog.String("outbox", r.name), slog.Int("failed_batches", r.failed))
		}
		r.failed = 0
		r.failing.Set(0)
		if n == 0 {
			return c.Interval
		}
	}
	return 0
}

// outboxTimeout is what the outbox has for its statements about one batch. A connection to a server that is frozen, or that
// is not the current one any more, would otherwise never give it back.
const outboxTimeout = 30 * time.Second

// relayBatch relays one batch. A panic of the outbox is an error like any other.
func (r *relay) relayBatch() (n int, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	bounded, cancel := context.WithTimeout(r.work, r.plugin.config.PublishTimeout+outboxTimeout)
	defer cancel()
	return r.outbox.Relay(bounded, r.plugin.config.BatchSize, func(ctx context.Context, entries []Entry) error {
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
	err := p.publish(ctx, batch, p.topics.Sink)
	partial, inPart := errors.AsType[*pipeline.PartialError](err)
	for i, o := range batch {
		if err == nil || inPart && partial.Failed[i] == nil {
			p.relayed.Add(groupKey{o.dead.Plugin, o.dead.Handler, o.dead.Class}, o.dead)
		}
	}
	return err
}

const (
	// logInterval is the least time between two lines of one group.
	logInterval = time.Minute
	// maxLoggedError bounds the error in a line, in characters.
	maxLoggedError = 300
)

// groupKey identifies the dead letters that share a line.
type groupKey struct{ plugin, handler, class string }

// logRelayed logs dead letters of an outbox. The chain logs those of a route.
func (p *Plugin) logRelayed(s logs.Sample[groupKey, store.DeadLetter]) {
	p.log.Warn("messages became dead letters",
		slog.Int("count", s.Count), slog.String("plugin_of", s.Key.plugin), slog.String(logs.Route, s.Key.handler), slog.String("class", s.Key.class),
		slog.String(logs.Error, cli.OneLine(s.Latest.Error, maxLoggedError)), slog.String(logs.Origin, s.Latest.Source.String()),
		slog.String("subject", s.Latest.Subject), s.Late())
}

// said is the last line about failures in a row.
type said struct {
	level  slog.Level
	reason string
	at     time.Time
}

// logFailure logs the first of several consecutive failures, and those with another reason once per interval, because
// the first reason may be gone long since. Dead letters that the broker refuses need a person, and are an error. An
// unavailable broker or database usually does not.
func (r *relay) logFailure(ctx context.Context, err error) {
	now := said{slog.LevelWarn, err.Error(), time.Now()}
	if partial, ok := errors.AsType[*pipeline.PartialError](err); ok {
		now.reason = partial.Unwrap().Error() // without the counts
		if len(partial.Failed) < partial.Size {
			now.level = slog.LevelError
		}
	}
	if r.failed > 1 && now.level <= r.said.level && (now.reason == r.said.reason || now.at.Sub(r.said.at) < logInterval) {
		return
	}
	r.said = now
	r.plugin.log.LogAttrs(ctx, now.level, "dead letters can't be relayed", slog.String("outbox", r.name), logs.Err(err))
}
