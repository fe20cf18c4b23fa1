package campaign

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// resolution is the outcome that an operator states.
type resolution struct {
	paid     string // the transaction key
	unpaid   bool
	force    bool
	who, why string
}

func resolutionOf(in operate.Input) resolution {
	return resolution{paid: in.Text("paid"), unpaid: in.Switch("unpaid"), force: in.Switch("force")}
}

func (e Env) resolve() operate.Action {
	return operate.Action{
		About: operate.About{
			Name: "unknown resolve", Short: "Record the outcome of a payout that may have been charged",
			Long: strings.TrimSpace(`
Record the outcome of a payout that may have been charged. The evidence is shown first: each call with its
answer, and the Money API's answer about the key now.

--paid makes the payout SUCCESS and discards its dead letter. --unpaid makes it FAILED, and its dead letter may then be
replayed. The audit keeps --who, --why and the time.

The command refuses an outcome that contradicts the Money API, and changes nothing. It also refuses --unpaid:

  - when the API does not answer that it has no charge with the key,
  - when the key is older than idempotency_ttl: the API may have removed it,
  - when the last request was sent less than a lease ago: it may be in flight.

--force records the outcome anyway.

An AMBIGUOUS payout that can only be looked up (unknown list) needs --force, because the service still looks it up and may
settle it. --unpaid then also writes its dead letter. When the Money API says that the payout was charged, --force can record
only that.`),
			Examples: []string{
				`unknown resolve POINT 12345 777 --paid TX-42 --why "ticket 4711"`,
				`unknown resolve POINT:12345:777 --unpaid --why "ticket 7" --dry-run`,
			},
			Fields: []operate.Field{
				{Name: FieldPayout, Type: operate.List, Required: true, Arguments: true, Shape: "TYPE PROMOTION TARGET", Help: "the payout, such as POINT:12345:777"},
				{Name: "paid", Help: "it was charged, with this transaction `key`"},
				{Name: "unpaid", Type: operate.Switch, Help: "it was not charged and never will be"},
				{Name: "force", Type: operate.Switch, Help: "also when the Money API contradicts it, gives no proof, or the payout is still looked up"},
			},
			Validate: func(in operate.Input) error {
				if _, err := PayoutOf(in.List(FieldPayout)); err != nil {
					return asInput(err, FieldPayout)
				}
				if f := resolutionOf(in); (f.paid != "") == f.unpaid {
					return &operate.InputError{Problem: "give either --paid with the transaction key, or --unpaid"}
				}
				return nil
			},
			Register: func(r *pipeline.Registry) error {
				return e.Resources.Register(r, Services{Ledger: true, MoneyAPI: Optional})
			},
		},
		Danger: operate.Irreversible, Role: operate.Operator, Audited: true,
		Preview: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			a, err := e.previewResolution(ctx, in)
			return a, WithExitCode(err)
		},
		Do: func(ctx context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			f := resolutionOf(in)
			f.who, f.why = use.Who, use.Why
			a, err := e.record(ctx, in, f)
			return a, WithExitCode(err)
		},
	}
}

// evidence returns what is known of a payout, unless the outcome is refused.
func (e Env) evidence(ctx context.Context, in operate.Input, f resolution) (payouts.Key, Explained, error) {
	k, err := PayoutOf(in.List(FieldPayout))
	if err != nil {
		return k, Explained{}, err
	}
	x, err := e.explanation(ctx, k)
	if err != nil {
		return k, Explained{}, err
	}
	lookupOnly := x.State == rules.Ambiguous && x.NextStep == rules.Lookup
	if x.State != rules.Unknown && !lookupOnly {
		return k, Explained{}, app.Bad("%s is %s, not UNKNOWN: there is nothing to resolve", k, x.State)
	}
	answer := e.lookUp(ctx, x)
	if err := refusal(x, answer, f, lookupOnly); err != nil {
		return k, Explained{}, app.Bad("nothing was changed: %w (evidence: millrace campaign explain %s --query-api)", err, k)
	}
	known, err := e.explained(ctx, x, answer)
	return k, known, err
}

func (e Env) previewResolution(ctx context.Context, in operate.Input) (operate.Answer, error) {
	f := resolutionOf(in)
	f.who = "you"
	_, known, err := e.evidence(ctx, in, f)
	if err != nil {
		return operate.Answer{}, err
	}
	state := rules.Failed
	if f.paid != "" {
		state = rules.Success
	}
	return operate.Answer{Value: known, Lines: append(linesOf(known), "",
		fmt.Sprintf("%s would be %s, %s; nothing was changed.", known.Key, state, known.MoneyAPI.source(f)))}, nil
}

func (e Env) record(ctx context.Context, in operate.Input, f resolution) (operate.Answer, error) {
	k, known, err := e.evidence(ctx, in, f)
	if err != nil {
		return operate.Answer{}, err
	}
	answer := known.MoneyAPI
	why := fmt.Sprintf("%s (the Money API says: %s)", f.why, answer)
	if err := e.Resources.Ledger().Resolve(ctx, k, rules.Resolution{
		Done: f.paid != "", Receipt: f.paid, Who: f.who, Why: why, Force: f.force, Route: e.Plugin + ".unknown",
	}); err != nil {
		return operate.Answer{}, err
	}
	discarded, failed := e.discardDeadLetter(ctx, k, f, why)
	if failed != nil {
		failed = fmt.Errorf("%s is resolved, but its dead letter still waits: millrace deadletter discard, with its id: %w", k, failed)
	}
	x, err := e.Resources.Ledger().Explain(ctx, k)
	if err != nil {
		return operate.Answer{}, errors.Join(failed, err)
	}
	now, err := e.explained(ctx, x, answer)
	if err != nil {
		return operate.Answer{}, errors.Join(failed, err)
	}
	lines := append(linesOf(known), "", fmt.Sprintf("%s is %s now, %s.", k, now.State, answer.source(f)))
	for _, id := range discarded {
		lines = append(lines, fmt.Sprintf("Its dead letter %s is discarded.", id))
	}
	return operate.Answer{Value: now, Lines: append(lines, "Next: "+now.Next)}, failed
}

// linesOf returns the evidence as `campaign explain` writes it, without the next step, which the outcome changes.
func linesOf(known Explained) []string {
	var text bytes.Buffer
	_ = known.writeHistory(&text) // a buffer takes it
	return strings.Split(strings.TrimSuffix(text.String(), "\n"), "\n")
}

func refusal(x ledger.Explanation, answer *lookup, f resolution, lookupOnly bool) error {
	if lookupOnly && !f.force {
		return fmt.Errorf("%s is AMBIGUOUS and is looked up again; if you are sure of the outcome, --force records it", x.Key)
	}
	// An AMBIGUOUS payout needs --force in any case. So --force can't mean here that it overrides
	// the Money API.
	if charged := answer.TransactionKey; lookupOnly && answer.paid() && f.paid != charged {
		return fmt.Errorf("the Money API says it is charged, transaction key %s; --paid %s --force records that, and so does the next lookup", charged, charged)
	}
	if f.force {
		return nil
	}
	if key := x.PaidLate(); key != "" && f.unpaid {
		return fmt.Errorf("a late answer says it was charged, transaction key %s; --force overrides it", key)
	}
	return answer.contradicts(f)
}

// discardDeadLetter discards the dead letter of a payout that is paid. The dead letter of an unpaid
// one waits for its replay.
func (e Env) discardDeadLetter(ctx context.Context, k payouts.Key, f resolution, why string) ([]string, error) {
	if f.paid == "" {
		return nil, nil
	}
	return e.DeadLetters.Settled(ctx, e.Plugin, k.String(), store.By{Who: f.who, Why: "it is paid, transaction key " + f.paid + ": " + why})
}
