package promotion

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
)

// probeAction finds out whether the Money API honours idempotency keys, with a charge of the operator's own.
func (p *Plugin) probeAction() operate.Action {
	return operate.Action{
		About: operate.About{
			Name: "campaign probe", Short: "Find out whether the Money API honours its idempotency keys",
			Long: strings.TrimSpace(`
Find out whether the Money API honours its idempotency keys, with a charge of your own.

That no target is paid twice depends on the API, because a request whose answer is lost is sent again with the same key. The
request of the record is sent twice, with the same key and the same bytes, and both answers must name the same transaction key.
The lookup must then find it.

The target is really paid, once if all is well and perhaps twice if it is not, so use a target that is yours and a promotion
that no campaign has. Without --yes only the request is shown. The charge gets no row in the ledger, only an audit, and a
promotion that the ledger knows is refused. The answers can't show an API that pays twice under one transaction key: look
there, too.`),
			Examples: []string{
				`campaign probe POINT --record "$(cat own.json)" --dry-run`,
				`campaign probe POINT --record "$(cat own.json)" --why new --yes`,
			},
			Fields: []operate.Field{
				{Name: "type", Required: true, Arguments: true, Help: "the promotion type, such as POINT"},
				{Name: "record", Required: true, Help: "a `record` of the type, as in its publish topic"},
				once.ProbeConsent(),
			},
			Validate: func(in operate.Input) error {
				_, err := probeRecord(in)
				return err
			},
			Register: func(r *pipeline.Registry) error {
				return commandResources{p}.Register(r, campaign.Services{Ledger: true, MoneyAPI: campaign.Required})
			},
		},
		Danger: operate.Irreversible, Role: operate.Admin, Audited: true,
		Preview: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			b, err := p.newProbe(ctx, in)
			if err != nil {
				return operate.Answer{}, campaign.WithExitCode(err)
			}
			return b.Preview(), nil
		},
		Do: func(ctx context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			b, err := p.newProbe(ctx, in)
			if err != nil {
				return operate.Answer{}, campaign.WithExitCode(err)
			}
			a, err := b.Do(ctx, in, use)
			return a, campaign.WithExitCode(err)
		},
	}
}

// probed is the charge of a probe.
type probed struct {
	key    payouts.Key
	charge money.Charge
}

func probeRecord(in operate.Input) (probed, error) {
	t, err := campaign.TypeNamed("TYPE", in.Text("type"))
	if err != nil {
		return probed{}, &operate.InputError{Field: "type", Problem: err.Error()}
	}
	record, err := t.Decode([]byte(in.Text("record")))
	if err != nil {
		return probed{}, &operate.InputError{Field: "record", Problem: err.Error()}
	}
	return probed{
		key:    payouts.Key{Type: payouts.Type(t.Name), Promotion: record.Promotion, Target: record.Target},
		charge: money.Charge{Operation: t.Operation, Key: t.IdempotencyKey(record.Promotion, record.Target), Body: record.Request},
	}, nil
}

func (p *Plugin) newProbe(ctx context.Context, in operate.Input) (*once.Probe, error) {
	l, api := p.run.opened.Load(), commandResources{p}.API()
	if l == nil || api == nil {
		return nil, campaign.ErrNotOpen
	}
	of, err := probeRecord(in)
	if err != nil {
		return nil, err
	}
	record := func(ctx context.Context, by ledger.Steering) error {
		err := l.RecordProbe(ctx, of.key, by)
		if errors.Is(err, ledger.ErrRefused) {
			return app.Bad("%w: give a record of your own with another promotion or target", err)
		}
		return err
	}
	if err := record(ctx, ledger.Steering{Who: "you", Why: "a preview", Try: true}); err != nil {
		return nil, err
	}
	call := func(f func(context.Context) money.Answer) func(context.Context, int, time.Time) once.Answer {
		return func(ctx context.Context, _ int, _ time.Time) once.Answer {
			release, err := api.Slot(ctx)
			if err != nil {
				return once.Answer{Class: once.NotSent, Text: "no call slot: " + err.Error()}
			}
			defer release()
			a := f(ctx)
			return once.Answer{Class: once.Class(a.Class), Receipt: a.TransactionKey, Status: a.Status, Code: a.Code, Text: a.Text, Err: a.Err}
		}
	}
	return &once.Probe{
		Effect: of.key.String(), Key: of.charge.Key, Request: of.charge.Body, Repeat: once.ByKey,
		To: strings.TrimSuffix(p.moneyURL(), "/") + of.charge.Operation.Path, Contract: "openapi.yaml of the Money API",
		Class:   func(c once.Class) string { return money.Class(c).String() },
		Timeout: p.config.MoneyAPI.CallTimeout,
		Record: func(ctx context.Context, use operate.Use) error {
			return record(ctx, ledger.Steering{Who: use.Who, Why: use.Why})
		},
		Send:   call(func(ctx context.Context) money.Answer { return api.Charge(ctx, of.charge) }),
		Lookup: call(func(ctx context.Context) money.Answer { return api.Lookup(ctx, of.charge.Key) }),
	}, nil
}
