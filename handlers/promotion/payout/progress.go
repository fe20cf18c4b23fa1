package payout

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// Progress holds the time of the last payout that this instance settled. It is safe for concurrent
// use.
type Progress struct{ last atomic.Int64 }

func (p *Progress) settled() { p.last.Store(time.Now().UnixNano()) }

// Within reports whether a payout was settled within the last d.
func (p *Progress) Within(d time.Duration) bool {
	last := p.last.Load()
	return last != 0 && time.Since(time.Unix(0, last)) < d
}

// promotionSet is a bounded set of promotions. It is safe for concurrent use.
type promotionSet struct {
	mu  sync.Mutex
	all map[payouts.Promotion]bool
}

const maxPromotions = 10_000

// add adds p, and reports whether it was added: it was not in the set, and the set was not full.
func (s *promotionSet) add(p payouts.Promotion) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.all[p] || len(s.all) == maxPromotions {
		return false
	}
	if s.all == nil {
		s.all = map[payouts.Promotion]bool{}
	}
	s.all[p] = true
	return true
}
