package promotion

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/console"
)

// notUsed explains a 0 beside a call that was made.
const notUsed = "A send uses no attempt, and a lookup none of the lookups, when the API refused to work for now or a proxy may have answered, so calls may have been made where 0 are used."

func (p *Plugin) showUnknown(ctx context.Context, q console.Query) (console.Block, error) {
	id, instead := promotionIn(q)
	if instead != "" {
		return nil, console.ErrNothing
	}
	return p.unknownTable(ctx, campaign.UnknownFilter{Type: id.Type, Promotion: id.ID, Limit: shownProblems}, "No payout of it is unknown.")
}

// showAllUnknown is the panel of the payouts of all campaigns.
func (p *Plugin) showAllUnknown(ctx context.Context, _ console.Query) (console.Block, error) {
	return p.unknownTable(ctx, campaign.UnknownFilter{Limit: shownPromotions}, "No payout is unknown.")
}

func (p *Plugin) unknownTable(ctx context.Context, f campaign.UnknownFilter, empty string) (console.Block, error) {
	f.Decided = true
	list, err := p.campaigns().Unknown(ctx, f)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Payout", "State", "Since", "Attempts used", "Lookups used", "Class", "Last answer"), Empty: empty, Note: notUsed,
	}
	for _, u := range list.Unknown {
		k := payouts.Key{Type: u.Type, Promotion: u.Promotion, Target: u.Target}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(k.String()).At(linkTo(payoutPage, campaign.FieldPayout, k.String())), payoutState(u.State), console.Moment(u.Since),
			console.Count(u.Attempts), console.Count(u.Lookups), console.Word(u.Class), console.Word(u.Answer),
		})
	}
	if list.More {
		t.Note = fmt.Sprintf("Only the first %d are shown; the command unknown list has --limit. ", f.Limit) + t.Note
	}
	return t, nil
}
