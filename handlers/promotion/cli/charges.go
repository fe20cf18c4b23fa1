package cli

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/handlers/promotion/reconcile"
	far "github.com/millrace-io/millrace/plugins/once/simulator"
)

const chargesPage = 10_000

// charges yields the charges of a promotion in the Money API. The API's OpenAPI file has no call
// that lists charges; the simulated API has one. A deployment with another API replaces this
// function.
func (c commands) charges(ctx context.Context, t promotiontype.Type, promotion int64) iter.Seq2[reconcile.Charge, error] {
	client := &http.Client{Timeout: time.Minute}
	query := simulator.Query{Type: t.Name, PromotionID: promotion, Limit: chargesPage}
	return func(yield func(reconcile.Charge, error) bool) {
		for entry, err := range simulator.ReadJournal(ctx, client, c.MoneyURL(), query) {
			if errors.Is(err, far.ErrNotSimulator) {
				err = fmt.Errorf("%w (%w)", errNoCharges, err)
			}
			if !yield(reconcile.Charge{Target: entry.TargetID, Value: entry.Value, Executions: entry.Executions}, err) || err != nil {
				return
			}
		}
	}
}
