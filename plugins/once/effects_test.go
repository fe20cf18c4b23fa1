package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

const (
	millisecond = time.Millisecond
	minute      = time.Minute
	hour        = time.Hour
)

// each runs a test with a ledger in each database.
func each(t *testing.T, test func(t *testing.T, w *oncetest.World)) {
	t.Helper()
	sqldbtest.Each(t, func(t *testing.T, dsn string) { test(t, oncetest.On(t, dsn)) })
}

func TestAnEffectThatIsEnqueuedTwiceHappensOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, nil)
		w.Start(p)
		got, err := p.effects.Enqueue(t.Context(), one, one)
		require.NoError(t, err)
		require.Equal(t, []once.Accepted{once.Fresh, once.Known}, got)
		s := oncetest.Settled(t, p.effects, one.key())
		require.Equal(t, rules.Success, s.State)
		require.Equal(t, "receipt of invoice:acme:17", s.Receipt)
		got, err = p.effects.Enqueue(t.Context(), one)
		require.NoError(t, err)
		require.Equal(t, []once.Accepted{once.Known}, got)
		other := one
		other.Cents++
		got, err = p.effects.Enqueue(t.Context(), other)
		require.NoError(t, err)
		require.Equal(t, []once.Accepted{once.Conflict}, got)
		require.Equal(t, 1, p.far.Executed(one.idempotency()))
	})
}

// What follows each answer to the first send, on a far side that then works.
func TestWhatFollowsEachAnswer(t *testing.T) {
	t.Parallel()
	unclear := once.Answer{Text: "no answer within 3s"}
	for name, c := range map[string]struct {
		repeat once.Repeat
		first  oncetest.Step
		state  rules.State
		times  int
	}{
		"a key makes it harmless":               {once.ByKey, oncetest.Step{Execute: true, Answer: unclear}, rules.Success, 1},
		"it is found":                           {once.ByLookup, oncetest.Step{Execute: true, Answer: unclear}, rules.Success, 1},
		"it is not found and sent again":        {once.ByLookup, oncetest.Step{Answer: unclear}, rules.Success, 1},
		"an operator decides":                   {once.Never, oncetest.Step{Execute: true, Answer: unclear}, rules.Unknown, 1},
		"at least once":                         {once.Always, oncetest.Step{Execute: true, Answer: unclear}, rules.Success, 2},
		"a panic is unclear":                    {once.Never, oncetest.Step{Execute: true, Panic: true}, rules.Unknown, 1},
		"rejected":                              {once.ByKey, oncetest.Step{Answer: once.IsRejected("no_such_customer", "unknown customer")}, rules.Failed, 0},
		"asked for later":                       {once.Never, oncetest.Step{Answer: once.Answer{Class: once.Retry}}, rules.Success, 1},
		"throttled":                             {once.Never, oncetest.Step{Answer: once.Answer{Class: once.Throttled, General: true, RetryAfter: time.Millisecond}}, rules.Success, 1},
		"not sent":                              {once.Never, oncetest.Step{Answer: once.Answer{Class: once.NotSent, Err: errors.New("connection refused")}}, rules.Success, 1},
		"not done is no answer to a send":       {once.Never, oncetest.Step{Execute: true, Answer: once.Answer{Class: once.NotDone}}, rules.Unknown, 1},
		"a proxy's answer proves nothing":       {once.Never, oncetest.Step{Execute: true, Answer: once.Answer{Class: once.Unrecognized}}, rules.Unknown, 1},
		"credentials are refused, then correct": {once.Never, oncetest.Step{Answer: once.Answer{Class: once.Misconfigured, General: true}}, rules.Success, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := oncetest.New(t)
			p := newInvoices(w.Once, c.repeat, nil)
			p.far.Next(c.first)
			w.Start(p)
			_, err := p.effects.Enqueue(t.Context(), one)
			require.NoError(t, err)
			s := oncetest.SettledInTurns(t, w, p.effects, one.key())
			require.Equal(t, c.state, s.State, s)
			require.Equal(t, c.times, p.far.Executed(one.idempotency()))
			require.Zero(t, p.far.Overlaps())
		})
	}
}

// The promise of each Repeat, with answers that are lost and calls that panic.
func TestThePromiseOfEachRepeat(t *testing.T) {
	t.Parallel()
	for _, r := range []once.Repeat{once.ByKey, once.ByLookup, once.Never, once.Always} {
		t.Run(r.String(), func(t *testing.T) {
			t.Parallel()
			var kind once.Kind[invoice]
			newInvoices(oncetest.New(t).Once, r, func(k *once.Kind[invoice], _ *once.KindConfig) { kind = *k })
			oncetest.Check(t, kind, one, invoice{Customer: "acme", Number: "18", Cents: 1}, invoice{Customer: "zeta:{1}", Number: "1\u00e9", Cents: 2})
		})
	}
}

// A record of the topic is an effect; one that can never be one is a dead letter, and stops no other.
func TestRecordsOfTheTopic(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w *oncetest.World) {
		p := newInvoices(w.Once, once.ByKey, func(_ *once.Kind[invoice], c *once.KindConfig) { c.Topic, c.Group = "invoice", "millrace-invoice" })
		w.Start(p)
		other, longest := one, invoice{Customer: strings.Repeat("x", 101), Number: "1"}
		other.Cents++
		w.Topics.Feed("invoice").SendPayloads(one.payload(), "{", other.payload(), longest.payload(), one.payload(), `{"customer":"zeta","number":"1"}`)
		require.Equal(t, map[string]int{"undecodable": 2, "effect_conflict": 1}, deadOf(t, w, "invoice-dead", 3))
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
		require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, once.Key{Group: "zeta", ID: "1"}).State)
		require.Equal(t, 1, p.far.Executed(one.idempotency()))
	})
}

// A value that this version can't decode is not called, and ends only when it was surely not done.
func TestAValueThatCannotBeDecodedIsNotCalled(t *testing.T) {
	t.Parallel()
	for name, decode := range map[string]func([]byte) (invoice, error){
		"an error": func([]byte) (invoice, error) { return invoice{}, errors.New("a field of a later version") },
		"a panic":  func([]byte) (invoice, error) { panic("an index out of range") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := oncetest.New(t)
			p := newInvoices(w.Once, once.Never, func(k *once.Kind[invoice], c *once.KindConfig) { k.Decode, c.MaxReleased = decode, 3 })
			w.Start(p)
			_, err := p.effects.Enqueue(t.Context(), one)
			require.NoError(t, err)
			s := oncetest.SettledInTurns(t, w, p.effects, one.key())
			require.Equal(t, rules.Failed, s.State)
			require.Equal(t, "undecodable", s.Class)
			require.Zero(t, p.far.Executed(one.idempotency()))
		})
	}
}

func TestAnEffectWaitsForItsTime(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], _ *once.KindConfig) {
		k.NotBefore = func(invoice) time.Time { return time.Now().Add(24 * hour) }
	})
	w.Start(p)
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	w.Turn(23 * hour)
	_, err = p.effects.Enqueue(t.Context(), invoice{Customer: "acme", Number: "2"})
	require.NoError(t, err)
	s, err := p.effects.State(t.Context(), one.key())
	require.NoError(t, err)
	require.Equal(t, rules.Pending, s.State)
	require.Greater(t, s.NextIn, 30*minute)
	w.Turn(2 * hour)
	require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)
}

// All mistakes of a kind are reported when it is registered.
func TestMistakesOfAKind(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(*once.Kind[invoice], *once.KindConfig){
		"its name must be":                func(k *once.Kind[invoice], _ *once.KindConfig) { k.Name = "In voice" },
		"Repeat must be":                  func(k *once.Kind[invoice], _ *once.KindConfig) { k.Repeat = 0 },
		"Key is nil":                      func(k *once.Kind[invoice], _ *once.KindConfig) { k.Key = nil },
		"Call is nil":                     func(k *once.Kind[invoice], _ *once.KindConfig) { k.Call = nil },
		"Lookup is nil":                   func(k *once.Kind[invoice], _ *once.KindConfig) { k.Repeat, k.Lookup = once.ByLookup, nil },
		"says that the far side has none": func(k *once.Kind[invoice], _ *once.KindConfig) { k.Repeat = once.Never },
		"set key_ttl":                     func(_ *once.Kind[invoice], c *once.KindConfig) { c.KeyTTL = 0 },
		"key_ttl: must be longer":         func(_ *once.Kind[invoice], c *once.KindConfig) { c.KeyTTL = time.Second },
		"set under_way":                   func(k *once.Kind[invoice], c *once.KindConfig) { k.Repeat, c.UnderWay = once.ByLookup, 0 },
		"concurrency: must be":            func(_ *once.Kind[invoice], c *once.KindConfig) { c.Concurrency = 0 },
		"via: must be ledger or streams":  func(_ *once.Kind[invoice], c *once.KindConfig) { c.Via = "shared" },
		"grace: must be":                  func(_ *once.Kind[invoice], c *once.KindConfig) { c.Grace = 0 },
	} {
		w := oncetest.New(t)
		p := newInvoices(w.Once, once.ByKey, change)
		_, err := pipeline.NewRegistry(pipeline.Env{}, w.Once, p)
		require.ErrorContains(t, err, want)
	}
}

// Without a ledger nothing could be accepted, so the process does not start.
func TestAKindNeedsALedger(t *testing.T) {
	t.Parallel()
	o := once.NewPlugin(nil, nil)
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "a"}, o, newInvoices(o, once.ByKey, nil))
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.ErrorContains(t, rt.Start(t.Context()), "plugins.once.ledger.dsn must be set, because a plugin has a kind of effects")
	require.NoError(t, rt.Stop(t.Context()))
}

// A binary without kinds opens no database, even if its address leads nowhere.
func TestNothingIsOpenedWithoutAKind(t *testing.T) {
	t.Parallel()
	oncetest.On(t, "postgres://nobody@127.0.0.1:1/none?sslmode=disable").Start()
}

// A stop waits for the calls that are running, and their answers are stored.
func TestAStopWaitsForCalls(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	started, finish := make(chan struct{}), make(chan struct{})
	p := newInvoices(w.Once, once.Never, func(k *once.Kind[invoice], _ *once.KindConfig) {
		k.Call = func(context.Context, once.Attempt[invoice]) once.Answer {
			close(started)
			<-finish
			return once.IsDone("late")
		}
	})
	stop := w.StartUntil(p)
	_, err := p.effects.Enqueue(t.Context(), one)
	require.NoError(t, err)
	<-started
	ended := make(chan error, 1)
	go func() { ended <- stop() }()
	select {
	case err := <-ended:
		t.Fatal("it stopped during a call", err)
	case <-time.After(50 * millisecond):
	}
	close(finish)
	require.NoError(t, <-ended)

	again := newInvoices(w.Once, once.Never, nil)
	w.Start(again)
	s, err := again.effects.State(t.Context(), one.key())
	require.NoError(t, err)
	require.Equal(t, rules.Success, s.State)
}
