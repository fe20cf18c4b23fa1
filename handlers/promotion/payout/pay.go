package payout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// SettleTimeout bounds the storing of an answer, with its retries. An answer that is not stored in
// that time is lost. The same request is then sent again after the lease, with the same key.
const SettleTimeout = 5 * time.Second

// slotTimeout bounds the wait for the right to begin. It is shorter than the handler's timeout,
// which also has to cover the begin.
const slotTimeout = 10 * time.Second

var settleBackoff = pipeline.Backoff{First: 50 * time.Millisecond, Max: time.Second} //nolint:gochecknoglobals // a constant, but Go has none of this type

var (
	errNotDue = errors.New("not to be paid yet")
	// errNoSlot: a stream entry is then acked, and the feeder enqueues its payout again. A Kafka
	// record is delivered again.
	errNoSlot = errors.New("no slot was free in time")
)

// Pay begins a payout in the ledger, calls the Money API and settles the payout by the answer. The
// error is pipeline.RetryAfter when the payout is to be tried again later.
func (p *Processor) Pay(ctx context.Context, rec payouts.Record) error {
	return p.pay(ctx, rec, nil)
}

// pay is Pay. With undecodable, which says why the record can't be decoded, nothing is sent.
func (p *Processor) pay(ctx context.Context, rec payouts.Record, undecodable error) error {
	a, err := p.attempt(ctx, rec, undecodable)
	if err != nil {
		return err
	}
	switch a.begin.Next {
	case rules.Send, rules.Lookup:
		return p.settle(ctx, rec, a)
	case rules.Retry:
		return pipeline.RetryAfter(fmt.Errorf("promotion: %s: %w", rec.Key, errNotDue), a.begin.RetryIn)
	case rules.Unannounced: // its dead letter is in the outbox
		p.Metrics.unannounced.WithLabelValues(p.Type.Name).Inc()
	}
	return nil // also when it is settled or paused, or a conflict that is in the outbox
}

// attempt is one begin, and the call after it.
type attempt struct {
	before      time.Time // read before the begin
	begin       ledger.BeginResult
	answer      money.Answer // only when the begin returned Send or Lookup
	interrupted bool         // there was no call
	undecodable bool         // there was none because of the record
}

// attempt begins the payout, and makes the call if the ledger returns Send or Lookup. It holds one
// start of the stream, and one of p.Begins, until the end of the call. So nearly every call is made
// within its lease.
func (p *Processor) attempt(ctx context.Context, rec payouts.Record, undecodable error) (a attempt, err error) {
	waiting, cancel := context.WithTimeout(ctx, slotTimeout)
	release, err := acquire(waiting, slots.From(ctx).Starts, p.Begins())
	cancel()
	if err != nil {
		return a, fmt.Errorf("promotion: %s: %w: %w", rec.Key, errNoSlot, err)
	}
	defer release()
	// The lease counts from before the begin, so that it ends here before it ends in the ledger. A
	// process that was frozen in between finds its deadline passed, and sends nothing.
	a.before = time.Now()
	failpoint.Hit(failpoint.BeforeSending)
	a.begin, err = p.Ledger().Begin(ctx, rec)
	if err != nil {
		return a, fmt.Errorf("promotion: begin %s: %w", rec.Key, invalidIsPermanent(err))
	}
	p.debug(ctx, "begin", rec.Key, slog.String("next", a.begin.Next.String()), slog.Int64("epoch", a.begin.Epoch))
	if a.begin.Next != rules.Send && a.begin.Next != rules.Lookup {
		return a, nil
	}
	failpoint.Hit(failpoint.AfterSending)
	if undecodable != nil && a.begin.Next == rules.Send {
		a.undecodable, a.answer = true, money.Answer{Class: money.NotSent, Text: undecodable.Error()}
		return a, nil
	}
	end, err := p.slot(ctx, a)
	if err != nil {
		a.interrupted, a.answer = true, money.Answer{Class: money.NotSent, Text: "no call slot: " + err.Error()}
		return a, nil
	}
	defer end()
	ended := p.Recent.begin(rec.OfPromotion())
	defer func() { ended(a.answer) }() // also after a panic
	a.answer = p.call(ctx, rec.Key, a)
	failpoint.Hit(failpoint.AfterCall)
	return a, nil
}

// acquire acquires a slot of the stream, and then one of the process.
func acquire(ctx context.Context, ofStream, ofProcess *slots.Slots) (release func(), err error) {
	if err := ofStream.Acquire(ctx); err != nil {
		return nil, err
	}
	if err := ofProcess.Acquire(ctx); err != nil {
		ofStream.Release()
		return nil, err
	}
	return func() { ofProcess.Release(); ofStream.Release() }, nil
}

// slot waits for a call slot of the stream, and then for one of the process. It waits while the
// lease leaves time for a complete call.
func (p *Processor) slot(ctx context.Context, a attempt) (release func(), err error) {
	ctx, cancel := context.WithDeadline(ctx, a.before.Add(a.begin.Lease-p.CallTimeout))
	defer cancel()
	ofStream := slots.From(ctx).Calls
	if err := ofStream.Acquire(ctx); err != nil {
		return nil, err
	}
	ofProcess, err := p.MoneyAPI().Slot(ctx)
	if err != nil {
		ofStream.Release()
		return nil, err
	}
	return func() { ofProcess(); ofStream.Release() }, nil
}

// call calls the Money API within the lease. The end of the message's context does not end the
// call: its answer would only have to be looked up.
func (p *Processor) call(ctx context.Context, key payouts.Key, a attempt) money.Answer {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), a.before.Add(a.begin.Lease))
	defer cancel()
	if a.begin.Next == rules.Lookup {
		return p.MoneyAPI().Lookup(ctx, key.String())
	}
	return p.MoneyAPI().Charge(ctx, money.Charge{Operation: p.Type.Operation, Key: key.String(), Body: a.begin.Request})
}

// refusedTries and refusedFor bound the time in which an answer that the database has refused is
// stored as it is: five tries take about a second, and slow ones take longer. Then it is postponed.
const (
	refusedTries = 5
	refusedFor   = time.Second
)

// settle stores the answer of an attempt.
func (p *Processor) settle(ctx context.Context, rec payouts.Record, a attempt) error {
	outcome := outcomeOf(a.answer, a.begin.Next == rules.Lookup)
	class := a.answer.Class.String()
	switch {
	case a.interrupted:
		outcome = rules.Interrupted
	case a.undecodable:
		class = pipeline.ClassUndecodable
	}
	settled, err := p.store(ctx, payouts.CallResult{
		Key: rec.Key, CallResult: rules.CallResult{
			Epoch: a.begin.Epoch, Route: rec.Route,
			Outcome: outcome, Counted: p.counts(rec.Key, a),
			Receipt: a.answer.TransactionKey, RetryAfter: a.answer.RetryAfter,
			Class: class, Answer: a.answer.Text, Status: a.answer.Status,
			// The route of the retry topic has no slots of the stream.
			Feed: pipeline.DeliveryFrom(ctx).Kind == poll.Kind,
		},
	}, a.begin.Next == rules.Lookup)
	if err != nil {
		return fmt.Errorf("promotion: settle %s as %s: %w", rec.Key, a.answer.Class, err)
	}
	p.Progress.settled()
	p.Recent.settled(rec.OfPromotion(), settled)
	p.Metrics.attempted(p.Type.Name, settled)
	p.debug(ctx, "settle", rec.Key, slog.String("answer", a.answer.Class.String()),
		slog.String("state", string(settled.State)), slog.Bool("stale", settled.Stale))
	if settled.Next == rules.Retry {
		return pipeline.RetryAfter(fmt.Errorf("promotion: %s: %s: %s", rec.Key, a.answer.Class, a.answer.Text), settled.RetryIn)
	}
	return nil
}

// store stores a result in the ledger, and tries again until SettleTimeout. The epoch makes a
// repeated store harmless. If the database refuses the end of a payout, for example because of the
// sequence of the outbox, the payout is postponed, which needs the row of the payout only.
func (p *Processor) store(ctx context.Context, result payouts.CallResult, lookup bool) (ledger.SettleResult, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), SettleTimeout)
	defer cancel()
	began, refused, postponed := time.Now(), false, false
	for n := 1; ; n++ {
		settled, err := p.Ledger().Settle(ctx, result)
		final := errors.Is(err, rules.ErrInvalid) || errors.Is(err, ledger.ErrClosed) || errors.Is(err, ledger.ErrNotFound)
		if err == nil || final || n == p.SettleTries {
			return settled, err
		}
		// Other errors may follow a refusal, so the latest one alone does not decide.
		refused = refused || errors.Is(err, ledger.ErrRefusedByDatabase)
		if refused && !postponed && (n >= refusedTries || time.Since(began) >= refusedFor) {
			result, postponed = result.Postponed(lookup), true
		}
		select {
		case <-time.After(settleBackoff.Delay(n)):
		case <-ctx.Done():
			return settled, err
		}
	}
}
