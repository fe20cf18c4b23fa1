package promotion

import (
	"context"
	"database/sql"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/rules"
	"github.com/millrace-io/millrace/plugins/streams"
)

// freeze stops a third instance inside a transaction of the ledger: it holds the promotion's gate in share mode, and the
// row of one target. Until thaw, calls for that row fail.
func (w *world) freeze(d die) {
	ctx := context.Background()
	tx, err := w.db.BeginTx(ctx, nil)
	w.must(err)
	_, err = tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock_shared(1296650049, hashtext(current_schema() || '/POINT/' || $1::bigint))", w.promotion.ID)
	w.must(err)
	_, err = tx.ExecContext(ctx, "SELECT FROM payouts WHERE type = 'POINT' AND promotion_id = $1 AND target_id = $2 FOR UPDATE", w.promotion.ID, 1+d.Pick%3)
	w.must(err)
	w.ice, w.froze = tx, true
	w.logf("an instance freezes in a transaction with target %d", 1+d.Pick%3)
}

// thaw is the end of the frozen instance's session: PostgreSQL ends it, or its machine does.
func (w *world) thaw() {
	if w.ice == nil {
		return
	}
	w.must(w.ice.Rollback())
	w.ice = nil
	w.logf("the frozen session has ended")
}

// token is the incarnation of the stream that exists; empty without one.
func (w *world) token() string {
	ctx := context.Background()
	if w.watch.Exists(ctx, w.stream).Val() == 0 {
		return ""
	}
	return w.watch.HGet(ctx, streams.MetaKey(w.stream), "incarnation").Val()
}

// looked notes the stream that a feeder's round has seen, when it was there from its begin to its end.
func (w *world) looked(in *modelInstance, before string) {
	var feeder sql.NullString
	w.must(w.db.QueryRow("SELECT feeder FROM promotion_streams WHERE type = 'POINT' AND promotion_id = $1", w.promotion.ID).Scan(&feeder))
	if feeder.String == in.name && before == w.token() {
		w.seen[before] = true
	}
}

// hinted holds what the ledger says against the stream: an unsettled payout whose hint is in the stream has an entry
// there. A stream that was wiped before its incarnation could be recorded is found only when the next one is drained.
func (w *world) hinted() {
	if w.unseen || w.froze || w.state == statePaused {
		return
	}
	ctx := context.Background()
	entries := map[string]bool{}
	for _, e := range w.watch.XRange(ctx, w.stream, "-", "+").Val() {
		if key, ok := e.Values["uuid"].(string); ok {
			entries[key] = true
		}
	}
	w.must(w.ledgers[0].EachPayout(ctx, w.promotion, func(e ledger.Payout) error {
		if !e.State.Settled() && e.Queue == rules.QueueStream && !entries[e.Key.String()] {
			w.broke("%s is not in the stream, and a feeder's round has not noticed it", e.Key)
		}
		return nil
	}))
}
