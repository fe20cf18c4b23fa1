package sqldb_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing/fstest"
	"time"

	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/sqldb/portable"
)

func Example() {
	dir, err := os.MkdirTemp("", "sqldb")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	dsn := "sqlite:" + filepath.Join(dir, "visits.db")
	files := fstest.MapFS{"migrations/sqlite/00001_visits.sql": {Data: []byte("-- +goose Up\nCREATE TABLE visits (at integer NOT NULL);\n")}}
	ctx := context.Background()

	file, err := sqldb.ParseFile(dsn)
	if err != nil {
		fmt.Println(err)
		return
	}
	db, err := file.Open(ctx, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = db.Close() }()
	visits := sqldb.Migrations{Name: "visits", Files: files, Table: "visit_migrations", Lock: 1296650099}
	if err := visits.Up(ctx, db, portable.DialectOf(dsn), slog.New(slog.DiscardHandler)); err != nil {
		fmt.Println(err)
		return
	}

	noon := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	if _, err := db.ExecContext(ctx, "INSERT INTO visits VALUES ($1)", portable.Micros(noon)); err != nil {
		fmt.Println(err)
		return
	}
	var at time.Time
	if err := db.QueryRowContext(ctx, "SELECT at FROM visits").Scan((*portable.Time)(&at)); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(at)
	// Output: 2026-11-21 12:00:00 +0000 UTC
}
