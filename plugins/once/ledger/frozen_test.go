package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// claimGroup claims the lane of a group until so many of its effects are claimed, at least, with so many claims at most.
func claimGroup(t *testing.T, l *Ledger, group string, effects, claims int) (claimed []Claimed) {
	t.Helper()
	for range claims {
		all, err := l.Claim(t.Context(), "invoice", int(laneOf(group)), 8)
		require.NoError(t, err)
		for _, c := range all {
			if c.Group == group {
				claimed = append(claimed, c)
			}
		}
		if len(claimed) >= effects {
			return claimed
		}
	}
	require.Fail(t, "too many claims", "%d of %d effects of group %s after %d claims", len(claimed), effects, group, claims)
	return nil
}

// A process that stands still in a transaction, such as one that is stopped by a signal or by its machine, holds its locks
// until PostgreSQL ends its session. Meanwhile nobody waits but who needs just what it holds.
func TestAFrozenTransactionStopsItsOwnWorkAlone(t *testing.T) {
	t.Parallel()
	const ofAcme = pgGroupLockClass + `, hashtext(current_schema() || '/' || $1::bigint || '/acme'))`
	for name, c := range map[string]struct {
		freeze  []string // statements of the frozen transaction: $1 is the number of the kind
		pausing bool     // and a pause of acme waits for it
		stopped bool     // no other effect of acme is claimed meanwhile
		answer  bool     // one answer is not stored
	}{
		"a claim":                     {freeze: []string{`SELECT number FROM once_due WHERE kind = $1 AND grp = 'acme' AND NOT calling LIMIT 1 FOR UPDATE`, `SELECT pg_advisory_xact_lock_shared(` + ofAcme}},
		"a claim that a pause awaits": {freeze: []string{`SELECT pg_advisory_xact_lock_shared(` + ofAcme}, pausing: true, stopped: true},
		"a pause":                     {freeze: []string{`SELECT pg_advisory_xact_lock(` + ofAcme}, stopped: true},
		"an operator":                 {freeze: []string{`SELECT id FROM once_effects WHERE kind = $1 AND grp = 'acme' AND state = 1 LIMIT 1 FOR UPDATE`}},
		"a settle":                    {freeze: []string{`SELECT id FROM once_effects WHERE kind = $1 AND grp = 'acme' AND state = 2 LIMIT 1 FOR UPDATE`}, answer: true},
		"a sweep": {freeze: []string{`SELECT FROM once_groups WHERE kind = $1 AND grp = 'acme' FOR UPDATE`,
			`INSERT INTO once_totals SELECT $1, g, '', 0, 0, 0, 0, 0 FROM unnest(ARRAY['', 'acme']) AS g ON CONFLICT DO NOTHING`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onPostgres(t, func(t *testing.T, h *testDB) {
				l := h.open(t)
				small, other := neighbours(1)[0], "other" // small is in the lane of acme
				require.NotEqual(t, laneOf("acme"), laneOf(other))
				mustAccept(t, l, records("acme", 200)...)
				h.advance(time.Second)
				mustAccept(t, l, append(records(small, 20), records(other, 20)...)...)
				called := claimGroup(t, l, "acme", 8, 1)
				number := l.kinds["invoice"].number

				tx := h.begin(t)
				for _, sql := range c.freeze {
					_, err := tx.Exec(t.Context(), sql, number)
					require.NoError(t, err)
				}
				paused := make(chan error, 1)
				if c.pausing {
					go func() { paused <- l.Pause(t.Context(), acme, operator) }()
					h.awaitLock(t, tx, groupID{number, "acme"})
				}
				claimGroup(t, l, other, 20, 4)
				claimGroup(t, l, small, 20, 20)
				if !c.stopped {
					claimGroup(t, l, "acme", 40, 20)
				}
				refused := 0
				for _, r := range settleDone(t, l, called) {
					if r.Err != nil {
						require.ErrorIs(t, r.Err, ErrUnavailable)
						refused++
					}
				}
				require.Equal(t, c.answer, refused == 1, "%d answers are not stored", refused)
				mustAccept(t, l, record("acme", 999), record(small, 999))
				require.NoError(t, l.Pause(t.Context(), Group{Kind: "invoice", Name: small}, operator))
				require.NoError(t, l.Resume(t.Context(), Group{Kind: "invoice", Name: small}, operator))

				require.NoError(t, tx.Rollback(t.Context()))
				if c.pausing {
					require.NoError(t, <-paused)
				}
			})
		})
	}
}

// A pause of a whole kind that stands still stops the claims of that kind, which are no errors, and of no other one.
func TestAFrozenPauseOfAKindStopsNoOtherKind(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, h *testDB) {
		l := h.open(t)
		lock := pauseLock(l.kinds["invoice"].number)
		parcel := record("acme", 1)
		parcel.Kind = "parcel"
		mustAccept(t, l, record("acme", 0), parcel)
		tx := h.begin(t)
		_, err := tx.Exec(t.Context(), pgGroupLock, lock.kind, lock.name)
		require.NoError(t, err)
		claimed, err := l.Claim(t.Context(), "invoice", int(laneOf("acme")), 1)
		require.NoError(t, err)
		require.Empty(t, claimed)
		require.Len(t, claimAll(t, l, "parcel"), 1)
		require.NoError(t, tx.Rollback(t.Context()))
		require.Len(t, claimAll(t, l, "invoice"), 1)
	})
}

// settleDone settles with "done".
func settleDone(t *testing.T, l *Ledger, claimed []Claimed) []SettledResult {
	t.Helper()
	ends := make([]End, len(claimed))
	for i, c := range claimed {
		ends[i] = end(c, rules.Done)
	}
	results, err := l.Settle(t.Context(), ends)
	require.NoError(t, err)
	return results
}
