package ledger

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sqlPartition makes the tables of payouts and attempts the first partition of new ones, for
// promotions below 2.
const sqlPartition = `
ALTER TABLE payouts RENAME TO payouts_1;
CREATE TABLE payouts (LIKE payouts_1 INCLUDING ALL) PARTITION BY RANGE (promotion_id);
SELECT setval(pg_get_serial_sequence('payouts', 'id'), (SELECT max(id) FROM payouts_1));
ALTER TABLE payouts_1 ALTER COLUMN id DROP IDENTITY;
ALTER TABLE payouts ATTACH PARTITION payouts_1 FOR VALUES FROM (MINVALUE) TO (2);
CREATE TABLE payouts_2 PARTITION OF payouts FOR VALUES FROM (2) TO (MAXVALUE) WITH (fillfactor = 45);

ALTER TABLE payout_attempts NO INHERIT attempts;
ALTER TABLE payout_attempts RENAME TO payout_attempts_1;
CREATE TABLE payout_attempts (LIKE payout_attempts_1 INCLUDING ALL) PARTITION BY RANGE (promotion_id);
ALTER TABLE payout_attempts ATTACH PARTITION payout_attempts_1 FOR VALUES FROM (MINVALUE) TO (2);
CREATE TABLE payout_attempts_2 PARTITION OF payout_attempts FOR VALUES FROM (2) TO (MAXVALUE);
ALTER TABLE attempts RENAME TO attempts_0;
CREATE VIEW attempts AS SELECT * FROM attempts_0 UNION ALL
	SELECT payout_id, epoch, late, attempt, kind, instance, started_at, ended_at, outcome, class, answer, http_status FROM payout_attempts;`

// Tables with rows are partitioned by promotion. No row is written again, and the statements of the
// ledger go on as before.
func TestTablesCanBePartitioned(t *testing.T) {
	t.Parallel()
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		h := newPostgresDB(t)
		m, conn := newModel(t, h), h.connect(t)
		m.ids = 1
		m.run(200)
		files := func(payouts, attempts string) (f [2]uint32) {
			require.NoError(t, conn.QueryRow(t.Context(), "SELECT pg_relation_filenode($1), pg_relation_filenode($2)", payouts, attempts).Scan(&f[0], &f[1]))
			return f
		}
		before := files("payouts", "payout_attempts")
		_, err := conn.Exec(t.Context(), sqlPartition)
		require.NoError(t, err)
		require.Equal(t, before, files("payouts_1", "payout_attempts_1"))
		m.ids = 6 // one promotion may be cancelled before its first call
		m.run(400)
		m.counts()
		var rows int
		require.NoError(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM payouts_2 JOIN payout_attempts_2 ON payout_id = id").Scan(&rows))
		require.Positive(t, rows)
	})
}
