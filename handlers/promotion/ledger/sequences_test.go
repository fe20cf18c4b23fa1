package ledger

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// A ledger that was moved by logical replication has rows, and sequences that begin again. The check
// before the first accept names the tables and the repair, also for payouts, in which no constraint
// refuses a number twice.
func TestSequencesBehindTheirTables(t *testing.T) {
	t.Parallel()
	t.Run("sqlite", func(t *testing.T) {
		t.Parallel()
		require.NoError(t, newSQLiteDB(t).open(t).CheckSequences(t.Context()))
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, conn := h.open(t), h.connect(t)
		exec := executes(t, conn)
		require.NoError(t, l.CheckSequences(t.Context()), "empty tables")
		for target := range int64(3) {
			mustAccept(t, l, record(1, target+1))
		}
		endPayout(t, l, record(1, 1), false)
		require.NoError(t, l.Pause(t.Context(), record(1, 1).OfPromotion(), operator))
		require.NoError(t, l.CheckSequences(t.Context()))
		exec(`ALTER TABLE payouts ALTER COLUMN id RESTART WITH 4`)
		require.NoError(t, l.CheckSequences(t.Context()), "the next number is free")

		for _, table := range numbered() {
			exec(`ALTER TABLE ` + table + ` ALTER COLUMN id RESTART WITH 1`)
			err := l.CheckSequences(t.Context())
			require.ErrorIs(t, err, ErrRefusedByDatabase)
			require.ErrorContains(t, err, "the sequence of "+table+".id is behind its table")
			exec(regexp.MustCompile(`SELECT setval.* FROM \w+`).FindString(err.Error()))
			require.NoError(t, l.CheckSequences(t.Context()), table)
		}
		for _, table := range numbered() {
			exec(`ALTER TABLE ` + table + ` ALTER COLUMN id RESTART WITH 1`)
		}
		err := l.CheckSequences(t.Context())
		for _, table := range numbered() {
			require.ErrorContains(t, err, "the sequence of "+table+".id")
		}
	})
}

// The server is exchanged while the process runs, so nothing starts again. The first new connection notices it, and no
// payout gets a number that another one has.
func TestANewConnectionFindsASequenceBehindItsTable(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		l, conn := h.open(t), h.connect(t)
		exec := executes(t, conn)
		require.NoError(t, l.CheckSequences(t.Context()))
		mustAccept(t, l, record(1, 1))
		mustAccept(t, l, record(1, 2))
		exec(`ALTER TABLE payouts ALTER COLUMN id RESTART WITH 1`)
		l.store.(*postgres).hot.Reset()

		results := l.Accept(t.Context(), []payouts.Record{record(2, 1)}, AcceptOptions{})
		require.ErrorIs(t, results[0].Err, ErrRefusedByDatabase)
		require.ErrorContains(t, results[0].Err, "the sequence of payouts.id is behind its table")
		exec(regexp.MustCompile(`SELECT setval.* FROM \w+`).FindString(results[0].Err.Error()))
		mustAccept(t, l, record(2, 1))
		var twice int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT count(*) - count(DISTINCT id) FROM payouts`).Scan(&twice))
		require.Zero(t, twice)
	})
}
