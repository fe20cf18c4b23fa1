package promotion

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func findPayout(_ context.Context, q console.Query) (console.Block, error) {
	given := q.Text(campaign.FieldPayout)
	if promotion := q.Text(campaign.FieldPromotion); given == "" && promotion != "" {
		given = promotion + ":"
	}
	return console.Find{Page: payoutPage, Fields: []operate.Field{{Name: campaign.FieldPayout, Default: given, Required: true}}}, nil
}

func (p *Plugin) showPayout(ctx context.Context, q console.Query) (console.Block, error) {
	k, instead := payoutIn(q)
	if instead != "" {
		return instead, nil
	}
	e, err := p.campaigns().Explain(ctx, k, false)
	if campaign.IsNotFound(err) {
		return console.Text(err.Error() + "."), nil
	} else if err != nil {
		return nil, err
	}
	id := payouts.Promotion{Type: k.Type, ID: k.Promotion}
	perhaps := console.Cell{Text: "no", Data: e.MaybeCharged}
	if e.MaybeCharged && e.State != rules.Success {
		perhaps = console.Cell{Text: "by a request sent " + console.Moment(e.FirstSentAt).Text, Data: true}.In(operate.Warn)
	}
	record := console.Record{
		Fields: console.Stats{
			{Name: "State", Cell: payoutState(e.State)},
			{Name: "Next", Cell: console.Word(e.Next)},
			{Name: "Campaign", Cell: linked(id)},
			{Name: "State of the campaign", Cell: stateOf(e.PromotionState, e.PromotionFinished)},
			{Name: "Payout", Cell: console.Word(e.Key)},
			{Name: "From", Cell: console.Word(e.Origin)},
			{Name: "Trace", Cell: console.Trace(e.TraceID)},
			{Name: "Accepted", Cell: console.Moment(e.AcceptedAt)},
			{Name: "Settled", Cell: console.Moment(e.SettledAt)},
			{Name: "Transaction", Cell: console.Word(e.TransactionKey)},
			{Name: "Perhaps charged", Cell: perhaps},
			{Name: "Attempts used", Cell: console.Count(e.Attempts)},
			{Name: "Lookups used", Cell: console.Count(e.Lookups)},
			{Name: "Calls that count towards max_released", Cell: console.Count(e.Released)},
			{Name: "Key first used", Cell: console.Moment(e.KeyFirstUsedAt)},
		},
		Folds: []console.Fold{{Title: "Record", Payload: []byte(e.Record)}, {Title: "Request", Payload: []byte(e.Request)}},
	}
	blocks := console.Blocks{record, callsOf(e.History())}
	if open := e.OpenCall(); open != "" {
		blocks = append(blocks, console.Text(open))
	}
	return append(blocks, lettersOf(e.DeadLetters), auditOf(e.Audit)), nil
}

// showOldest says which payouts of a campaign wait longest, and why.
func (p *Plugin) showOldest(ctx context.Context, q console.Query) (console.Block, error) {
	id, instead := promotionIn(q)
	if instead != "" {
		return nil, console.ErrNothing
	}
	all, err := p.campaigns().Oldest(ctx, id, shownOldest)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Payout", "State", "Accepted", "Attempts used", "Lookups used", "Class", "Last answer", "Next"),
		Empty:   "No payout of it waits.",
		Note:    "Those that were accepted first. " + notUsed,
	}
	for _, o := range all {
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(o.Key.String()).At(linkTo(payoutPage, campaign.FieldPayout, o.Key.String())), payoutState(o.State), console.Moment(o.AcceptedAt),
			console.Count(o.Attempts), console.Count(o.Lookups), console.Word(o.LastClass), console.Word(o.LastError), console.Word(o.Next),
		})
	}
	return t, nil
}

func (p *Plugin) askMoneyAPI(ctx context.Context, q console.Query) (console.Block, error) {
	k, instead := payoutIn(q)
	if instead != "" {
		return nil, console.ErrNothing
	}
	e, err := p.campaigns().Explain(ctx, k, true)
	if campaign.IsNotFound(err) {
		return nil, console.ErrNothing
	} else if err != nil {
		return nil, err
	}
	return console.Text(fmt.Sprintf("The Money API says: %s. Next: %s", e.MoneyAPI, e.Next)), nil
}

func callsOf(calls []campaign.Call) console.Table {
	t := console.Table{Columns: console.Columns("Call", "Started", "Took", "Instance", "Outcome", "Status", "Class", "Answer"), Empty: campaign.NoCall}
	for _, c := range calls {
		took, outcome, status := console.Cell{}, console.Word(c.Outcome), console.Cell{}
		if c.Ended {
			took = console.Cell{Text: c.Took.Round(time.Millisecond).String(), Data: c.Took.Seconds(), Right: true}
		}
		if !c.Stored {
			outcome = outcome.In(operate.Warn)
		}
		if c.Status != 0 {
			status = console.Cell{Text: fmt.Sprint(c.Status), Data: c.Status}
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(c.Name), console.Moment(c.Began), took, console.Word(c.Instance), outcome, status, console.Word(c.Class), console.Word(c.Answer),
		})
	}
	return t
}

func lettersOf(all []campaign.ExplainedDeadLetter) console.Table {
	t := console.Table{Columns: console.Columns("Dead letter", "State", "Written", "Class", "Attempts", "Error"), Empty: "It has no dead letter."}
	for _, d := range all {
		name := console.Word(cmp.Or(d.Name, "not in the store"))
		if d.Name != "" {
			name = name.At(linkTo(letterPage, "id", d.Name))
		}
		t.Rows = append(t.Rows, []console.Cell{
			name, console.Word(string(d.State)), console.Moment(d.CreatedAt), console.Word(d.Class), console.Count(d.Attempts), console.Word(d.Error),
		})
	}
	return t
}

func auditOf(audit []ledger.Audit) console.Table {
	t := console.Table{Columns: console.Columns("When", "Action", "Who", "Why", "Detail"), Empty: "No operator has changed it."}
	for _, a := range audit {
		t.Rows = append(t.Rows, []console.Cell{console.Moment(a.At), console.Word(a.Action), console.Word(a.Who), console.Word(a.Why), console.Word(a.Detail)})
	}
	return t
}

// reveal records that a person sees what is masked of a payout.
func (p *Plugin) reveal(ctx context.Context, q console.Query, use operate.Use) error {
	k, instead := payoutIn(q)
	if instead != "" {
		return console.ErrNothing
	}
	l := p.run.opened.Load()
	if l == nil {
		return campaign.ErrNotOpen
	}
	err := l.RecordReveal(ctx, k, use.Who, use.Why)
	if errors.Is(err, ledger.ErrNotFound) {
		return console.ErrNothing
	}
	return err
}

// payoutIn returns the payout of an address, or what is said instead.
func payoutIn(q console.Query) (payouts.Key, console.Text) {
	if q.Text(campaign.FieldPayout) == "" {
		return payouts.Key{}, "Give a payout, such as POINT:12345:777."
	}
	k, err := campaign.PayoutOf(q.List(campaign.FieldPayout))
	if err != nil {
		return k, console.Text("The payout " + err.Error() + ".")
	}
	return k, ""
}

func payoutState(s rules.State) console.Cell {
	cell := console.Word(strings.ToLower(string(s)))
	switch s {
	case rules.Success:
		return cell.In(operate.OK)
	case rules.Failed, rules.Ambiguous, rules.Errored, rules.Cancelled:
		return cell.In(operate.Warn)
	case rules.Unknown:
		return cell.In(operate.Fail)
	case rules.Pending, rules.Sending:
	}
	return cell
}
