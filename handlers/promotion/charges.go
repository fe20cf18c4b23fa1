package promotion

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
)

// charge is a line of the Money API's book.
type charge struct {
	target     int64
	value      int64  // minor units; 0 where the type has no amount
	what       uint64 // amount or voucher: see whatOf
	executions int
}

// bookPage is how many charges are asked for at once.
const bookPage = 10_000

// charges yields what the Money API says was charged for a promotion. The contract has no call that lists
// charges; the simulated API has.
func (e *engine) charges(ctx context.Context, s strategy, promotion int64) iter.Seq2[charge, error] {
	url := e.config.MoneyAPI.URL
	if e.simulator != nil {
		url = e.simulator.URL()
	}
	client := &http.Client{Timeout: time.Minute}
	return func(yield func(charge, error) bool) {
		for entry, err := range moneysim.ReadBook(ctx, client, url, moneysim.Query{Type: s.kind, PromotionID: promotion, Limit: bookPage}) {
			if errors.Is(err, moneysim.ErrNotSimulator) {
				err = fmt.Errorf("%w (%w)", errNoBook, err)
			}
			if !yield(charge{entry.TargetID, entry.Amount, whatOf(entry.Amount, entry.VoucherID), entry.Executions}, err) || err != nil {
				return
			}
		}
	}
}

// errNoBook says that a Money API can't tell its charges.
var errNoBook = errors.New("the contract of the Money API has no call that lists charges: write charges.go for yours, or --no-money compares Kafka with the ledger alone")
