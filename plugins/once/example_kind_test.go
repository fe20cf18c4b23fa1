package once_test

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
)

// Invoice is a record of the topic invoice.
type Invoice struct {
	Customer string `json:"customer"`
	Number   string `json:"number"`
}

// Config is the section plugins.invoice.
type Config struct {
	Effects once.KindConfig `yaml:"effects"`
}

// Plugin creates invoices, once each.
type Plugin struct {
	Invoices *once.Effects[Invoice]
	config   Config
}

func (p *Plugin) create(_ context.Context, a once.Attempt[Invoice]) once.Answer {
	return once.IsDone("in_" + a.Value.Number)
}

func New(o *once.Plugin) *Plugin {
	p := &Plugin{config: Config{Effects: once.DefaultKind("invoice")}}
	p.Invoices = once.New(o, once.Kind[Invoice]{
		Name: "invoice", Repeat: once.ByKey,
		Key:  func(i Invoice) (once.Key, error) { return once.Key{Group: i.Customer, ID: i.Number}, nil },
		Call: p.create,
	}, &p.config.Effects)
	return p
}

func (p *Plugin) Name() string  { return "invoice" }
func (p *Plugin) Settings() any { return &p.config }

func (p *Plugin) Register(r *pipeline.Registry) error { return p.Invoices.Register(r) }

// A kind needs no more than its names and its call. The settings say what the far side remembers.
func ExampleNew() {
	topics := &pipelinetest.Topics{}
	o := once.NewPlugin(topics, topics)
	o.Settings().(*once.Config).Ledger.DSN = setting.NewSecret("sqlite:once.db")
	p := New(o)
	_, err := pipeline.NewRegistry(pipeline.Env{}, o, p)
	fmt.Println(err)
	p.config.Effects.KeyTTL = 23 * time.Hour
	reg, err := pipeline.NewRegistry(pipeline.Env{}, o, p)
	fmt.Println(reg.Routes()[0].Name, err)
	// Output:
	// plugin invoice: once: kind "invoice": set key_ttl to the time for which the far side surely knows an idempotency key, less a lease; an older request is looked up, or left to an operator, and is never sent again
	// invoice.accept <nil>
}
