package promotion

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
	"github.com/millrace-io/millrace/pipeline"
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
		if err := hasBook(ctx, client, url); err != nil {
			yield(charge{}, err)
			return
		}
		for entry, err := range moneysim.ReadBook(ctx, client, url, moneysim.Query{Type: s.kind, PromotionID: promotion, Limit: bookPage}) {
			if !yield(charge{entry.TargetID, entry.Amount, whatOf(entry.Amount, entry.VoucherID), entry.Executions}, err) || err != nil {
				return
			}
		}
	}
}

// errNoBook says that a Money API can't tell its charges.
var errNoBook = errors.New("the contract of the Money API has no call that lists charges: write charges.go for yours, or --no-money compares Kafka with the ledger alone")

// hasBook reports whether the Money API has the simulator's list of charges. One that answers an unknown path with just
// anything must not read as an empty book.
func hasBook(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(url, "/")+"/_sim/book?limit=1", nil)
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= http.StatusInternalServerError {
		return fmt.Errorf("%w: it answers %s", pipeline.ErrUnavailable, resp.Status)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return err
	}
	var page struct {
		Entries *[]moneysim.Entry `json:"entries"` // of an empty book it is empty, and not absent
	}
	if resp.StatusCode != http.StatusOK || json.Unmarshal(body, &page) != nil || page.Entries == nil {
		return errNoBook
	}
	return nil
}
