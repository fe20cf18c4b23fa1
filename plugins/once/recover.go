package once

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// recoverAction tells the ledger that its database was restored.
func (p *Plugin) recoverAction() operate.Action {
	about := p.about("once recover", "Look effects up before they are sent, after a restore", []operate.Field{
		{Name: "kind", Help: "the `kind` of effect", Required: true},
		{Name: "since", Help: "the `time` that the restored database is of, such as 2026-11-28T02:00:00Z", Required: true},
	}, "once recover --kind invoice --since 2026-11-28T02:00:00Z --dry-run", "once recover --kind mail --since 2026-11-28T02:00:00Z --why restored")
	about.Long = `Look effects up before they are sent, after a restore of the ledger's database.

What was called for after the time of the backup is not in a restored ledger, so its effects would be called for again. Stop all instances before the restore, use this command for each kind, and start them then.

Each effect that is not settled may have been called for since, and so may each whose record was published before the command and is read again. It is looked up before anything is sent. What can't be looked up is handled as after an unclear answer: with a key it is sent again while the key is young, counted from --since, and otherwise it ends UNKNOWN.

Effects that were accepted since and whose records are not read again are not in the ledger, and are not found.`
	about.Validate = func(in operate.Input) error {
		_, err := sinceOf(in)
		return err
	}
	return operate.Action{
		About:   about,
		Danger:  operate.Irreversible,
		Role:    operate.Operator,
		Audited: true,
		Preview: p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
			a, err := p.recover(in, func(kind string, since time.Time) (ledger.Recovery, error) { return l.Recovered(ctx, kind, since) })
			if err == nil {
				a.Lines = append([]string{"Would note that the ledger may lack calls, and change no effect at once:"}, a.Lines...)
			}
			return a, err
		}),
		Do: func(ctx context.Context, r *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withLedger(func(ctx context.Context, l *ledger.Ledger, in operate.Input) (operate.Answer, error) {
				return p.recover(in, func(kind string, since time.Time) (ledger.Recovery, error) {
					return l.Recover(ctx, kind, since, byOf(use))
				})
			})(ctx, r, in)
		},
	}
}

func sinceOf(in operate.Input) (time.Time, error) {
	t, err := time.Parse(time.RFC3339, in.Text("since"))
	if err != nil {
		return t, &operate.InputError{Field: "since", Problem: fmt.Sprintf("--since must be a time such as 2026-11-28T02:00:00Z, got %q", in.Text("since"))}
	}
	return t.UTC(), nil
}

// recover answers with what do has found, and what follows from it.
func (p *Plugin) recover(in operate.Input, do func(kind string, since time.Time) (ledger.Recovery, error)) (operate.Answer, error) {
	since, err := sinceOf(in)
	if err != nil {
		return operate.Answer{}, err
	}
	kind := in.Text("kind")
	found, err := do(kind, since)
	switch {
	case errors.Is(err, rules.ErrInvalid):
		return operate.Answer{}, &operate.InputError{Field: "since", Problem: err.Error()}
	case err != nil:
		return operate.Answer{}, noKind(err, kind)
	}
	a := operate.Answer{Value: found, Lines: []string{
		fmt.Sprintf("%s: %s open, and may have been called for since %s.", kind, areOpen(found.Open), since.Format(time.RFC3339)),
		"So may have been those whose records were published before now and are read again.",
	}}
	if w := p.kindOf(kind); w != nil {
		a.Lines = append(a.Lines, whatFollows(w.effects.ledgerKind(p.instance()).Policy, found))
	} else {
		a.Lines = append(a.Lines, "This program does not have the kind, so a program that has it decides what follows.")
	}
	if found.Calling > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("Of these, %d are being called for: those calls were not preceded by a lookup. Stop all instances before a restore.", found.Calling))
	}
	if n := found.Failed + found.Unknown; n > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("Effects that have failed or are unknown: %d. An operator may have replayed or resolved some since: look at the far side before you do.", n))
	}
	a.Notes = append(a.Notes, "Effects that were accepted since and whose records are not read again are not in the ledger. Groups that were paused, resumed or cancelled since are as before.")
	return a, nil
}

// whatFollows says what becomes of an effect of the kind.
func whatFollows(p rules.Policy, r ledger.Recovery) string {
	young := r.Since.Add(p.KeyTTL)
	whileYoung := fmt.Sprintf("is sent again with its key until its key is %s old, which is %s for what was first sent after the backup and earlier for what was sent before it, and ends UNKNOWN afterwards", p.KeyTTL, young.Format(time.RFC3339))
	if !young.After(r.Until) {
		whileYoung = fmt.Sprintf("ends UNKNOWN, because the far side may have forgotten a key that is older than %s", p.KeyTTL)
	}
	switch {
	case p.Repeat == rules.ByKey && p.MaxLookups > 0:
		return "Each is looked up before anything is sent. What is not found " + whileYoung + "."
	case p.Repeat == rules.ByKey:
		return "The kind has no lookup, so each " + whileYoung + "."
	case p.Repeat == rules.ByLookup:
		return fmt.Sprintf("Each is looked up before anything is sent, but not before %s, because a request may be under way for %s. What is not found is sent.", r.Until.Add(p.UnderWay).UTC().Format(time.RFC3339), p.UnderWay)
	case p.Repeat == rules.Always:
		return "Each is sent again, because the kind says that a second effect does no harm (Always)."
	}
	return "Each ends UNKNOWN, because it can't be looked up and must not be sent twice (Never): an operator decides."
}
