package once

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// AskAll takes all places of questions about states. free gives them back.
func (p *Plugin) AskAll() (free func()) {
	for range statesAtOnce {
		p.states <- struct{}{}
	}
	return func() {
		for range statesAtOnce {
			<-p.states
		}
	}
}

// Limited reports whether this instance has waited for a limit.
func (e *Effects[T]) Limited() bool { return e.worker.limited.Load() > 0 }

// Claims reports whether this instance claims effects.
func (e *Effects[T]) Claims() bool { return e.worker.claiming.Err() == nil }

// SpreadWithin changes how long a caller waits for the entries of effects. It is called by the caller.
func (e *Effects[T]) SpreadWithin(d time.Duration) { e.worker.spreadLimit = d }

// SpreadCallsWithin changes how long each call of a caller may take, before the kind is registered.
func (e *Effects[T]) SpreadCallsWithin(d time.Duration) { e.worker.callLimit = d }

// SpreadTimeout is how long a caller waits for the entries of effects.
const SpreadTimeout = spreadTimeout

// Away reports whether entries are left out because Redis did not answer.
func (e *Effects[T]) Away() bool { return e.worker.spread.isAway() }

// SetAway changes until when no entry is added.
func (e *Effects[T]) SetAway(until time.Time) { e.worker.spread.away.Store(until.UnixNano()) }

// Collectors returns the metrics.
func (p *Plugin) Collectors() []prometheus.Collector { return p.metrics.collectors() }

// Measure does now what an instance does every few seconds.
func (e *Effects[T]) Measure(ctx context.Context) { e.worker.measure(ctx, e.plugin.ledger.Load()) }

// Silence says that the instance has ended, although it goes on.
func (e *Effects[T]) Silence(ctx context.Context) { e.worker.endActivity(ctx, e.plugin.ledger.Load()) }

// Work returns what an instance does every few seconds on the ledger that is open now.
func (e *Effects[T]) Work() func(ctx context.Context) {
	w, l := e.worker, e.plugin.ledger.Load()
	s := &workers{plugin: e.plugin}
	return func(ctx context.Context) {
		s.sweep(ctx, l)
		w.measure(ctx, l)
		w.told, w.silent = true, false
		w.tellActivity(ctx, l)
	}
}

// OpenForCommand opens the ledger as a command does, which calls for nothing.
func (p *Plugin) OpenForCommand(ctx context.Context, r *pipeline.Registry) (closed func(context.Context) error, err error) {
	s := &ledgerService{plugin: p, command: true, kinds: func() []*worker { return pipeline.Offers[*worker](r) }}
	return s.Stop, s.Start(ctx)
}

// ActiveSet is the set of groups that have a stream.
type ActiveSet struct{ activeSet }

// ActiveSetOf returns that of a kind without instances, for most groups.
func ActiveSetOf(c goredis.UniversalClient, most int64) ActiveSet {
	return ActiveSet{activeSet{key: "once-active:test", most: most, client: func() goredis.UniversalClient { return c }}}
}

// Admit is streams.Options.Admit.
func (s ActiveSet) Admit(ctx context.Context, id string) (bool, error) { return s.admit(ctx, id) }

// ReplayAnswers returns the answer of a replay of as many effects, of which the ledger says errs, one after the other.
func ReplayAnswers(errs ...error) (operate.Answer, error) {
	b := &bulkReplay{use: &operate.Use{}, counts: map[replayResult]int64{}}
	b.report.Kind, b.report.State, b.report.Selected = "invoice", rules.Failed, int64(len(errs))
	for i, err := range errs {
		if err := b.add(ledger.Problem{Key: ledger.Key{ID: string(rune('a' + i))}}, err); err != nil {
			return b.finish(false, err)
		}
	}
	return b.finish(true, nil)
}
