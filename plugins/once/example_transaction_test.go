package once_test

import (
	"context"
	"database/sql"
	"errors"

	"github.com/jackc/pgx/v5"
)

// An order and the request for its invoice are one transaction, so there is an invoice if and only if there is an
// order. The test TestAnEffectOfATransaction has the same on a real server.
func ExampleEffects_EnqueueTx() {
	_ = func(ctx context.Context, conn *pgx.Conn, p *Plugin, i Invoice) error {
		var committed func()
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO orders (number) VALUES ($1)", i.Number)
			if err == nil {
				committed, err = p.Invoices.EnqueueTx(ctx, tx, i)
			}
			return err // once.ErrConflict, if the same number was asked for with another request
		})
		if err == nil {
			committed() // or the worker finds it within poll_interval
		}
		return err
	}
}

// The same with database/sql.
func ExampleEffects_EnqueueSQL() {
	_ = func(ctx context.Context, db *sql.DB, p *Plugin, i Invoice) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO orders (number) VALUES ($1)", i.Number)
		committed := func() {}
		if err == nil {
			committed, err = p.Invoices.EnqueueSQL(ctx, tx, i)
		}
		if err != nil {
			return errors.Join(err, tx.Rollback())
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		committed()
		return nil
	}
}
