package once_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// An effect of the caller's transaction exists if and only if the transaction commits, and it is called for at
// once after that.
func TestAnEffectOfATransaction(t *testing.T) {
	tier.Default(t)
	t.Parallel()
	dsn := sqldbtest.Schema(t)
	w := oncetest.On(t, dsn)
	p := newInvoices(w.Once, once.ByKey, func(k *once.Kind[invoice], c *once.KindConfig) {
		c.PollInterval = hour
		k.Request = func(i invoice) ([]byte, error) {
			if i.Number == "large" {
				return make([]byte, ledger.MaxPayloadBytes+1), nil
			}
			return []byte(i.payload()), nil
		}
	})
	w.Start(p)
	conn, err := pgx.Connect(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close(t.Context()) })
	_, err = conn.Exec(t.Context(), "CREATE TABLE orders (id text PRIMARY KEY)")
	require.NoError(t, err)

	order := func(i invoice, end func(pgx.Tx) error) func() {
		tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
		require.NoError(t, err)
		_, err = tx.Exec(t.Context(), "INSERT INTO orders VALUES ($1)", i.Number)
		require.NoError(t, err)
		committed, err := p.effects.EnqueueTx(t.Context(), tx, i)
		require.NoError(t, err)
		_, err = p.effects.State(t.Context(), i.key())
		require.ErrorIs(t, err, ledger.ErrNotFound, "nothing exists before the commit")
		require.NoError(t, end(tx))
		return committed
	}
	order(one, func(tx pgx.Tx) error { return tx.Rollback(t.Context()) })
	_, err = p.effects.State(t.Context(), one.key())
	require.ErrorIs(t, err, ledger.ErrNotFound)

	committed := order(one, func(tx pgx.Tx) error { return tx.Commit(t.Context()) })
	committed()
	require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, one.key()).State)

	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	second := invoice{Customer: "acme", Number: "18"}
	committed, err = p.effects.EnqueueSQL(t.Context(), tx, second, one) // one is known
	require.NoError(t, err)
	require.NoError(t, tx.Commit())
	committed()
	require.Equal(t, rules.Success, oncetest.Settled(t, p.effects, second.key()).State)

	changed := one
	changed.Cents++
	tx, err = db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	_, err = p.effects.EnqueueSQL(t.Context(), tx, changed)
	require.ErrorIs(t, err, once.ErrConflict)
	require.True(t, pipeline.IsPermanent(err), err)
	require.NoError(t, tx.Rollback())

	for want, i := range map[error]invoice{once.ErrKey: {Customer: "acme"}, ledger.ErrInvalid: {Customer: "acme", Number: "large"}} {
		tx, err = db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = p.effects.EnqueueSQL(t.Context(), tx, i)
		require.ErrorIs(t, err, want)
		require.True(t, pipeline.IsPermanent(err), err)
		require.NoError(t, tx.Rollback())
	}

	require.Equal(t, 1, p.far.Executed(one.idempotency()))
	require.Equal(t, 1, p.far.Executed(second.idempotency()))
}

// A transaction of another database, and one of SQLite, is not one of the ledger.
func TestATransactionOfAnotherDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	w := oncetest.New(t)
	p := newInvoices(w.Once, once.ByKey, nil)
	w.Start(p)
	db, err := sql.Open("sqlite", t.TempDir()+"/other.db")
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	tx, err := db.BeginTx(t.Context(), nil)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback() })
	_, err = p.effects.EnqueueSQL(t.Context(), tx, one)
	require.ErrorIs(t, err, once.ErrOtherLedger)
}
