package promotion

import (
	"context"
	"database/sql"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// freeze stops a third instance inside a transaction of the ledger: it holds the promotion's gate
// in share mode, and the row of one target. Until thaw, calls for that row fail.
func (hist *history) freeze(d draw) {
	ctx := context.Background()
	tx, err := hist.db.BeginTx(ctx, nil)
	hist.must(err)
	_, err = tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock_shared(1296650049, hashtext(current_schema() || '/POINT/' || $1::bigint))", hist.promotion.ID)
	hist.must(err)
	_, err = tx.ExecContext(ctx, "SELECT FROM payouts WHERE type = 'POINT' AND promotion_id = $1 AND target_id = $2 FOR UPDATE", hist.promotion.ID, 1+d.Pick%3)
	hist.must(err)
	hist.frozenTx, hist.wasFrozen = tx, true
	hist.logf("an instance freezes in a transaction with target %d", 1+d.Pick%3)
}

// thaw is the end of the frozen instance's session: PostgreSQL ends it, or its machine does.
func (hist *history) thaw() {
	if hist.frozenTx == nil {
		return
	}
	hist.must(hist.frozenTx.Rollback())
	hist.frozenTx = nil
	hist.logf("the frozen session has ended")
}

// token is the incarnation of the stream that exists; empty without one.
func (hist *history) token() string {
	ctx := context.Background()
	if hist.watch.Exists(ctx, hist.stream).Val() == 0 {
		return ""
	}
	return hist.watch.HGet(ctx, streams.MetaKey(hist.stream), "incarnation").Val()
}

// noteRound notes the stream that a feeder's round has seen, when it was there from its begin to
// its end.
func (hist *history) noteRound(in *modelInstance, before string) {
	var feeder sql.NullString
	hist.must(hist.db.QueryRow("SELECT feeder FROM promotion_streams WHERE type = 'POINT' AND promotion_id = $1", hist.promotion.ID).Scan(&feeder))
	if feeder.String == in.name && before == hist.token() {
		hist.seen[before] = true
	}
}

// checkQueues compares the ledger with the stream: an unsettled payout with the queue location
// "stream" has an entry there. A stream that was wiped before its incarnation could be recorded is
// found only when the next one is drained.
func (hist *history) checkQueues() {
	if hist.unseen || hist.wasFrozen || hist.state == statePaused {
		return
	}
	ctx := context.Background()
	entries := map[string]bool{}
	for _, e := range hist.watch.XRange(ctx, hist.stream, "-", "+").Val() {
		if key, ok := e.Values["uuid"].(string); ok {
			entries[key] = true
		}
	}
	hist.must(hist.ledgers[0].EachPayout(ctx, hist.promotion, func(e ledger.Payout) error {
		if !e.State.Settled() && e.Queue == rules.QueueStream && !entries[e.Key.String()] {
			hist.violation("%s is not in the stream, and a feeder's round has not noticed it", e.Key)
		}
		return nil
	}))
}
