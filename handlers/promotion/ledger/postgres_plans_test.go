package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// payoutStatement is a statement with the arguments of one batch, as SQL, and its allowed accesses.
type payoutStatement struct {
	name string
	sql  string
	args []string
	via  map[string]string // table → index
	cond string            // the index condition names this column
	rows float64           // rows it may read of any table
	cold bool
}

const (
	batchOf = 8
	idsSQL  = `ARRAY(SELECT id FROM payouts WHERE promotion_id = 1 AND target_id % 10000 = 0 ORDER BY id LIMIT 8)`
	nowSQL  = `now()`
	agoSQL  = `now() - interval '1 hour'`
)

func repeated(value string) string {
	return "ARRAY(SELECT " + value + " FROM generate_series(1, 8) g)"
}

// quoted makes every argument a literal.
func quoted(args []string) (out []string) {
	for _, a := range args {
		out = append(out, "quote_literal(("+a+")::text)")
	}
	return out
}

// arraysOf are arguments of a statement: a value for the kind of each column, or the given one.
func arraysOf[T any](st statement[T], given map[string]string) (args []string) {
	byKind := map[string]string{"text": "''", "bigint": "1", "int": "1", "bool": "false", "bytea": "'x'::bytea", "timestamptz": "now()"}
	for _, c := range st.columns {
		args = append(args, repeated(cmp.Or(given[c.name], byKind[c.kind])))
	}
	return args
}

func hotStatements() []payoutStatement {
	keys := []string{repeated("'POINT'"), repeated("1"), repeated("g * 1000")}
	promotion := func(more ...string) []string { return append([]string{"'POINT'", "1"}, more...) }
	pk := map[string]string{"payouts": "payouts_pkey"}
	open := map[string]string{"payouts": "payouts_feed"}
	update := append(arraysOf(updatePayouts, map[string]string{"type": "'POINT'", "target_id": "g * 10000", "version": "2", "state": "'SENDING'", "hint": "'retry'", "settled_at": "NULL::timestamptz"}), "(SELECT count(*) FROM payouts WHERE promotion_id = 1 AND target_id % 10000 = 0 AND target_id <= 80000)")
	return []payoutStatement{
		{name: "read promotions", sql: pgReadPromotions, args: []string{`ARRAY['POINT','POINT']`, `ARRAY[1,2]`},
			via: map[string]string{"promotions": "promotions_pkey"}, cond: "promotion_id", rows: 2},
		{name: "read rows", sql: pgReadRows, args: keys, via: pk, cond: "target_id", rows: batchOf},
		{name: "read bodies", sql: pgReadMessages, args: keys, via: pk, cond: "target_id", rows: batchOf},
		{name: "lock rows", sql: pgLockRows, args: keys, via: pk, cond: "target_id", rows: batchOf},
		{name: "lock bodies", sql: pgLockMessages, args: keys, via: pk, cond: "target_id", rows: batchOf},
		{name: "ordinary begin", sql: pgBeginOrdinary, args: append(keys[:3:3], repeated("'x'::bytea"), "0", "1", "'a'"), rows: batchOf,
			via: map[string]string{"payouts": "payouts_pkey", "promotions": "promotions_pkey"}, cond: "promotion_id"},
		{name: "ordinary settle", sql: pgSettleOrdinary, via: pk, cond: "target_id", rows: batchOf,
			args: append(keys[:3:3], repeated("1"), repeated("'t'"), repeated("''"), repeated("''"), repeated("200"), "0")},
		{name: "ordinary settle with outcome events", sql: pgSettleUncounted, via: pk, cond: "target_id", rows: batchOf,
			args: append(keys[:3:3], repeated("1"), repeated("'t'"), repeated("''"), repeated("''"), repeated("200"), "0")},
		{name: "insert rows", sql: insertPayouts.postgres, args: arraysOf(insertPayouts, map[string]string{"type": "'POINT'", "target_id": "9000000 + g",
			"state": "'PENDING'", "hint": "'stream'", "settled_at": "NULL::timestamptz"})},
		{name: "update rows", sql: updatePayouts.postgres, args: update, via: pk, cond: "target_id", rows: batchOf},
		{name: "insert attempts", sql: insertPayoutAttempts.postgres, args: arraysOf(insertPayoutAttempts, map[string]string{"payout_id": "9000000 + g"})},
		{name: "add to summaries", sql: pgAddToSummaries, args: arraysOf(addToSummaries, map[string]string{"promotion_id": "g"})},
		{name: "fold summaries", sql: pgFoldSummaries, args: promotion(), rows: 3, cold: true,
			via: map[string]string{"promotion_summary_slots": "promotion_summary_slots_pkey"}, cond: "promotion_id"},
		{name: "dead bodies", sql: pgFailedMessages, args: []string{idsSQL}, cond: "id", rows: batchOf,
			via: map[string]string{"payouts": "payouts_id", "attempts": "attempts_pkey", "payout_attempts": "payout_attempts_pkey"}},
		{name: "mark enqueued", sql: pgMarkEnqueued, args: append(keys[:3:3], repeated("1"), "'POINT'", "1", "0", "''"), rows: batchOf,
			via: map[string]string{"payouts": "payouts_pkey", "promotion_streams": "promotion_streams_pkey"}, cond: "promotion_id"},

		{name: "feed unqueued", sql: sqlFeedUnqueued, args: promotion("20"), via: open, cond: "feed", rows: 20, cold: true},
		{name: "feed lost entries", sql: sqlFeedLostEntries, args: promotion("20", agoSQL, nowSQL), via: open, cond: "feed", rows: 20, cold: true},
		{name: "feed overdue", sql: sqlFeedOverdue, args: promotion("20", agoSQL), via: open, cond: "feed_at", rows: 20, cold: true},
		{name: "feed expired leases", sql: sqlFeedExpiredLeases, args: promotion(agoSQL, "0", agoSQL, "20"), via: open, cond: "ROW(feed_at, id)", rows: 2000, cold: true},
		{name: "feed page end", sql: sqlFeedPageEnd, args: promotion(agoSQL, "0"), via: open, cond: "ROW(feed_at, id)", rows: 2000, cold: true},
		{name: "waiting", sql: sqlWaitTimes, rows: 2 * 1000, cold: true, // of two promotions
			via: map[string]string{"payouts": "payouts_feed", "promotions": "promotions_pkey", "promotion_streams": "promotion_streams_pkey"}},
		{name: "unfinished", sql: sqlUnfinished, rows: 6, cold: true,
			via: map[string]string{"payouts": "payouts_feed", "promotions": "promotions_pkey", "promotion_streams": "promotion_streams_pkey"}},
		{name: "to feed", sql: sqlToFeed, args: []string{agoSQL}, rows: 6, cold: true,
			via: map[string]string{"payouts": "payouts_feed", "promotions": "promotions_pkey", "promotion_streams": "promotion_streams_pkey"}},
		{name: "active", sql: sqlActive, args: []string{"'POINT'"}, cond: "type", rows: 2, cold: true,
			via: map[string]string{"promotions": "promotions_pkey", "promotion_streams": "promotion_streams_active"}},
		{name: "admit", sql: sqlAdmit, args: promotion("0", "1000"), rows: 2, cold: true, via: map[string]string{
			"payouts": "payouts_feed", "promotions": "promotions_pkey|promotions_paused", "promotion_streams": "promotion_streams_pkey|promotion_streams_active|promotion_streams_waiting"}},
		{name: "admit waiting", sql: sqlAdmitWaiting, args: []string{"1000"}, rows: 2, cold: true, via: map[string]string{
			"promotions": "promotions_pkey|promotions_paused", "promotion_streams": "promotion_streams_pkey|promotion_streams_active|promotion_streams_waiting"}},
		{name: "no work", sql: sqlNoWork, rows: 2, cold: true,
			via: map[string]string{"payouts": "payouts_feed", "promotion_streams": "promotion_streams_pkey|promotion_streams_waiting"}},
		{name: "cancellable", sql: sqlCancellable, args: promotion("0", "20"), via: pk, cond: "target_id", rows: 200, cold: true},
		{name: "page", sql: sqlPayouts + sqlPayoutPage, args: promotion("0", "20"), via: pk, cond: "target_id", rows: 20, cold: true},
		{name: "audit of a payout", sql: sqlAudit, args: promotion("7"), via: map[string]string{"ledger_audit": "ledger_audit_payout"},
			cond: "target_id", rows: 1, cold: true},
		{name: "letters of a payout", sql: sqlDeadLetters, args: promotion("7"), via: map[string]string{"outbox": "outbox_dead"}, rows: 1, cold: true},
		{name: "unknown", sql: sqlUnknown, args: promotion("7", "20"), via: map[string]string{"outbox": "outbox_unknown"}, rows: 20, cold: true},
		{name: "ambiguous", sql: sqlAmbiguous, args: []string{"1000"}, via: map[string]string{"payouts": "payouts_in_doubt"}, rows: 30, cold: true},
		{name: "list", sql: sqlList, args: []string{"'POINT'", "20"}, rows: 3 * 20, cold: true, via: map[string]string{"payouts": "payouts_feed", "promotions": "promotions_pkey",
			"promotion_streams": "promotion_streams_pkey", "promotion_summaries": "promotion_summaries_pkey", "promotion_summary_slots": "promotion_summary_slots_pkey"}},
		{name: "types", sql: sqlTypes, rows: 2, cold: true, via: map[string]string{"promotions": "promotions_pkey", "promotion_streams": "promotion_streams_pkey"}},
		{name: "replay", sql: sqlReplay, args: []string{"'x'", "1", "1", nowSQL}},
		{name: "replayed", sql: sqlReplayed, args: []string{"'77'", "1"}, via: map[string]string{"ledger_replays": "ledger_replays_pkey"},
			cond: "letter", rows: 1},
		{name: "paid", sql: sqlPaid, args: []string{"77"}, via: map[string]string{"attempts": "attempts_pkey", "payout_attempts": "payout_attempts_pkey"}, cond: "payout_id", rows: 5},
		{name: "claim", sql: fmt.Sprintf(sqlClaim, " FOR UPDATE SKIP LOCKED"), args: []string{"'result'", "now()", "20", "now()"}, rows: 40, cold: true,
			via: map[string]string{"outbox": "outbox_unpublished|outbox_pkey"}},
	}
}

// Each statement uses its index on an empty, an unanalysed and a full table. It reads no more rows
// in a campaign of 100,000 than in an empty one.
func TestPlansOfPayoutStatements(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		s := h.open(t).store.(*postgres)
		explainAll(t, s, "empty")
		fill(t, s)
		explainAll(t, s, "un-analysed")
		_, err := s.cold.Exec(t.Context(), `ANALYZE payouts; ANALYZE outbox; ANALYZE attempts; ANALYZE promotions; ANALYZE promotion_summaries; ANALYZE promotion_summary_slots; ANALYZE promotion_streams;
			ANALYZE ledger_audit; ANALYZE ledger_replays`)
		require.NoError(t, err)
		explainAll(t, s, "full")

		// A case that must fail.
		_, err = checkPlan(t.Context(), s.cold, payoutStatement{sql: `SELECT count(*) FROM payouts WHERE target_id > $1`, args: []string{"5"},
			via: map[string]string{"payouts": "payouts_pkey"}, cond: "target_id", rows: batchOf})
		require.Error(t, err)
	})
}

// fill creates two campaigns of 60,000 payouts, a tenth of them unsettled, without statistics.
func fill(t *testing.T, s *postgres) {
	for _, sql := range []string{
		`ALTER TABLE payouts SET (autovacuum_enabled = false)`,
		`ALTER TABLE outbox SET (autovacuum_enabled = false)`,
		`INSERT INTO promotions SELECT 'POINT', g, 'RUNNING', now(), now() FROM generate_series(1, 20000) g`,
		`INSERT INTO promotion_streams (type, promotion_id, active) SELECT 'POINT', g, g < 3 FROM generate_series(1, 20000) g`,
		`UPDATE promotion_streams SET waiting_since = now() WHERE promotion_id IN (3, 4)`,
		`INSERT INTO payouts (type, promotion_id, target_id, summary_id, state, hint, hint_due, version, accepted_at, settled_at, payload)
			SELECT 'POINT', p, g, 9, CASE WHEN g % 10 = 0 THEN 'PENDING' ELSE 'SUCCESS' END, (ARRAY['none', 'stream', 'retry'])[1 + g / 10 % 3],
				now() - interval '2 hours', 1, now(), CASE WHEN g % 10 = 0 THEN NULL ELSE now() END, 'x'
			FROM generate_series(1, 60000) g, generate_series(1, 2) p`,
		`UPDATE payouts SET state = 'AMBIGUOUS', maybe_charged = TRUE WHERE target_id % 4000 = 0`,
		`INSERT INTO attempts SELECT id, 1, false, 1, 'send', 'a', now(), now(), 'paid', '', '', 200 FROM payouts`,
		`INSERT INTO payout_attempts SELECT id, 2, false, 1, 'send', 'a', now(), now(), 'paid', '', '', 200, promotion_id FROM payouts`,
		`INSERT INTO outbox (kind, type, promotion_id, target_id, class, error, payload, headers, origin, handler, attempts, created_at)
			SELECT 'result', 'POINT', 1, g, '', '', 'x', '', '', '', 1, now() FROM generate_series(1, 20000) g`,
		`INSERT INTO outbox (kind, type, promotion_id, target_id, class, error, payload, headers, origin, handler, attempts, created_at, published_at)
			SELECT 'dead', 'POINT', 1, g, CASE WHEN g % 10 = 0 THEN 'unknown' ELSE 'rejected' END, '', 'x', '', '', '', 1, now(), now() FROM generate_series(1, 20000) g`,
		`INSERT INTO ledger_audit (at, who, why, action, type, promotion_id, target_id, detail)
			SELECT now(), 'kim', '', 'replay', 'POINT', 1, g, '' FROM generate_series(1, 20000) g`,
		`INSERT INTO promotion_summary_slots (type, promotion_id, summary_id, slot) SELECT 'POINT', g / 3 + 1, 9, g % 3 FROM generate_series(0, 19999) g`,
		`INSERT INTO ledger_replays SELECT g::text, 1, g, now() FROM generate_series(1, 20000) g`,
	} {
		_, err := s.cold.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
}

func explainAll(t *testing.T, s *postgres, table string) {
	for _, st := range hotStatements() {
		pool := s.hot
		if st.cold {
			pool = s.cold
		}
		plan, err := checkPlan(t.Context(), pool, st)
		require.NoError(t, err, "%s table: %s\n%s", table, st.name, plan)
	}
}

type planNode struct {
	NodeType string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Cond     string  `json:"Index Cond"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Plans    []planNode
}

// checkPlan runs the prepared statement like the pool, and rolls it back.
func checkPlan(ctx context.Context, pool *pgxpool.Pool, st payoutStatement) (plan string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	tx, err := conn.Begin(ctx)
	if err != nil {
		return "", err
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	if _, err := tx.Exec(ctx, "PREPARE hot AS "+st.sql, pgx.QueryExecModeSimpleProtocol); err != nil {
		return "", err
	}
	execute := "EXECUTE hot"
	if len(st.args) > 0 { // whose arguments must be literals
		var args string
		if err := tx.QueryRow(ctx, "SELECT concat_ws(', ', "+strings.Join(quoted(st.args), ", ")+")", pgx.QueryExecModeSimpleProtocol).Scan(&args); err != nil {
			return "", err
		}
		execute += "(" + args + ")"
	}
	err = tx.QueryRow(ctx, "EXPLAIN (ANALYZE, FORMAT JSON) "+execute, pgx.QueryExecModeSimpleProtocol).Scan(&plan)
	if _, e := tx.Exec(ctx, "DEALLOCATE hot", pgx.QueryExecModeSimpleProtocol); err == nil {
		err = e
	}
	if err != nil {
		return plan, err
	}
	var roots []struct{ Plan planNode }
	if err := json.Unmarshal([]byte(plan), &roots); err != nil {
		return plan, err
	}
	return plan, st.check(roots[0].Plan)
}

func (st payoutStatement) check(n planNode) error {
	if n.Relation != "" && n.NodeType != "ModifyTable" {
		if n.Index == "" || !strings.Contains("|"+st.via[n.Relation]+"|", "|"+n.Index+"|") {
			return fmt.Errorf("%s of %s by index %q, want %q", n.NodeType, n.Relation, n.Index, st.via[n.Relation])
		}
		if n.Relation != "outbox" && !strings.HasSuffix(n.Relation, "attempts") && !strings.Contains(n.Cond, st.cond) {
			return fmt.Errorf("index condition %q lacks %s", n.Cond, st.cond)
		}
		if read := (n.Rows + n.Filtered) * n.Loops; read > st.rows {
			return fmt.Errorf("reads %v rows of %s, want at most %v", read, n.Relation, st.rows)
		}
	}
	for _, child := range n.Plans {
		if err := st.check(child); err != nil {
			return err
		}
	}
	return nil
}

// No statement for payouts scans a table.
func TestPlansOfSQLite(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		l := newSQLiteDB(t).open(t)
		acceptMany(t, l, 1, 50)
		for name, sql := range map[string]string{
			"share promotion": sqliteReadPromotion, "lock row": sqliteReadRow, "lock body": sqliteReadMessage, "update row": updatePayouts.sqlite,
			"failed message": sqliteFailedMessage, "mark enqueued": sqliteMarkEnqueued, "feed unqueued": sqlFeedUnqueued, "feed lost entries": sqlFeedLostEntries,
			"feed overdue": sqlFeedOverdue, "feed expired leases": sqlFeedExpiredLeases, "feed page end": sqlFeedPageEnd, "waiting": sqlWaitTimes, "unfinished": sqlUnfinished, "to feed": sqlToFeed, "active": sqlActive,
			"admit": sqlAdmit, "admit waiting": sqlAdmitWaiting, "list": sqlList, "types": sqlTypes, "no work": sqlNoWork, "cancellable": sqlCancellable, "page": sqlPayouts + sqlPayoutPage,
			"claim": fmt.Sprintf(sqlClaim, ""), "audit": sqlAudit, "dead letters": sqlDeadLetters, "unknown": sqlUnknown, "ambiguous": sqlAmbiguous, "replayed": sqlReplayed, "paid": sqlPaid,
		} {
			plan := litePlan(t, l, sql)
			for _, table := range []string{"payouts", "p", "promotions", "attempts", "outbox", "pr", "s", "a", "w", "ledger_audit", "ledger_replays"} {
				require.NotContains(t, plan+"\n", "SCAN "+table+"\n", name)
			}
		}
		require.Contains(t, litePlan(t, l, `SELECT * FROM payouts WHERE target_id > $1`)+"\n", "SCAN payouts\n", "the check can fail")
		require.NotContains(t, litePlan(t, l, sqlFeedUnqueued), "TEMP B-TREE", "the index has the order")
		require.NotContains(t, litePlan(t, l, sqlFeedPageEnd), "TEMP B-TREE", "the index has the order")
		require.Contains(t, litePlan(t, l, sqlFeedPageEnd), "feed_at>?")
		for _, sql := range []string{sqlUnfinished, sqlToFeed, sqlWaitTimes} {
			require.Contains(t, litePlan(t, l, sql), "(type,promotion_id)>(?,?)", "the next promotion is one probe")
		}
	})
}

func litePlan(t *testing.T, l *Ledger, sql string) string {
	var lines []string
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		args := make([]any, 30)
		return q.query(t.Context(), func(r scanner) error {
			var id, parent, unused int
			var detail string
			err := r.Scan(&id, &parent, &unused, &detail)
			lines = append(lines, detail)
			return err
		}, "EXPLAIN QUERY PLAN "+sql, args[:parameters(sql)]...)
	}))
	return strings.Join(lines, "\n")
}

// parameters returns the highest parameter number of a statement.
func parameters(sql string) int {
	for n := 30; n > 0; n-- {
		if strings.Contains(sql, fmt.Sprint("?", n)) || strings.Contains(sql, fmt.Sprint("$", n)) {
			return n
		}
	}
	return 0
}
