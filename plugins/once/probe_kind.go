package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// probeAction finds out whether the far side of a kind does what the Repeat of the kind says.
func (p *Plugin) probeAction() operate.Action {
	about := p.about("once probe", "Find out whether a far side keeps its promise", []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "record", Help: "a `record` of the kind, as in its topic, about something of your own", Required: true},
		ProbeConsent(),
	}, `once probe --kind mail --record '{"id":"p1"}' --dry-run`, `once probe --kind mail --record '{"id":"p1"}' --why new --yes`)
	about.Long = `Find out whether the far side of a kind keeps its promise, with a record of your own.

A kind states what its far side does with a second request (Repeat), and a wrong statement loses or doubles effects. With ByKey the request of the record is sent twice, with the same key and the same bytes, and both answers must name the same receipt. With ByKey and ByLookup the lookup must then find it.

The effect really happens, once if all is well and perhaps twice if it is not, so use a record whose effect you can undo. Without --yes only the request is shown. It gets no row in the ledger, and a record whose effect is in the ledger is refused.`
	about.Register = p.registerProbe
	return operate.Action{
		About:   about,
		Danger:  operate.Irreversible,
		Role:    operate.Admin,
		Audited: true,
		Preview: p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
			b, err := p.newProbe(ctx, l, in)
			if err != nil {
				return operate.Answer{}, err
			}
			return b.Preview(), nil
		}),
		Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
				b, err := p.newProbe(ctx, l, in)
				if err != nil {
					return operate.Answer{}, err
				}
				return b.Do(ctx, in, use)
			})(ctx, r, in)
		},
	}
}

// registerProbe opens the ledger for a command, and starts the services of the plugins that have kinds, such as their clients.
func (p *Plugin) registerProbe(r *pipeline.Registry) error {
	if err := p.registerCommand(r); err != nil {
		return err
	}
	for _, s := range p.clientsOf(r) {
		r.Service(s.Name+".probe", s.Service)
	}
	return nil
}

func (p *Plugin) newProbe(ctx context.Context, l *ledger.Ledger, in operate.Input) (*Probe, error) {
	w := p.kindOf(in.Text("kind"))
	if w == nil {
		return nil, p.unknownKind(in.Text("kind"), "this program does not have")
	}
	policy := w.effects.ledgerKind(p.instance()).Policy
	if policy.Repeat != ByKey && policy.Repeat != ByLookup {
		return nil, &operate.InputError{Field: "kind", Problem: fmt.Sprintf("the kind %s says that its far side has neither keys nor a lookup (%s), so there is nothing to find out", w.name, policy.Repeat)}
	}
	record, err := w.effects.read([]byte(in.Text("record")))
	if err != nil {
		return nil, &operate.InputError{Field: "record", Problem: err.Error()}
	}
	refused := func(err error) error {
		if errors.Is(err, ErrConflict) {
			return app.Bad("%s is in the ledger or was probed before, so its effect must not be repeated: give a record with a new key of your own", textOf(record.Key))
		}
		return err
	}
	switch _, err := l.Explain(ctx, record.Key); {
	case err == nil:
		return nil, refused(ErrConflict)
	case !errors.Is(err, ledger.ErrNotFound):
		return nil, err
	}
	b := &Probe{Effect: textOf(record.Key), Repeat: policy.Repeat, Request: record.Request, Timeout: w.config.CallTimeout}
	b.Key, _ = w.effects.describe(record.Key, record.Payload)
	b.Record = func(ctx context.Context, use operate.Use) error {
		return refused(l.RecordProbe(ctx, record.Key, byOf(use)))
	}
	ask := func(ctx context.Context, number int, began time.Time, lookup bool) Answer {
		a, _ := w.effects.call(ctx, ledger.Claimed{Key: record.Key, Payload: record.Payload, Request: record.Request, Headers: record.Headers, Number: number, Lookup: lookup, LastSent: began})
		return a
	}
	b.Send = func(ctx context.Context, number int, began time.Time) Answer { return ask(ctx, number, began, false) }
	if policy.MaxLookups > 0 {
		b.Lookup = func(ctx context.Context, number int, began time.Time) Answer { return ask(ctx, number, began, true) }
	}
	return b, nil
}
