package promotion

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// strategy is what sets one type of promotion apart. A third type is a third value, in a file of its
// own and in the list strategies; nothing else changes.
type strategy struct {
	// kind is the type's name in keys, ledger, JSON and the idempotency key; lower-cased in topic names.
	kind string
	// operation is the call of the Money API.
	operation money.Operation
	// decode makes a payout from a record, or a permanent error.
	decode func(payload []byte) (payout, error)
	// record makes the record of a target for a campaign that is published from here. value is the
	// amount or the voucher.
	record func(promotion, summary, target int64, value string) ([]byte, error)
}

// strategies lists every type this plugin pays.
func strategies() []strategy { return []strategy{pointStrategy(), voucherStrategy()} }

// payout is a record in the form that all types share.
type payout struct {
	promotion, summary, target int64
	request                    []byte // the body of the Money API call, the same on every attempt
	value                      int64  // minor units; 0 where the type has no amount
}

// key is the payout's in the ledger.
func (s strategy) key(p payout) ledger.Key {
	return ledger.Key{Type: ledger.Type(s.kind), Promotion: p.promotion, Target: p.target}
}

func (s strategy) topic(suffix string) string {
	return "campaign-promotion-" + strings.ToLower(s.kind) + "-" + suffix
}

func (s strategy) publishTopic() string { return s.topic("publish") }
func (s strategy) retryTopic() string   { return s.topic("retry") }
func (s strategy) deadTopic() string    { return s.topic("dead") }
func (s strategy) group() string        { return "prepay-admin-campaign-" + strings.ToLower(s.kind) }
func (s strategy) retryGroup() string   { return s.group() + "-retry" }
func (s strategy) streamPrefix() string { return "campaign-promotion-stream:" + s.kind + ":" }
func (s strategy) groupPrefix() string  { return "campaign-promotion-group:" + s.kind + ":" }

// idempotencyKey names a payout at the Money API, the same on every attempt.
func (s strategy) idempotencyKey(promotion, target int64) string {
	return s.kind + ":" + strconv.FormatInt(promotion, 10) + ":" + strconv.FormatInt(target, 10)
}

// Topics of the started events, which belong to no type.
const (
	startedTopic     = "campaign-promotion-started"
	startedDeadTopic = "campaign-promotion-started-dead"
)

// canonical returns a request as this version writes it: two requests ask for the same payout when these are equal, whatever
// version wrote them, with its fields in whatever order and with more of them. What this version can't decode stays as it is.
func (s strategy) canonical(request []byte) []byte {
	if p, err := s.decode(request); err == nil {
		return p.request
	}
	return request
}

// samePayout reports whether two requests of a payout ask for the same: promotion, summary, target, and amount or voucher.
func samePayout(kind ledger.Type, stored, offered []byte) bool {
	if bytes.Equal(stored, offered) {
		return true
	}
	s, known := strategyOf(string(kind))
	return known && bytes.Equal(s.canonical(stored), s.canonical(offered))
}

func strategyOf(kind string) (strategy, bool) {
	for _, s := range strategies() {
		if s.kind == kind {
			return s, true
		}
	}
	return strategy{}, false
}

func kinds() []string {
	var names []string
	for _, s := range strategies() {
		names = append(names, s.kind)
	}
	return names
}
