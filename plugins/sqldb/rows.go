package sqldb

import (
	"context"
	"database/sql"
)

// EachRow calls row for each row of a query. run is a method QueryContext.
func EachRow(ctx context.Context, run func(context.Context, string, ...any) (*sql.Rows, error), row func(*sql.Rows) error, query string, args ...any) error {
	rows, err := run(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		if err := row(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
