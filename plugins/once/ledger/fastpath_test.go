package ledger

import (
	"context"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// careful is a store without the fast path.
type careful struct{ store }

func (careful) settleFast(_ context.Context, ends []*settleItem, _ time.Duration) ([]bool, error) {
	return make([]bool, len(ends)), nil
}

func (s careful) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	tx, read, err := s.store.begin(ctx, w)
	return carefulTransaction{tx}, read, err
}

type carefulTransaction struct{ transaction }

func (carefulTransaction) beginFast(context.Context, *readRequest, fastBegin, *readResult) error {
	return nil
}

// counting counts what the fast path have stored.
type counting struct {
	store
	begun, settled int
}

func (s *counting) settleFast(ctx context.Context, ends []*settleItem, wait time.Duration) ([]bool, error) {
	settled, err := s.store.settleFast(ctx, ends, wait)
	for _, is := range settled {
		if is {
			s.settled++
		}
	}
	return settled, err
}

func (s *counting) begin(ctx context.Context, w readRequest) (transaction, *readResult, error) {
	tx, read, err := s.store.begin(ctx, w)
	return countingTransaction{tx, s}, read, err
}

type countingTransaction struct {
	transaction
	s *counting
}

func (tx countingTransaction) beginFast(ctx context.Context, w *readRequest, b fastBegin, read *readResult) error {
	before := len(w.keys)
	err := tx.transaction.beginFast(ctx, w, b, read)
	tx.s.begun += before - len(w.keys)
	return err
}

// sqlEverything describes every row. Times are compared with other times of the row.
const sqlEverything = `SELECT concat_ws('|', 'effect', e.kind, e.grp, e.id, e.lane, e.part, e.state, e.status, e.epoch, e.attempts, e.lookups, e.released, e.failures, e.interruptions,
	e.maybe_done, e.looking_up, e.not_done_seen, e.attempt_by, e.receipt, e.last_class, e.last_error, e.next_attempt_at IS NULL, e.settled_at IS NULL, e.lease_until - e.attempt_started_at,
	e.first_sent_at = e.attempt_started_at, e.key_first_used_at = e.attempt_started_at, e.key_first_used_at = e.first_sent_at, e.last_sent_at IS NULL, e.last_sent_at < e.attempt_started_at,
	e.attempt_started_at BETWEEN e.accepted_at AND $1, e.settled_at BETWEEN e.accepted_at AND $1, e.settled_at > e.attempt_started_at,
	'due', d.calling, d.at IS NULL, d.at = e.lease_until, d.at = e.next_attempt_at, d.at = e.accepted_at)
	FROM once_effects AS e LEFT JOIN once_due_effects AS d ON d.kind = e.kind AND d.grp = e.grp AND d.id = e.id
UNION ALL SELECT concat_ws('|', 'attempt', a.kind, a.grp, a.id, a.epoch, a.late, a.number, a.call, a.instance, a.started_at = e.attempt_started_at, a.ended_at = e.settled_at, a.outcome,
	a.class, a.answer, a.status, a.receipt) FROM once_attempts AS a JOIN once_effects AS e USING (kind, grp, id)
UNION ALL SELECT concat_ws('|', 'problem', p.kind, p.grp, p.id, p.state, p.class, p.at = e.settled_at) FROM once_problems AS p JOIN once_effects AS e USING (kind, grp, id)
UNION ALL SELECT concat_ws('|', 'count', kind, grp, part, sum(accepted), sum(done), sum(failed), sum(unknown), sum(cancelled))
	FROM (SELECT kind, grp, part, accepted, done, failed, unknown, cancelled FROM once_totals WHERE grp <> ''
		UNION ALL SELECT kind, grp, part, accepted, done, failed, unknown, cancelled FROM once_deltas) AS n GROUP BY kind, grp, part
UNION ALL SELECT concat_ws('|', 'group', kind, grp, state, parked) FROM once_groups
ORDER BY 1`

// timesInTexts finds the times in the text of an error. They are those of the run.
var timesInTexts = regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]+Z`)

func everything(t *testing.T, l *Ledger) (rows []string) {
	now := l.clock(t)
	require.NoError(t, l.store.read(t.Context(), func(q querier, _ time.Time) error {
		return q.query(t.Context(), func(r scanner) error {
			var row string
			err := r.Scan(&row)
			rows = append(rows, timesInTexts.ReplaceAllString(row, "TIME"))
			return err
		}, sqlEverything, now)
	}))
	return rows
}

// One history of batches runs with the fast path, and with the rules alone. All rows and answers are equal.
func TestTheFastPathFollowsTheRules(t *testing.T) {
	t.Parallel()
	for range 3 {
		onPostgres(t, func(t *testing.T, h *testDB) {
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			general := newTestDB(sqldbtest.Schema(t))
			l, slow := h.open(t), general.open(t)
			counted := &counting{store: l.store}
			l.store, slow.store = counted, careful{slow.store}
			want := batchHistory(t, general, slow, seed)
			got := batchHistory(t, h, l, seed)
			for i, line := range want {
				require.Equal(t, line, got[i])
			}
			require.Len(t, got, len(want))
			require.Greater(t, counted.begun, 100, "begins on the fast path")
			require.Greater(t, counted.settled, 50, "answers on the fast path")
		})
	}
}

// historyDelay is the lease and the delay of retries in batchHistory. Less than advance skips at once, and more than any
// run takes.
const historyDelay = 4 * time.Hour

// batchHistory runs random batches on a few effects, and returns all answers and rows.
func batchHistory(t *testing.T, h *testDB, l *Ledger, seed uint64) (lines []string) {
	for _, name := range testKinds {
		p := policyOf(name)
		p.Lease, p.KeyTTL, p.Delay = historyDelay, 26*time.Hour, func(int) time.Duration { return historyDelay }
		require.NoError(t, l.Register(t.Context(), Kind{Name: name, Policy: p}))
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	note := func(a ...any) { lines = append(lines, fmt.Sprint(a...)) }
	outcomes := []rules.Outcome{rules.Done, rules.Done, rules.Done, rules.Done, rules.Rejected, rules.TryAgain, rules.Unclear, rules.Interrupted, rules.NotDone, rules.Throttled}
	var calls []Claimed
	for n := range 200 {
		kind := testKinds[rnd.IntN(len(testKinds))]
		some := record(fmt.Sprint("g", rnd.IntN(3)), rnd.IntN(20+n))
		some.Kind = kind
		switch choice := rnd.IntN(26); {
		case choice < 7:
			var batch []Record
			for range 1 + rnd.IntN(30) {
				r := record(fmt.Sprint("g", rnd.IntN(4)), rnd.IntN(20+n))
				r.Kind, r.Part = kind, []string{"", "p"}[rnd.IntN(2)]
				if rnd.IntN(3) == 0 {
					r.Request = []byte("another text")
				}
				if rnd.IntN(5) == 0 {
					r.NotBefore = l.clock(t).Add(historyDelay)
				}
				batch = append(batch, r)
			}
			note(mustAccept(t, l, batch...))
		case choice < 13:
			claimed := claimAll(t, l, kind)
			slices.SortFunc(claimed, func(a, b Claimed) int { return strings.Compare(a.text(), b.text()) })
			for _, c := range claimed {
				note(c.Key, c.Lookup, c.Epoch, c.Number, string(c.Payload), string(c.Request), c.Headers, c.LastSent.IsZero(), c.SinceLastCall > 0)
			}
			calls = append(calls, claimed...)
		case choice < 18:
			rnd.Shuffle(len(calls), func(i, j int) { calls[i], calls[j] = calls[j], calls[i] })
			split := rnd.IntN(len(calls) + 1)
			var ends []End
			for _, c := range calls[:split] {
				ends = append(ends, end(c, outcomes[rnd.IntN(len(outcomes))]))
			}
			results, err := l.Settle(t.Context(), ends)
			require.NoError(t, err)
			for _, r := range results {
				note(r.State, r.Stale, r.DueIn > 0, r.Err)
			}
			if rnd.IntN(3) > 0 { // otherwise they are settled again
				calls = calls[split:]
			}
		case choice < 19:
			h.advance(historyDelay + time.Hour)
		case choice < 20:
			note(l.Pause(t.Context(), some.of(), operator))
		case choice < 21:
			note(l.Resume(t.Context(), some.of(), operator))
		case choice < 22:
			require.NoError(t, l.Sweep(t.Context()))
		case choice < 23:
			note(l.Replay(t.Context(), some.Key, operator))
		case choice < 24:
			note(l.Resolve(t.Context(), some.Key, rules.Resolution{Done: n%2 == 0, Receipt: "found", Who: "ann", Why: "a test"}))
		case choice < 25:
			if n == 100 {
				_, err := l.Recover(t.Context(), kind, l.clock(t).Add(-time.Hour), operator)
				require.NoError(t, err)
			}
		case n > 150:
			note(l.Cancel(t.Context(), some.of(), operator))
		}
	}
	return append(lines, everything(t, l)...)
}

// An effect that is not as the fast path takes it to be is decided by its row.
func TestTheFastPathLeavesOutTheRest(t *testing.T) {
	t.Parallel()
	begins := map[string]string{
		"as accepted":    ``,
		"another state":  `UPDATE once_effects SET state = 3`,
		"replayed":       `UPDATE once_effects SET epoch = 4`,
		"not due":        `UPDATE once_effects SET next_attempt_at = now() + interval '1 hour'`,
		"due":            `UPDATE once_effects SET next_attempt_at = now()`,
		"sends used up":  `UPDATE once_effects SET attempts = 3`,
		"released":       `UPDATE once_effects SET released = 3`,
		"sent before":    `UPDATE once_effects SET first_sent_at = now() - interval '1 minute'`,
		"old key":        `UPDATE once_effects SET key_first_used_at = now() - interval '1 day'`,
		"looked up":      `UPDATE once_effects SET looking_up = TRUE`,
		"a send before":  `UPDATE once_effects SET last_sent_at = now() - interval '1 day'`,
		"paused":         `INSERT INTO once_groups SELECT kind, grp, 2, FALSE, now(), now() FROM once_effects`,
		"cancelled":      `INSERT INTO once_groups SELECT kind, grp, 3, FALSE, now(), now() FROM once_effects`,
		"running":        `INSERT INTO once_groups SELECT kind, grp, 1, FALSE, now(), now() FROM once_effects`,
		"in another row": `UPDATE once_effects SET due = 7`,
		"lost":           `INSERT INTO once_lost SELECT kind, now() + interval '1 minute', now() - interval '1 hour' FROM once_effects`,
		"lost before":    `INSERT INTO once_lost SELECT kind, accepted_at, now() - interval '1 hour' FROM once_effects`,
	}
	ends := map[string]string{
		"as begun":       ``,
		"begun again":    `UPDATE once_effects SET epoch = 2, attempts = 2`,
		"settled":        `UPDATE once_effects SET state = 6, settled_at = now(), lease_until = NULL`,
		"a lookup":       `UPDATE once_effects SET looking_up = TRUE`,
		"perhaps done":   `UPDATE once_effects SET maybe_done = TRUE`,
		"has a time":     `UPDATE once_effects SET next_attempt_at = now()`,
		"has a class":    `UPDATE once_effects SET last_class = 'ledger_restored'`,
		"has an error":   `UPDATE once_effects SET last_error = 'a text'`,
		"without a part": `UPDATE once_effects SET part = NULL`,
		"gone":           `DELETE FROM once_effects`,
	}
	onFastPath := []string{"as accepted", "due", "running", "lost before", "as begun", "perhaps done", "without a part"}
	for _, steps := range []map[string]string{begins, ends} {
		for name, sql := range steps {
			onPostgres(t, func(t *testing.T, h *testDB) {
				general := newTestDB(sqldbtest.Schema(t))
				l, slow := h.open(t), general.open(t)
				counted := &counting{store: l.store}
				run := func(l *Ledger) (lines []string) {
					mustAccept(t, l, record("acme", 1))
					_, isEnd := ends[name]
					var claimed []Claimed
					if isEnd {
						claimed = claimAll(t, l, "invoice")
					}
					pg := l.store.(*postgres)
					_, err := pg.cold.Exec(t.Context(), sql)
					require.NoError(t, err)
					if l.store = (careful{pg}); l != slow {
						l.store = counted
					}
					if isEnd {
						results, err := l.Settle(t.Context(), []End{end(claimed[0], rules.Done)})
						lines = append(lines, fmt.Sprint(results[0].State, results[0].Stale, results[0].DueIn > 0, results[0].Err, err))
					} else {
						for _, c := range claimAll(t, l, "invoice") {
							lines = append(lines, fmt.Sprint(c.Key, c.Lookup, c.Epoch, c.Number, c.LastSent.IsZero(), c.SinceLastCall > 0))
						}
					}
					return append(lines, everything(t, l)...)
				}
				require.Equal(t, run(slow), run(l), name)
				require.Equal(t, slices.Contains(onFastPath, name), counted.begun+counted.settled == 1, name)
			})
		}
	}
}

// A claim during the pause of its group leaves it out, and the next one sees what the pause has committed.
func TestAFastBeginSeesThePauseOfItsGroup(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		k, err := l.registered("invoice")
		require.NoError(t, err)
		id := groupID{k.number, "acme"}
		mustAccept(t, l, records("acme", 3)...)
		for _, paused := range []bool{false, true} {
			other := h.begin(t)
			_, err := other.Exec(t.Context(), pgGroupLock, id.kind, id.name)
			require.NoError(t, err)
			claimed, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), 1)
			require.NoError(t, err)
			require.Empty(t, claimed)
			if paused {
				_, err = other.Exec(t.Context(), `INSERT INTO once_groups VALUES ($1, $2, 2, FALSE, now(), now()) ON CONFLICT (kind, grp) DO UPDATE SET state = 2`, id.kind, id.name)
				require.NoError(t, err)
			}
			require.NoError(t, other.Commit(t.Context()))
			claimed, err = l.Claim(t.Context(), "invoice", int(laneOf("acme")), 1)
			require.NoError(t, err)
			require.Equal(t, paused, len(claimed) == 0)
		}
	})
}

// An effect that another transaction has locked is left to a later claim, and the others are begun.
func TestAFastBeginDoesNotWaitForAnEffect(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		mustAccept(t, l, records("acme", 3)...)
		other := h.begin(t)
		_, err := other.Exec(t.Context(), `SELECT 1 FROM once_effects WHERE id = 'n1' FOR UPDATE`)
		require.NoError(t, err)
		require.Len(t, claimAll(t, l, "invoice"), 2)
		require.Equal(t, rules.Pending, mustExplain(t, l, key("acme", 1)).Row.State)
		require.Equal(t, []int{1}, l.dueRows(t, "NOT calling"), "it waits in its row")
		require.NoError(t, other.Rollback(t.Context()))
		claimed := claimAll(t, l, "invoice")
		require.Len(t, claimed, 1)
		require.Equal(t, rules.Success, mustSettle(t, l, end(claimed[0], rules.Done))[0].State)
	})
}

// A begin writes no index, unless it finds its page full: docs/decisions/0022-heap-only-begin.md.
func TestAFastBeginWritesNoIndex(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		const total = 500
		mustAccept(t, l, records("acme", total)...)
		require.Len(t, claimAll(t, l, "invoice"), total)
		s := l.store.(*postgres)
		require.Eventually(t, func() bool {
			_, err := s.hot.Exec(t.Context(), "SELECT pg_stat_force_next_flush()")
			require.NoError(t, err)
			var updated, heapOnly int
			require.NoError(t, s.cold.QueryRow(t.Context(), `SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables
				WHERE schemaname = current_schema() AND relname = 'once_effects'`).Scan(&updated, &heapOnly))
			return updated == total && heapOnly > total/2 // some find their page full
		}, time.Minute, 10*time.Millisecond)
	})
}
