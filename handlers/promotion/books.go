package promotion

import (
	"context"
	"errors"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
)

// Books are two books held against each other, a target at a time: what the ledger holds and what the
// Money API says was charged. dead overlaps with the states.
type Books struct {
	Accepted      int64 `json:"accepted"`  // rows of the ledger: paid + failed + unknown + cancelled + pending
	Paid          int64 `json:"paid"`      // SUCCESS
	Failed        int64 `json:"failed"`    // certainly not charged, and given up
	Unknown       int64 `json:"unknown"`   // perhaps charged, and given up: for a person
	Cancelled     int64 `json:"cancelled"` // certainly not charged
	Pending       int64 `json:"pending"`   // not settled yet
	Dead          int64 `json:"dead"`      // dead letters of the ledger, conflicts included
	Conflict      int64 `json:"conflict"`  // records that asked for something else than the first one
	Charged       int64 `json:"charged"`   // keys in the Money API's book
	DoubleCharged int64 `json:"double_charged"`
	// Missing is SUCCESS rows without a charge; Unexplained is charges whose row is absent or says
	// FAILED or CANCELLED; AmountDiffers is charges over another amount or voucher than was accepted.
	Missing       int64 `json:"missing"`
	Unexplained   int64 `json:"unexplained"`
	AmountDiffers int64 `json:"amount_differs"`
	// Unbooked is charges whose row isn't settled or UNKNOWN: paid, but the ledger doesn't know yet.
	Unbooked int64 `json:"unbooked"`
}

// Balance reports whether every accepted payout is settled and known, and both books say the same.
func (b Books) Balance() bool {
	return b.Pending == 0 && b.Unknown == 0 && b.Accepted == b.Paid+b.Failed+b.Cancelled &&
		b.Charged == b.Paid && b.DoubleCharged == 0 && b.Missing == 0 && b.Unexplained == 0 && b.AmountDiffers == 0 && b.Unbooked == 0
}

// sum adds the books of another type.
func (b *Books) sum(o Books) {
	b.Accepted += o.Accepted
	b.Paid += o.Paid
	b.Failed += o.Failed
	b.Unknown += o.Unknown
	b.Cancelled += o.Cancelled
	b.Pending += o.Pending
	b.Dead += o.Dead
	b.Conflict += o.Conflict
	b.Charged += o.Charged
	b.DoubleCharged += o.DoubleCharged
	b.Missing += o.Missing
	b.Unexplained += o.Unexplained
	b.AmountDiffers += o.AmountDiffers
	b.Unbooked += o.Unbooked
}

func (b *Books) count(state ledger.State, charged bool) {
	switch state {
	case ledger.Success:
		b.Paid++
		return
	case ledger.Failed:
		b.Failed++
	case ledger.Cancelled:
		b.Cancelled++
	case ledger.Unknown:
		b.Unknown++
	default:
		b.Pending++
	}
	if charged && (state == ledger.Failed || state == ledger.Cancelled) {
		b.Unexplained++
	} else if charged {
		b.Unbooked++
	}
}

// books compares all given types of a promotion, without Kafka.
func (e *engine) books(ctx context.Context, promotion int64, types ...strategy) (Books, error) {
	var all Books
	for _, s := range types {
		r, err := e.reconcile(ctx, s, promotion, nil, 0, e.charges(ctx, s, promotion), nil)
		if errors.Is(err, ledger.ErrNotFound) && len(types) > 1 {
			continue // a campaign need not have every type
		}
		if err != nil {
			return all, err
		}
		all.sum(r.Books)
	}
	return all, nil
}
