package promotion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/streams"
)

// actor is one thing that an instance does: real code, on a goroutine of its own. It waits before
// and after every step that other actors can see, until the history continues it. Such a step is a
// command to Redis, a change of the active set, or a call of the Money API. Only one actor runs at
// a time.
type actor struct {
	hist *history
	in   *modelInstance
	what string
	at   string // where it waits
	free bool   // waits nowhere, and nothing fails but the Money API

	next    chan move
	stopped chan struct{} // it waits, or has ended
	ended   bool
}

// move is what becomes of an actor at the step it waits for.
type move struct {
	crash  bool // the instance is gone: nothing of the actor runs any more
	fail   bool // the command is not carried out, or its answer is lost
	answer int  // of the Money API
}

var errLink = errors.New("connection lost")

type actorKey struct{}

func actorOf(ctx context.Context) *actor {
	a, _ := ctx.Value(actorKey{}).(*actor)
	return a
}

// wait waits until the history goes on with a.
func (a *actor) wait(at string) move {
	switch {
	case a == nil:
		return move{}
	case a.free:
		return move{answer: a.hist.nextAnswer(at)}
	}
	a.at = at
	a.stopped <- struct{}{}
	m := <-a.next
	if m.crash {
		runtime.Goexit()
	}
	return m
}

// start begins an actor, which runs to its first step.
func (hist *history) start(in *modelInstance, what string, do func(ctx context.Context)) *actor {
	a := &actor{hist: hist, in: in, what: what, next: make(chan move), stopped: make(chan struct{})}
	in.actors = append(in.actors, a)
	hist.logf("%s %s", in.name, what)
	go func() {
		defer func() { a.ended = true; a.stopped <- struct{}{} }()
		do(context.WithValue(context.Background(), actorKey{}, a))
	}()
	<-a.stopped
	hist.reap(a)
	return a
}

// step lets a waiting actor go to its next step.
func (hist *history) step(a *actor, m move) {
	hist.logf("%s %s goes on %s %+v", a.in.name, a.what, a.at, m)
	a.next <- m
	<-a.stopped
	hist.reap(a)
}

func (hist *history) reap(a *actor) {
	if !a.ended {
		return
	}
	for i, other := range a.in.actors {
		if other == a {
			a.in.actors = append(a.in.actors[:i], a.in.actors[i+1:]...)
			return
		}
	}
}

// stepHook makes every command that an actor sends two steps: what it does, and the answer.
type stepHook struct{}

func (stepHook) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (stepHook) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		a := actorOf(ctx)
		if a.wait("before " + cmd.Name()).fail {
			cmd.SetErr(errLink)
			return errLink
		}
		err := next(ctx, cmd)
		if strings.HasPrefix(cmd.Name(), "eval") && a.wait("after "+cmd.Name()).fail && err == nil {
			cmd.SetErr(errLink)
			return errLink
		}
		return err
	}
}

func (stepHook) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

// steppedSet is the ledger's active set, whose changes are steps.
type steppedSet struct {
	feeder.ActiveSet
	hist *history
}

func (s steppedSet) Activate(ctx context.Context, id string) error {
	actorOf(ctx).wait("before activate")
	return s.ActiveSet.Activate(ctx, id)
}

func (s steppedSet) Deactivate(ctx context.Context, id string) error {
	actorOf(ctx).wait("before deactivate")
	// The ledger drops the incarnation, of a lost stream and of one that may be reactivated.
	recorded, _ := s.Ledger().Incarnation(ctx, s.hist.promotion)
	s.hist.unseen = s.hist.unseen || recorded != "" && recorded != s.hist.token()
	delete(s.hist.seen, recorded)
	s.hist.deactivations++
	return s.ActiveSet.Deactivate(ctx, id)
}

func (s steppedSet) Created(ctx context.Context, id, incarnation string) error {
	if actorOf(ctx).wait("before record").fail {
		return errLink
	}
	err := s.ActiveSet.Created(ctx, id, incarnation)
	if recorded, _ := s.Ledger().Incarnation(ctx, s.hist.promotion); recorded == incarnation {
		s.hist.seen[incarnation] = true
	}
	return err
}

func (s steppedSet) Deleted(ctx context.Context, id, incarnation string) error {
	if actorOf(ctx).wait("before retire").fail {
		return errLink
	}
	return s.ActiveSet.Deleted(ctx, id, incarnation)
}

// modelInstance is one instance of the service: the real processor, feeder and stream manager. Its
// reader and control loop are the model's, because a history can't step through the real loops.
// They use the same group, and the manager's own Ensure, Decommission and Sweep.
type modelInstance struct {
	name    string
	ledger  *ledger.Ledger
	client  goredis.UniversalClient
	config  *Config
	manager *streams.Manager
	api     money.API
	begins  *slots.Slots // nil: no limit
	proc    *payout.Processor
	feeder  *feeder.Feeder
	life    int // counts restarts; part of the reader's name

	actors   []*actor
	reading  bool // the control loop has started a reader
	paused   bool // as the control loop has seen last
	missed   int  // rounds in which the stream was there, read, and not active
	inFlight []goredis.XMessage
}

// callAt lets the instance call the Money API at url instead of that of the model.
func (in *modelInstance) callAt(t testing.TB, url string) *money.Client {
	cfg := oncehttp.DefaultConfig()
	cfg.URL, cfg.CallTimeout, cfg.ConnectTimeout = url, time.Minute, time.Minute
	client, err := money.New(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	in.api = client
	return client
}

// restart gives the instance a new life: whatever it had in memory is gone.
func (in *modelInstance) restart(hist *history) {
	for len(in.actors) > 0 {
		hist.step(in.actors[0], move{crash: true})
	}
	in.life++
	in.reading, in.paused, in.missed, in.inFlight = false, false, 0, nil
	in.config.Stream.Enabled = hist.flag
	in.api = &modelAPI{hist}
	open := func() *ledger.Ledger { return in.ledger }
	waiting := new(atomic.Bool)
	set := steppedSet{feeder.ActiveSet{Ledger: open, Type: "POINT", Waiting: waiting}, hist}
	in.manager = streams.NewManager(streams.Options{
		Kind:        hist.kind,
		Config:      func() streams.Config { return in.config.Stream.Config },
		Client:      func() goredis.UniversalClient { return in.client },
		Activations: set,
		Created:     set.Created,
		Deleted:     set.Deleted,
		Instance:    in.name,
	})
	log := slog.New(slog.DiscardHandler)
	in.proc = &payout.Processor{Type: pointType(), Ledger: open, MoneyAPI: func() money.API { return in.api }, Begins: func() *slots.Slots { return in.begins }, Streams: in.manager,
		PayAtOnce: func() bool { return !in.config.Stream.Enabled }, Metrics: hist.payoutMetrics, Progress: new(payout.Progress), Log: log,
		SettleTries: 1} // only what is frozen fails
	in.feeder = feeder.New(feeder.Options{Ledger: open, Streams: map[string]*streams.Manager{"POINT": in.manager}, Config: in.config.Feeder,
		Waiting: waiting, Metrics: hist.feederMetrics, Log: log})
}

func (in *modelInstance) reader() string { return fmt.Sprintf("%s.%d-0", in.name, in.life) }

func (in *modelInstance) runs(what string) bool {
	for _, a := range in.actors {
		if a.what == what {
			return true
		}
	}
	return false
}

// accept is the publish route: the handler, its sink, and where a failure goes.
func (hist *history) accept(in *modelInstance, rec *offer) func(context.Context) {
	return func(ctx context.Context) {
		rec.busy = true
		defer func() { rec.busy = false }()
		msg := message.NewMessage("", rec.payload)
		msg.SetContext(pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: pipeline.Origin{Kind: "kafka", Source: in.proc.Type.PublishTopic(), Key: fmt.Sprint(rec.target)}}))
		result := in.proc.Accept(ctx, []*message.Message{msg})[0]
		err := result.Err
		if result.Then != nil {
			_, err = result.Then(msg)
		}
		if len(result.Out) > 0 {
			err = in.proc.Publisher().Publish(ctx, result.Out...)
		}
		if hist.route(ctx, err, rec.payload, true) {
			rec.acked = true
		}
	}
}

// payEntry is the stream route.
func (hist *history) payEntry(in *modelInstance, e goredis.XMessage) func(context.Context) {
	return func(ctx context.Context) {
		msg, err := entry.Decode(e)
		if err != nil {
			hist.violation("entry %s: %v", e.ID, err)
			return
		}
		msg.SetContext(pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: pipeline.Origin{Kind: poll.Kind, Source: hist.stream, Position: entry.Position(hist.stream, e.ID)}}))
		_, err = in.proc.PayFrom(in.proc.StreamRoute())(msg)
		if hist.route(ctx, err, msg.Payload, false) {
			// An ack that is lost leaves the entry pending, and it is reclaimed.
			_ = in.client.XAck(ctx, hist.stream, hist.group, e.ID).Err()
		}
	}
}

// payRetry is the retry route.
func (hist *history) payRetry(in *modelInstance, r *retryRecord) func(context.Context) {
	return func(ctx context.Context) {
		r.busy = true
		defer func() { r.busy = false }()
		msg := message.NewMessage("", r.payload)
		msg.SetContext(pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: pipeline.Origin{Kind: "kafka", Source: in.proc.Type.RetryTopic()}}))
		_, err := in.proc.PayFrom(in.proc.RetryRoute())(msg)
		if hist.route(ctx, err, r.payload, true) {
			r.acked = true
		}
	}
}

// route does what the chain does with a handler's error, and reports whether the message is acked.
func (hist *history) route(ctx context.Context, err error, payload []byte, onlyAsked bool) (ack bool) {
	delay, asked := pipeline.RetryDelay(err)
	switch {
	case err == nil:
		return true
	case pipeline.IsPermanent(err):
		hist.violation("dead letter: %v", err)
		return true
	case onlyAsked && !asked:
		return false
	case !asked:
		delay = time.Minute
	}
	actorOf(ctx).wait("before retry record")
	hist.retries = append(hist.retries, &retryRecord{payload: payload, due: hist.now + delay})
	return true
}

// feed is a feeder's round for the one promotion of the history, which the round visits if it may need it.
func (hist *history) feed(in *modelInstance) func(context.Context) {
	return func(ctx context.Context) {
		work, err := in.ledger.ToFeed(ctx, in.config.Feeder.GracePeriod)
		if err != nil {
			hist.violation("promotions to feed: %v", err)
		}
		for _, one := range work {
			if one.Promotion == hist.promotion {
				before, deactivations := hist.token(), hist.deactivations
				active, _ := hist.active(in)
				_, err := in.feeder.Feed(ctx, in.manager, one)
				hist.logf("%s fed: %v", in.name, err)
				// No stream is recorded while it is cleaned up.
				if err == nil && active && deactivations == hist.deactivations {
					hist.noteRound(in, before)
				}
			}
		}
	}
}

// idleStop takes the stream out; whatever it deletes must have been drained.
func (hist *history) idleStop(in *modelInstance) func(context.Context) {
	return func(ctx context.Context) {
		if in.manager.Decommission(ctx, hist.promotion.StreamID()) {
			in.reading = false
		}
	}
}
