package ledger

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// planned is a statement with the arguments of one batch, as SQL, and its allowed accesses.
type planned struct {
	name string
	sql  string
	args []string
	via  map[string]string // table → indexes, separated by |
	rows float64           // rows it may read of any table
	cold bool
}

func repeated(value string) string { return "ARRAY(SELECT " + value + " FROM generate_series(1, 8) g)" }

// arraysOf are arguments of a statement: a value for the kind of each column, or the given one.
func arraysOf[T any](st statement[T], given map[string]string) (args []string) {
	byKind := map[string]string{"text": "'x'", "bigint": "1", "int": "1", "smallint": "1", "bool": "false", "bytea": "'x'::bytea", "timestamptz": "now()"}
	for _, c := range st.columns {
		args = append(args, repeated(cmp.Or(given[c.name], byKind[c.kind])))
	}
	return args
}

func hotStatements() []planned {
	keys := []string{repeated("1"), repeated("'g1'"), repeated("'n' || g * 1000")}
	groups := []string{repeated("1"), repeated("'g' || g")}
	key := map[string]string{"grp": "'g1'", "id": "'n' || g * 1000", "state": "1", "settled_at": "NULL::timestamptz", "lease_until": "NULL::timestamptz"}
	fresh := map[string]string{"grp": "'g1'", "id": "'new' || g", "state": "1", "settled_at": "NULL::timestamptz", "lane": "3"}
	effects, due := map[string]string{"once_effects": "once_effects_pkey"}, map[string]string{"once_due": "once_due_pkey"}
	both := map[string]string{"once_effects": "once_effects_pkey", "once_due": "once_due_pkey"}
	problems := map[string]string{"once_problems": "once_problems_pkey", "once_effects": "once_effects_pkey"}
	selections := map[string]string{"once_problems": "once_problems_state", "once_effects": "once_effects_pkey", "once_groups": "once_groups_pkey", "once_attempts": "once_attempts_pkey"}
	status := map[string]string{"once_groups": "once_groups_pkey", "once_totals": "once_totals_pkey", "once_deltas": "once_deltas_pkey",
		"once_due": "once_due_group|once_due_calling", "once_effects": "once_effects_pkey"}
	newest := maps.Clone(status)
	newest["once_groups"] = "once_groups_created"
	backlog := map[string]string{"once_totals": "once_totals_pkey", "once_deltas": "once_deltas_pkey", "once_due": "once_due_at|once_due_calling|once_due_leases", "once_effects": "once_effects_pkey"}
	results := map[string]string{"once_results": "once_results_pkey|once_results_until"}
	slots := map[string]string{"once_slots": "once_slots_pkey"}
	instances := map[string]string{"once_instances": "once_instances_pkey"}
	list := []planned{
		{name: "read groups", sql: pgReadGroups, args: groups, via: map[string]string{"once_groups": "once_groups_pkey"}, rows: 8},
		{name: "park groups", sql: pgParkGroups, args: groups, via: map[string]string{"once_groups": "once_groups_pkey|once_groups_parked"}, rows: 8},
		{name: "read paused", sql: pgReadPaused, args: []string{"1"}, via: map[string]string{"once_paused": "once_paused_pkey"}, rows: 1},
		{name: "add groups", sql: pgAddGroups, args: append(groups[:2:2], "now()")},
		{name: "lock due", sql: pgLockDue, args: []string{"1", "3", "8", "0", "ARRAY[7]"}, via: map[string]string{"once_due": "once_due_at", "once_effects": "once_effects_pkey"}, rows: 8},
		{name: "lock turn", sql: pgLockTurn, args: []string{"1", "3", "8", "0", "ARRAY[7]", "'g1'", "16"}, via: map[string]string{"once_due": "once_due_turn|once_due_pkey", "once_effects": "once_effects_pkey"}, rows: 20},
		{name: "lock rows", sql: pgLockRows, args: []string{"1", "ARRAY[100, 200]", "8", "ARRAY[7]"}, via: due, rows: 2},
		{name: "add due", sql: pgAddDue, args: []string{"-5", "1", "3", "true", "now()", "'g1'", "'x'"}},
		{name: "add all due", sql: pgAddAllDue, args: []string{repeated("-g"), repeated("1"), repeated("3"), repeated("true"), repeated("now()"), repeated("'g1'"), repeated("'x'")}},
		{name: "shorten due", sql: pgShortenDue, args: []string{"100", "'x'"}, via: due, rows: 1},
		{name: "park due", sql: pgParkDue, args: []string{"100", "'x'"}, via: due, rows: 1},
		{name: "delete due", sql: pgDeleteDue, args: []string{"ARRAY[100, 200]"}, via: due, rows: 2},
		{name: "delete ended due", sql: pgDeleteEndedDue, args: []string{"ARRAY[1000100, 1000200]"}, via: both, rows: 2},
		{name: "remove due", sql: pgRemoveDue, args: []string{"100", "ARRAY['n400']"}, via: due, rows: 1},
		{name: "delete removed due", sql: pgDeleteRemovedDue, args: []string{"100", "ARRAY['n400']"}, via: due, rows: 1},
		{name: "begin effects", sql: pgBeginEffects, args: append(append(keys[:3:3], repeated("100")), "2", "1", "1", "now()", "now()", "now()", "now()", "'a'"), via: effects, rows: 8},
		{name: "end effects", sql: pgEndEffects, args: append(append(keys[:3:3], repeated("200")), repeated("'r'"), "5", "now()"), via: effects, rows: 8},
		{name: "fast begin", sql: pgBeginFast, args: []string{"1", "ARRAY['g1']", repeated("1"), keys[2], repeated("100"), "0", "1", "1", "1000", "'a'", "'2020-01-01'", "2", repeated("-1")},
			via: map[string]string{"once_effects": "once_effects_pkey", "once_groups": "once_groups_pkey", "once_paused": "once_paused_pkey"}, rows: 8},
		{name: "fast settle", sql: pgSettleFast, args: append(keys[:3:3], repeated("200"), repeated("'r'"), "0", "5", "7", repeated("1")), via: effects, rows: 8},

		{name: "fast settle with results", sql: pgSettleFastTold, args: append(keys[:3:3], repeated("200"), repeated("'r'"), "0", "5", "7", repeated("1"), "ARRAY[1]"), via: effects, rows: 8},
		{name: "accept with results", sql: pgAcceptTold, args: append(arraysOf(insertEffect, map[string]string{"grp": "'g1'", "id": "'told' || g", "state": "8", "settled_at": "now()", "lease_until": "NULL::timestamptz", "lane": "3"}),
			"7", "ARRAY[1]", "ARRAY[30000000]", "ARRAY[1]")},
		{name: "insert results", sql: insertResults.postgres, args: arraysOf(insertResults, map[string]string{"state": "5"})},

		{name: "accept", sql: pgAccept, args: append(arraysOf(insertEffect, fresh), "7", "ARRAY[1]", "ARRAY[30000000]")},
		{name: "update effects", sql: updateEffects.postgres, args: arraysOf(updateEffects, key), via: effects, rows: 8},
		{name: "insert attempts", sql: insertAttempts.postgres, args: arraysOf(insertAttempts, map[string]string{"id": "'new' || g"})},
		{name: "set problems", sql: setProblems.postgres, args: arraysOf(setProblems, map[string]string{"id": "'new' || g", "state": "6"})},
		{name: "delete problems", sql: deleteProblems.postgres, args: arraysOf(deleteProblems, key), via: problems, rows: 8},
		{name: "insert deltas", sql: insertDeltas.postgres, args: arraysOf(insertDeltas, map[string]string{"number": "g"})},

		{name: "due", sql: fmt.Sprintf(sqlDue, laneList()), args: []string{"1"}, via: map[string]string{"once_due": "once_due_at", "once_limits": "once_limits_pkey", "once_lost": "once_lost_pkey", "once_paused": "once_paused_pkey"}, rows: 20, cold: true},
		{name: "pause", sql: sqlPauseOf, args: []string{"1"}, via: map[string]string{"once_paused": "once_paused_pkey"}, rows: 1, cold: true},
		{name: "lost", sql: sqlLostOf, args: []string{"1"}, via: map[string]string{"once_lost": "once_lost_pkey"}, rows: 20, cold: true},
		{name: "limits", sql: sqlLimits, args: []string{"1"}, via: map[string]string{"once_limits": "once_limits_pkey"}, rows: 1, cold: true},
		{name: "slots", sql: sqlSlots, args: []string{"1"}, via: slots, rows: 20, cold: true},
		{name: "free slots", sql: sqlFreeSlots, args: []string{"1", "'i1'"}, via: slots, rows: 1, cold: true},
		{name: "forget slots", sql: sqlForgetSlots, args: []string{"1", "now()"}, via: slots, rows: 20, cold: true},
		{name: "stops", sql: sqlStops, args: []string{"1", "now()"}, via: instances, rows: 20, cold: true},
		{name: "instances", sql: sqlInstances, args: []string{"1", "now()"}, via: instances, rows: 20, cold: true},
		{name: "set activity", sql: sqlSetActivity, args: []string{"1", "'i1'", "now()", "now()", "now()", "'x'", "'{}'", "now()"}, cold: true},
		{name: "end activity", sql: sqlEndActivity, args: []string{"1", "'i1'"}, via: instances, rows: 1, cold: true},
		{name: "forget instances", sql: sqlForgetInstances, args: []string{"1", "now()"}, via: instances, rows: 20, cold: true},
		{name: "leases", sql: sqlLeases, args: []string{"1"}, via: map[string]string{"once_due": "once_due_calling|once_due_leases", "once_effects": "once_effects_pkey"}, rows: 400, cold: true},
		{name: "due at", sql: sqlDueAt, args: []string{"1", "'g1'", "'n8'"}, via: both, rows: 1, cold: true},
		{name: "ahead", sql: sqlAhead, args: []string{"1", "now()"}, via: map[string]string{"once_due": "once_due_at", "once_effects": "once_effects_pkey"}, rows: BacklogLimit, cold: true},
		{name: "calling", sql: sqlCalling, args: []string{"1", "now()"}, via: map[string]string{"once_due": "once_due_calling|once_due_leases", "once_effects": "once_effects_pkey"}, rows: 400, cold: true},
		{name: "calling of a group", sql: sqlCallingOfGroup, args: []string{"1", "'g1'", "now()"}, via: map[string]string{"once_due": "once_due_calling|once_due_leases", "once_effects": "once_effects_pkey"}, rows: 400, cold: true},
		{name: "any result", sql: sqlAnyResult, args: []string{"1", "now()"}, via: results, rows: 1, cold: true},
		{name: "take results", sql: fmt.Sprintf(sqlTakeResults, " FOR UPDATE SKIP LOCKED"), args: []string{"1", "now()", "20", "now()"}, via: results, rows: 20, cold: true},
		{name: "effects of results", sql: sqlResultEffects + "= ANY($1)", args: []string{"ARRAY[100, 200]"}, via: map[string]string{"once_results": "once_results_pkey", "once_effects": "once_effects_pkey"}, rows: 2, cold: true},
		{name: "delete results", sql: sqlDeleteResults + "= ANY($1)", args: []string{"ARRAY[300, 400]"}, via: results, rows: 2, cold: true},
		{name: "postpone a result", sql: sqlPostponeResult, args: []string{"500", "now()"}, via: results, rows: 1, cold: true},
		{name: "results that wait", sql: sqlResultsWaiting, args: []string{"1", "20"}, via: results, rows: 20, cold: true},
		{name: "fold", sql: pgFold, args: []string{"20", "now()"}, via: map[string]string{"once_deltas": "once_deltas_pkey"}, rows: 20, cold: true},
		{name: "parked groups", sql: sqlParkedGroups, args: []string{"0", "''", "20"}, via: map[string]string{"once_groups": "once_groups_parked"}, rows: 20, cold: true},
		{name: "unpark", sql: fmt.Sprintf(sqlUnpark, "number", " FOR UPDATE SKIP LOCKED"), args: []string{"1", "'g2'", "now()", "20"}, via: map[string]string{"once_due": "once_due_parked|once_due_pkey|once_due_group"}, rows: 20, cold: true},
		{name: "unparked", sql: sqlUnparked, args: []string{"1", "'g1'"}, via: map[string]string{"once_groups": "once_groups_pkey|once_groups_parked", "once_due": "once_due_parked"}, rows: 1, cold: true},
		{name: "any delta", sql: sqlAnyDelta, via: map[string]string{"once_deltas": "once_deltas_pkey"}, rows: 1, cold: true},
		{name: "unsettled", sql: pgUnsettled, args: []string{"1", "'g1'", "''", "20"}, via: map[string]string{"once_due": "once_due_group"}, rows: 20, cold: true},
		{name: "any ended due", sql: pgAnyEndedDue, args: []string{"now()"}, via: map[string]string{"once_due": "once_due_leases", "once_effects": "once_effects_pkey"}, rows: 400, cold: true},
		{name: "forget due", sql: pgForgetDue, args: []string{"now()", "20"}, via: map[string]string{"once_due": "once_due_leases|once_due_pkey", "once_effects": "once_effects_pkey"}, rows: 400, cold: true},
		{name: "late done", sql: sqlLateDone, args: []string{"1", "'g1'", "'n7'"}, via: map[string]string{"once_attempts": "once_attempts_pkey"}, rows: 2, cold: true},
		{name: "audit", sql: sqlAudit, args: []string{"1", "'g1'", "'n7'"}, via: map[string]string{"once_audit": "once_audit_effect"}, rows: 1, cold: true},
		{name: "groups", sql: groupsSQL([]int64{1, 2, 3}, 2), args: []string{"3", "now()", "'g1'", "now()"}, via: newest, rows: oldestOf, cold: true},
		{name: "groups of a kind", sql: groupsSQL([]int64{1}, 1), args: []string{"3", "now()", "'g1'", "now()"}, via: newest, rows: oldestOf, cold: true},
		{name: "newest groups", sql: fmt.Sprintf(sqlNewest, 1, "<"), args: []string{"3", "now()", "'g1'"}, via: newest, rows: 3, cold: true},
		{name: "created", sql: sqlCreated, args: []string{"1", "'g1'"}, via: status, rows: 1, cold: true},
		{name: "effects of a group", sql: sqlEffectPage, args: []string{"1", "'g1'", "'n5'", "20"}, via: effects, rows: 20, cold: true},
		{name: "effects of a group with payloads", sql: sqlEffectAndPayloadPage, args: []string{"1", "'g1'", "'n5'", "20"}, via: effects, rows: 20, cold: true},
		{name: "waiting", sql: sqlWaiting, args: []string{"1", "'g1'", "201"}, via: map[string]string{"once_due": "once_due_group", "once_effects": "once_effects_pkey"}, rows: oldestOf, cold: true},
		{name: "finished", sql: sqlFinished, args: []string{"1", "'g1'"}, via: status, rows: 20, cold: true},
		{name: "expect", sql: sqlExpect, args: []string{"1", "'g1'", "now()", "400"}, via: map[string]string{"once_groups": "once_groups_pkey"}, rows: 1, cold: true},
		{name: "group", sql: sqlGroup, args: []string{"1", "'g1'", "now()"}, via: status, rows: oldestOf, cold: true},
		{name: "backlog", sql: sqlBacklog, args: []string{"1", "now()"}, via: backlog, rows: 20_000, cold: true},
		{name: "problems", sql: problemsSQL([]string{"p.kind = $1"}, "p.kind, p.grp, p.id", 2), args: []string{"1", "20"}, via: problems, rows: 20, cold: true},
		{name: "problems in a state", sql: problemsSQL([]string{"p.state = $1"}, "p.state, p.kind, p.grp, p.id", 2), args: []string{"7", "20"},
			via: map[string]string{"once_problems": "once_problems_state", "once_effects": "once_effects_pkey"}, rows: 20, cold: true},
		{name: "selected", sql: selectedSQL([]string{"(p.state, p.kind, p.grp, p.id) > ($1, $2, $3, $4)", "(p.state, p.kind) <= ($1, $2)", "p.at <= $5"}, 6),
			args: []string{"6", "1", "'g2'", "'n5'", "now()", "20"}, via: selections, rows: 20, cold: true},
		{name: "selected of a group", sql: selectedSQL([]string{"(p.state, p.kind, p.grp, p.id) > ($1, $2, $3, $4)", "(p.state, p.kind, p.grp) <= ($1, $2, $3)", "p.at <= $5"}, 6),
			args: []string{"6", "1", "'g2'", "'n5'", "now()", "20"}, via: selections, rows: 20, cold: true},
		{name: "count selected", sql: sqlCountSelected + "(p.state, p.kind, p.grp, p.id) > ($1, $2, $3, $4) AND (p.state, p.kind, p.grp) <= ($1, $2, $3)",
			args: []string{"6", "1", "'g2'", "'n9'"}, via: selections, rows: 60_000, cold: true},
	}
	for lock, sqls := range pgReadEffects {
		for messages, sql := range sqls {
			list = append(list, planned{name: fmt.Sprint("read effects ", lock, messages), sql: sql, args: keys, via: effects, rows: 8})
		}
	}
	return list
}

// Each statement uses its index on an empty, an unanalysed and a full table, and reads no more rows
// in a full table than in an empty one.
func TestPlansOfPostgres(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		s := h.open(t).store.(*postgres)
		explainAll(t, s, "empty")
		for _, sql := range []string{
			`ALTER TABLE once_effects SET (autovacuum_enabled = false)`,
			`ALTER TABLE once_due SET (autovacuum_enabled = false)`,
			`ALTER TABLE once_deltas SET (autovacuum_enabled = false)`,
			`ALTER TABLE once_results SET (autovacuum_enabled = false)`,
			`INSERT INTO once_groups SELECT 1, 'g' || g, 1, g % 2000 = 0, now(), now() FROM generate_series(1, 20000) g`,
			`INSERT INTO once_limits (kind, tat) SELECT g, now() FROM generate_series(1, 2000) g`,
			`INSERT INTO once_paused SELECT g, now(), 'x', 'x' FROM generate_series(3, 2000) g`,
			`INSERT INTO once_slots SELECT k, 'i' || g, 1, 1, now() FROM generate_series(1, 200) k, generate_series(1, 20) g`,
			`INSERT INTO once_lost SELECT k, now() + g * interval '1 hour', now() FROM generate_series(1, 200) k, generate_series(1, 20) g`,
			`INSERT INTO once_instances SELECT k, 'i' || g, now(), now(), now(), 'x', now(), '{}' FROM generate_series(1, 200) k, generate_series(1, 20) g`,
			`INSERT INTO once_effects (kind, lane, state, accepted_at, settled_at, grp, id, payload)
				SELECT 1, 3, CASE WHEN g % 4 = 0 THEN 1 ELSE 5 END, now(), CASE WHEN g % 4 = 0 THEN NULL ELSE now() END, 'g' || (1 + g % 2), 'n' || g, 'x' FROM generate_series(1, 120000) g`,
			`INSERT INTO once_due SELECT (array_agg(g))[1], 1, 3, FALSE, now() - interval '1 hour', 'g1', string_agg('n' || g, chr(10)) FROM generate_series(4, 120000, 4) g GROUP BY g / 20`,
			`INSERT INTO once_due SELECT 1000000 + g, 1, 3, TRUE, now() - interval '1 hour', 'g' || g, 'n' || 2 * g FROM generate_series(1, 400) g`,
			`INSERT INTO once_attempts (kind, grp, id, epoch, late, number, call, instance, ended_at, outcome)
				SELECT kind, grp, id, e, e = 2, 1, 'send', 'a', now(), 'done' FROM once_effects, generate_series(1, 2) e WHERE grp = 'g1'`,
			`INSERT INTO once_problems SELECT kind, grp, id, 6 + (lane + length(id)) % 2, now(), 'x' FROM once_effects WHERE grp = 'g2'`,
			`INSERT INTO once_deltas (kind, grp, part, number, accepted) SELECT 1, 'g' || g % 5000, '', g, 1 FROM generate_series(1, 20000) g`,
			`INSERT INTO once_totals SELECT 1, 'g' || g, '', 1, 0, 0, 0, 0 FROM generate_series(1, 20000) g`,
			`INSERT INTO once_results (kind, grp, id, state, at, until, attempts) SELECT 1, 'g1', 'n' || g, 5, now(), now() - interval '1 hour', 1 FROM generate_series(1, 20000) g`,
			`INSERT INTO once_audit (at, who, why, action, kind, grp, id, detail) SELECT now(), '', '', 'replay', 1, 'g1', 'n' || g, '' FROM generate_series(1, 20000) g`,
		} {
			_, err := s.cold.Exec(t.Context(), sql)
			require.NoError(t, err, sql)
		}
		explainAll(t, s, "un-analysed")
		_, err := s.cold.Exec(t.Context(), `ANALYZE once_groups; ANALYZE once_effects; ANALYZE once_due; ANALYZE once_attempts; ANALYZE once_problems; ANALYZE once_results; ANALYZE once_deltas; ANALYZE once_totals; ANALYZE once_limits; ANALYZE once_slots; ANALYZE once_instances; ANALYZE once_paused; ANALYZE once_lost; ANALYZE once_audit`)
		require.NoError(t, err)
		explainAll(t, s, "full")

		// A case that must fail.
		_, err = checkPlan(t.Context(), s.cold, planned{sql: `SELECT count(*) FROM once_effects WHERE id > $1`, args: []string{"'n5'"},
			via: map[string]string{"once_effects": "once_effects_pkey"}, rows: 8})
		require.Error(t, err)
	})
}

// A plan that a connection keeps from when nothing was due must not read all that is due later.
func TestAPlanForAnEmptyTableDoesNotOutliveIt(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t) // one call after the other uses one connection, which keeps its plans
		s := l.store.(*postgres)
		done := func(c Claimed) End {
			return End{Key: c.Key, CallResult: rules.CallResult{Epoch: c.Epoch, Outcome: rules.Done}}
		}
		mustAccept(t, l, record("acme", 0))
		one := claimAll(t, l, "invoice")
		_, err := s.cold.Exec(t.Context(), "VACUUM ANALYZE once_due")
		require.NoError(t, err)
		mustSettle(t, l, done(one[0]))

		all := records("acme", 2000)[1:]
		mustAccept(t, l, all...)
		claimed := claimAll(t, l, "invoice")
		require.Greater(t, len(claimed), 500)
		read := func() (n int64) {
			_, err := s.hot.Exec(t.Context(), "SELECT pg_stat_force_next_flush()")
			require.NoError(t, err)
			require.NoError(t, s.hot.QueryRow(t.Context(), `SELECT idx_tup_read FROM pg_stat_user_indexes
				WHERE indexrelname = 'once_due_pkey' AND schemaname = current_schema()`).Scan(&n))
			return n
		}
		before := read()
		mustSettle(t, l, done(claimed[0]))
		require.Less(t, read()-before, int64(100), "rows of once_due read for one effect, of %d", len(claimed))
	})
}

func explainAll(t *testing.T, s *postgres, table string) {
	for _, st := range hotStatements() {
		pool := s.hot
		if st.cold {
			pool = s.cold
		}
		_, err := checkPlan(t.Context(), pool, st)
		assert.NoError(t, err, "%s table: %s", table, st.name) // all of them at once
	}
}

type planNode struct {
	NodeType string  `json:"Node Type"`
	Relation string  `json:"Relation Name"`
	Index    string  `json:"Index Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Plans    []planNode
}

// checkPlan runs the prepared statement like the pool, and rolls it back.
func checkPlan(ctx context.Context, pool *pgxpool.Pool, st planned) (plan string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
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
		var quoted []string
		for _, a := range st.args {
			quoted = append(quoted, "quote_literal(("+a+")::text)")
		}
		var args string
		if err := tx.QueryRow(ctx, "SELECT concat_ws(', ', "+strings.Join(quoted, ", ")+")", pgx.QueryExecModeSimpleProtocol).Scan(&args); err != nil {
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

func (st planned) check(n planNode) error {
	if n.Relation != "" && n.NodeType != "ModifyTable" {
		if n.Index == "" || !strings.Contains("|"+st.via[n.Relation]+"|", "|"+n.Index+"|") {
			return fmt.Errorf("%s of %s by index %q, want %q", n.NodeType, n.Relation, n.Index, st.via[n.Relation])
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
