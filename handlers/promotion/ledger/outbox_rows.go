package ledger

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

func conflictDeadLetter(r *payouts.Record, now time.Time) *outboxRow {
	return offeredDeadLetter(r, now, rules.ClassConflict, "another request for the same payout came first")
}

func unannouncedDeadLetter(r *payouts.Record, now time.Time) *outboxRow {
	return offeredDeadLetter(r, now, rules.ClassUnannounced, "the ledger has no payout for this message, and only an accepted record of the publish topic announces one")
}

// offeredDeadLetter is the dead letter of a message that is not the stored record of its payout.
// Each class and request has one, however often it is offered.
func offeredDeadLetter(r *payouts.Record, now time.Time, class, text string) *outboxRow {
	sum := sha256.Sum256(r.RequestToSend())
	offered := newRow(r)
	dedupe := class + ":" + r.Key.String() + ":" + hex.EncodeToString(sum[:16])
	return &outboxRow{kind: OutboxDead, key: r.Key, class: class, err: text,
		payload: r.Payload, headers: offered.headers, recordKey: r.RecordKey, origin: offered.origin,
		handler: clean(r.Route), firstFailedAt: now, createdAt: now,
		dedupe: &dedupe}
}

func payoutDeadLetter(e rowEffects, b failedMessage, now time.Time) *outboxRow {
	first := b.firstFailedAt
	if first.IsZero() {
		first = now
	}
	text := e.row.LastError
	if text == "" {
		text = "payout ended " + string(e.row.State)
	}
	return &outboxRow{kind: OutboxDead, key: e.row.Key, class: e.effects.DeadLetterClass, err: text, payload: b.payload, headers: b.headers,
		recordKey: b.recordKey, origin: b.origin, handler: clean(e.route), attempts: e.row.Attempts, firstFailedAt: first, createdAt: now}
}

// OutcomeEvent is the payload of an outcome event.
type OutcomeEvent struct {
	Type           payouts.Type `json:"type"`
	PromotionID    int64        `json:"promotionId"`
	SummaryID      int64        `json:"promotionSummaryId"`
	TargetID       int64        `json:"targetId"`
	State          rules.State  `json:"state"`
	TransactionKey string       `json:"transactionKey,omitempty"`
	Attempts       int          `json:"attempts"`
	Class          string       `json:"class,omitempty"`
	SettledAt      time.Time    `json:"settledAt"`
}

func outcomeEvent(r *storedRow) *outboxRow {
	payload, _ := json.Marshal(OutcomeEvent{Type: r.Type, PromotionID: r.Promotion, SummaryID: r.SummaryID, TargetID: r.Target,
		State: r.State, TransactionKey: r.Receipt, Attempts: r.Attempts, Class: r.LastClass, SettledAt: r.SettledAt}) // always encodes
	return &outboxRow{kind: OutboxOutcome, key: r.Key, class: string(r.State), payload: payload,
		recordKey: strconv.AppendInt(nil, r.Target, 10), attempts: r.Attempts, createdAt: r.SettledAt}
}
