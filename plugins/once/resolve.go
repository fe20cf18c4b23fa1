package once

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// resolveAction has an operator say what became of an effect, after the far side was asked.
func (p *Plugin) resolveAction(effect []operate.Field) operate.Action {
	about := p.about("once resolve", "State what became of an effect that is unknown", append(slices.Clone(effect),
		operate.Field{Name: "done", Help: "it happened, and the far side names it `receipt`"},
		operate.Field{Name: "not-done", Type: operate.Switch, Help: "it did not happen"},
		operate.Field{Name: "force", Type: operate.Switch, Help: "also against the far side or a late answer, or while it is looked up"}),
		"once resolve --kind mail --group a --id 16 --done in_81x --why found",
		"once resolve --kind mail --group a --id 16 --not-done --why absent")
	about.Long = `State what became of an effect that is unknown. The audit keeps who and why.

If the kind has a lookup, the far side is asked first, and what contradicts its
answer is refused. So is --not-done while the answer proves nothing: it is none,
the last request may still be under way, or the key is older than key_ttl. With
--force you state it all the same.

An AMBIGUOUS effect that can only be looked up needs --force, because the service
still looks it up. If the far side says that it is done, only that can be stated.
An effect that has changed since the question is refused, too.`
	about.Register = p.registerLookup
	return operate.Action{
		About:   about,
		Danger:  operate.Irreversible,
		Role:    operate.Operator,
		Audited: true,
		Preview: p.previewChange(p.wouldResolve),
		Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withEffect(func(ctx context.Context, l *ledger.Ledger, k ledger.Key, in operate.Input) (operate.Answer, error) {
				return p.resolve(ctx, l, k, in, use)
			})(ctx, r, in)
		},
	}
}

func (p *Plugin) resolve(ctx context.Context, l *ledger.Ledger, k ledger.Key, in operate.Input, use operate.Use) (operate.Answer, error) {
	r, err := resolutionOf(in)
	if err != nil {
		return operate.Answer{}, err
	}
	r.Who, r.Why = use.Who, use.Why
	if err := r.Validate(); err != nil {
		return operate.Answer{}, &operate.InputError{Problem: err.Error()}
	}
	f, why, err := p.judgeResolution(ctx, l, k, &r)
	switch {
	case err != nil:
		return operate.Answer{}, refusal(k, err)
	case why != "":
		return operate.Answer{}, app.Bad("%s: nothing was changed, because %s", textOf(k), why)
	}
	if err := l.Resolve(ctx, k, r); err != nil {
		return operate.Answer{}, refusal(k, err)
	}
	a, err := p.explain(ctx, l, k, in)
	if f != nil {
		a.Lines = append([]string{"The far side says: " + f.String() + "."}, a.Lines...)
	}
	return a, err
}

// resolutionOf reads the fields of a resolution.
func resolutionOf(in operate.Input) (rules.Resolution, error) {
	receipt, notDone := in.Text("done"), in.Switch("not-done")
	if (receipt == "") != notDone {
		return rules.Resolution{}, &operate.InputError{Problem: "give either --done RECEIPT or --not-done"}
	}
	return rules.Resolution{Done: !notDone, Receipt: receipt, Force: in.Switch("force")}, nil
}

func (p *Plugin) wouldResolve(ctx context.Context, l *ledger.Ledger, k ledger.Key, in operate.Input) (string, error) {
	r, err := resolutionOf(in)
	if err != nil {
		return "", err
	}
	f, why, err := p.judgeResolution(ctx, l, k, &r)
	if err != nil {
		return "", err
	}
	if why != "" {
		return "Would be refused, because " + why + ".", nil
	}
	change, err := l.WouldResolve(ctx, k, r)
	would := "Would be settled by hand: " + change + "."
	if f != nil {
		would += " The far side says: " + f.String() + "."
	}
	return would, err
}

// judgeResolution asks the far side about an effect that is to be resolved, if its kind has a lookup. It returns why the
// resolution is refused, or nothing, and adds to r what the operator has seen, so that the ledger refuses it if that has changed.
func (p *Plugin) judgeResolution(ctx context.Context, l *ledger.Ledger, k ledger.Key, r *rules.Resolution) (f *farSide, refused string, err error) {
	x, err := l.Explain(ctx, k)
	if err != nil {
		return nil, "", err
	}
	r.Epoch = x.Row.Epoch
	w := p.kindOf(k.Kind)
	lookupOnly := x.Row.State == rules.Ambiguous && x.NextCall == rules.Lookup
	if w == nil || w.effects.ledgerKind(p.instance()).Policy.MaxLookups == 0 || x.Row.State != rules.Unknown && !lookupOnly {
		return nil, "", nil
	}
	if f, err = p.ask(ctx, l, w, x); err != nil {
		return nil, "", err
	}
	r.Evidence = f.String()
	switch {
	case lookupOnly && f.done() && (!r.Done || r.Receipt != f.Receipt): // it needs force in any case, which therefore can't mean that
		return f, fmt.Sprintf("the far side says that it is done, receipt %s: --done %s --force records that, and so does the next lookup", f.Receipt, f.Receipt), nil
	case lookupOnly || r.Force:
		return f, "", nil
	}
	return f, f.contradicts(*r), nil
}
