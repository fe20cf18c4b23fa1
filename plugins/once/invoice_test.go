package once_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// invoice is the kind of the tests: text ids, groups by customer.
type invoice struct {
	Customer string `json:"customer"`
	Number   string `json:"number"`
	Cents    int64  `json:"cents"`
}

func (i invoice) key() once.Key { return once.Key{Group: i.Customer, ID: i.Number} }

// idempotency is the key that the far side gets.
func (i invoice) idempotency() string { return "invoice:" + i.key().String() }

// invoices is a plugin with that kind, whose far side is in memory.
type invoices struct {
	config  once.KindConfig
	far     *oncetest.Far
	effects *once.Effects[invoice]
}

// newInvoices returns the plugin for far sides of r. change may change the kind.
func newInvoices(o *once.Plugin, r once.Repeat, change func(*once.Kind[invoice], *once.KindConfig)) *invoices {
	p := &invoices{config: once.DefaultKind(""), far: oncetest.NewFar(r)}
	p.config.KeyTTL, p.config.UnderWay, p.config.PollInterval = hour, minute, 10*millisecond
	k := once.Kind[invoice]{
		Name: "invoice", Repeat: r,
		Key:      func(i invoice) (once.Key, error) { return i.key(), nil },
		Call:     func(_ context.Context, a once.Attempt[invoice]) once.Answer { return oncetest.Call(p.far, a) },
		Describe: func(i invoice) string { return fmt.Sprintf("%d.%02d EUR for %s", i.Cents/100, i.Cents%100, i.Customer) },
	}
	if r == once.ByKey || r == once.ByLookup {
		k.Lookup = func(_ context.Context, l once.Lookup) once.Answer { return p.far.Find(l) }
	}
	if change != nil {
		change(&k, &p.config)
	}
	p.effects = once.New(o, k, &p.config)
	return p
}

func (*invoices) Name() string                          { return "invoice" }
func (p *invoices) Settings() any                       { return &p.config }
func (p *invoices) Needs() []string                     { return p.effects.Needs() }
func (p *invoices) Register(r *pipeline.Registry) error { return p.effects.Register(r) }

// gate is a once.Gate without a rate.
type gate func() bool

func (g gate) Ready() bool                         { return g() }
func (gate) Take(n int) (may int, _ time.Duration) { return n, 0 }

func (i invoice) payload() string {
	b, _ := json.Marshal(i) // numbers and texts always encode
	return string(b)
}

var one = invoice{Customer: "acme", Number: "17", Cents: 1200}

// held makes the calls of a kind wait. started gets one for each call that has begun, and finish lets all end, also those to
// come. So does the end of the test.
func held(t *testing.T, k *once.Kind[invoice]) (started <-chan struct{}, finish func()) {
	t.Helper()
	begun, end, call := make(chan struct{}, 100), make(chan struct{}), k.Call
	k.Call = func(ctx context.Context, a once.Attempt[invoice]) once.Answer {
		begun <- struct{}{}
		<-end
		return call(ctx, a)
	}
	finish = sync.OnceFunc(func() { close(end) })
	t.Cleanup(finish)
	return begun, finish
}

// deadOf waits for so many dead letters of a topic, and returns how many there are of each class. A record that is given back
// without end never becomes one.
func deadOf(t *testing.T, w *oncetest.World, topic string, n int) map[string]int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), minute)
	defer cancel()
	dead, err := w.Topics.Published(topic).Wait(ctx, n)
	require.NoError(t, err)
	classes := map[string]int{}
	for _, m := range dead {
		classes[m.Metadata.Get(pipeline.MetaDeadClass)]++
	}
	return classes
}
