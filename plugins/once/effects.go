package once

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// Errors of Enqueue and EnqueueTx.
var (
	// ErrConflict means that another request with the same key was accepted before.
	ErrConflict = ledger.ErrConflict
	// ErrOtherLedger means that the transaction is not one of the ledger's database and schema. In
	// SQLite none is.
	ErrOtherLedger = ledger.ErrOtherLedger
)

// Accepted says what became of one value of Enqueue.
type Accepted = ledger.Accepted

// The results of Enqueue.
const (
	Fresh     = ledger.Fresh     // a new effect
	Known     = ledger.Known     // the same effect was accepted before
	Cancelled = ledger.Cancelled // its group is cancelled: nothing is called
	Conflict  = ledger.Conflict  // another request with the same key was accepted before
)

// Effects are the effects of one kind. Its plugin makes them in its constructor with New and registers
// them in Register, and may enqueue while the process runs. They are safe for concurrent use.
type Effects[T any] struct {
	plugin *Plugin
	kind   Kind[T]
	config *KindConfig
	worker *worker
}

// New returns the effects of a kind. It opens nothing. config is a part of the caller's own settings, which
// are decoded later.
func New[T any](p *Plugin, kind Kind[T], config *KindConfig) *Effects[T] {
	e := &Effects[T]{plugin: p, kind: kind, config: config}
	p.names = append(p.names, kind.Name)
	e.worker = newWorker(p, kind.Name, config, e)
	return e
}

// Needs returns the plugins that the kind requires, for pipeline.Dependent.
func (e *Effects[T]) Needs() []string { return e.config.Needs(e.plugin) }

// Describe returns the place of the effects. A route whose handler calls Enqueue names it in Route.Calls, so that
// topology and console show where its work goes, and why that waits. It works offline.
func (e *Effects[T]) Describe() pipeline.Endpoint { return placeOf(e.kind.Name) }

// Register adds the route of the kind's topic, and offers the kind to the plugin once, which calls for
// its effects. The error has all mistakes of the kind and of its settings.
func (e *Effects[T]) Register(r *pipeline.Registry) error {
	err := errors.Join(e.kind.validate(), e.config.Validate(), e.config.fits(e.kind.Name, e.kind.Repeat))
	if err != nil {
		return err
	}
	r.Offer(e.worker)
	effects := e.Describe()
	r.Endpoint(pipeline.UseFollows, effects)
	dead := pipeline.Drop
	if e.config.Topic != "" {
		if e.plugin.topics == nil || e.plugin.dead == nil {
			return fmt.Errorf("once: kind %q has the topic %s, and the plugin once was built without topics and dead letters: give them to NewPlugin, or leave the topic empty", e.kind.Name, e.config.Topic)
		}
		dead = e.plugin.dead.Sink(e.config.Topic + "-dead")
	}
	if e.config.Via == ViaStreams {
		if e.plugin.redis == nil {
			return errNoStreams(e.kind.Name)
		}
		names := e.kind.Names.of(e.kind.Name)
		if err := names.free(e.kind.Name, pipeline.Offers[*worker](r)); err != nil {
			return err
		}
		e.worker.spread = newSpread(e.worker, names, r.Env(), streams.SharedMetrics(r))
		e.worker.spread.register(r, effects, dead)
	}
	if e.config.Results != "" {
		if e.plugin.topics == nil {
			return fmt.Errorf("once: kind %q has the topic %s for results, and the plugin once was built without topics: give them to NewPlugin, or leave results empty", e.kind.Name, e.config.Results)
		}
		to := e.plugin.topics.Sink(e.config.Results)
		r.Endpoint(pipeline.UseWrites, to.Describe())
		e.worker.results = newRelay(e.worker, to, e.kind.Result)
	}
	if e.config.Topic == "" {
		return nil
	}
	r.Route(pipeline.Route{
		Name: acceptRoute(e.kind.Name), From: e.plugin.topics.Source(e.config.Topic, e.config.Group),
		HandleBatch: e.accept, Batch: e.config.AcceptBatch, Calls: []pipeline.Endpoint{effects},
		Policy: pipeline.Policy{Timeout: acceptTimeout, DeadLetter: dead},
	})
	return nil
}

// Enqueue accepts effects. They are durable when it returns, and the results are in the order of values.
// After an error, which may wrap pipeline.ErrUnavailable, any of them may have been accepted, and Enqueue
// may be repeated, unless the error is permanent (pipeline.IsPermanent): then a value can never be accepted, because its key is
// no key, for example, or its record or request has more than 64 KiB.
func (e *Effects[T]) Enqueue(ctx context.Context, values ...T) ([]Accepted, error) {
	records, results, err := e.enqueue(ctx, values)
	if err != nil {
		return nil, err
	}
	all := make([]Accepted, len(results))
	for i, r := range results {
		if r.Err != nil {
			return nil, refusedRecord(records[i].Key, r)
		}
		all[i] = r.Accepted
	}
	return all, nil
}

// Accept is Enqueue of one value for the handler of a route. The effect is durable when it returns nil, and one that was
// accepted before adds nothing. A value that can never be accepted, or asks for something else under a known key, is a permanent
// error, so its record becomes a dead letter. An effect of a cancelled group is no error, and is not called for.
func (e *Effects[T]) Accept(ctx context.Context, value T) error {
	records, results, err := e.enqueue(ctx, []T{value})
	if err != nil {
		return err
	}
	return refusedRecord(records[0].Key, results[0])
}

func (e *Effects[T]) enqueue(ctx context.Context, values []T) ([]ledger.Record, []ledger.AcceptResult, error) {
	records, err := e.records(ctx, values)
	if err != nil {
		return nil, nil, err
	}
	l := e.plugin.ledger.Load()
	if l == nil {
		return nil, nil, errNotOpen
	}
	results, err := e.worker.accept(ctx, l, records)
	return records, results, err
}

// EnqueueTx accepts effects in the caller's PostgreSQL transaction, so they exist if and only if it
// commits. It takes no lock of a group and reads no state of one: a pause or a cancellation applies when
// the effect is taken up. Until the transaction ends, another one that accepts the same key waits for
// it, so keep it short. After any error roll the transaction back; ErrConflict is one, and permanent as the errors of Enqueue are. Call committed
// after the commit to be called at once: without it an instance finds the effects within poll_interval.
func (e *Effects[T]) EnqueueTx(ctx context.Context, tx pgx.Tx, values ...T) (committed func(), err error) {
	return e.enqueueTx(ctx, ledger.PgxTx(tx), values)
}

// EnqueueSQL is EnqueueTx for a transaction of database/sql.
func (e *Effects[T]) EnqueueSQL(ctx context.Context, tx *sql.Tx, values ...T) (committed func(), err error) {
	return e.enqueueTx(ctx, ledger.SQLTx(tx), values)
}

func (e *Effects[T]) enqueueTx(ctx context.Context, tx ledger.Execer, values []T) (committed func(), err error) {
	records, err := e.records(ctx, values)
	if err != nil {
		return nil, err
	}
	l := e.plugin.ledger.Load()
	if l == nil {
		return nil, errNotOpen
	}
	switch err := l.AcceptTx(ctx, tx, records); {
	case errors.Is(err, ErrConflict):
		return nil, pipeline.WithClass(pipeline.Permanent(err), classConflict)
	case errors.Is(err, rules.ErrInvalid):
		return nil, pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassInvalid)
	case err != nil:
		return nil, err
	}
	return e.worker.wake, nil
}

// Expect says how many effects a group will have, before its first one or later. The status of the group then says how many of
// them are accepted, and that it is finished once all are and have ended. Nothing else depends on it: more or fewer effects are accepted and called for all
// the same. It may be repeated, by any instance, and the last number counts. Zero changes nothing.
func (e *Effects[T]) Expect(ctx context.Context, group string, total int64) error {
	l := e.plugin.ledger.Load()
	if l == nil {
		return errNotOpen
	}
	return l.Expect(ctx, ledger.Group{Kind: e.kind.Name, Name: group}, total)
}

// read implements caller.
func (e *Effects[T]) read(payload []byte) (ledger.Record, error) {
	v, err := e.kind.decode(payload)
	if err != nil {
		return ledger.Record{}, fmt.Errorf("once: decode a record of kind %s: %w", e.kind.Name, err)
	}
	return e.record(v, payload)
}

// records are what the ledger stores of values. Its errors are permanent, because a handler that returns another one gets its
// record again without end.
func (e *Effects[T]) records(ctx context.Context, values []T) ([]ledger.Record, error) {
	records := make([]ledger.Record, 0, len(values))
	for _, v := range values {
		payload, err := encodeValue(v)
		if err != nil {
			return nil, pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable)
		}
		rec, err := e.record(v, payload)
		if err != nil {
			return nil, pipeline.WithClass(pipeline.Permanent(err), pipeline.ClassUndecodable)
		}
		rec.Headers, rec.Origin = traceHeaders(ctx, nil), "enqueued by "+e.plugin.instance()
		rec.Published = pipeline.DeliveryFrom(ctx).Published // of a record whose handler asks for the effect
		records = append(records, rec)
	}
	return records, nil
}

// record is what the ledger stores of a value.
func (e *Effects[T]) record(v T, payload []byte) (ledger.Record, error) {
	key, err := e.kind.Key(v)
	if err == nil {
		err = key.Validate()
	}
	if err != nil {
		return ledger.Record{}, fmt.Errorf("once: the key of a record of kind %s: %w", e.kind.Name, err)
	}
	request, err := e.kind.request(v, payload)
	if err != nil {
		return ledger.Record{}, fmt.Errorf("once: the request of %s:%s: %w", e.kind.Name, key, err)
	}
	rec := ledger.Record{Key: ledger.Key{Kind: e.kind.Name, Group: key.Group, ID: key.ID}, Part: key.Part, Payload: payload, Request: request}
	if e.kind.NotBefore != nil {
		rec.NotBefore = e.kind.NotBefore(v)
	}
	return rec, nil
}

// State is an effect at one moment.
type State struct {
	State    rules.State `json:"state"`
	Receipt  string      `json:"receipt,omitempty"` // the far side's name of the effect
	Attempts int         `json:"attempts"`          // sends that count
	Class    string      `json:"class,omitempty"`   // of the last answer that was not done
	Error    string      `json:"error,omitempty"`   // its text
	NextIn   time.Duration

	Group rules.GroupState `json:"group_state,omitempty"` // of its group, when it was read
}

// State returns what is known about an effect. The error wraps ledger.ErrNotFound if it was never
// accepted.
func (e *Effects[T]) State(ctx context.Context, k Key) (State, error) {
	l := e.plugin.ledger.Load()
	if l == nil {
		return State{}, errNotOpen
	}
	return e.plugin.stateOf(ctx, l, ledger.Key{Kind: e.kind.Name, Group: k.Group, ID: k.ID})
}

func stateOf(ctx context.Context, l *ledger.Ledger, k ledger.Key) (State, error) {
	x, err := l.Explain(ctx, k)
	if err != nil {
		return State{}, err
	}
	return State{State: x.Row.State, Receipt: x.Row.Receipt, Attempts: x.Row.Attempts, Class: x.Row.LastClass, Error: x.Row.LastError, NextIn: x.NextCallIn, Group: x.Group}, nil
}
