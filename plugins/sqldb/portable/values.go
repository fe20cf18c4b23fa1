package portable

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
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

// Text makes s storable in a text column: valid UTF-8 without NUL, and at most limit bytes before
// the replacement of invalid bytes.
func Text(s string, limit int) string {
	s = s[:min(len(s), limit)]
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}

// Time is a destination of a scan, as in (*Time)(&at). It scans a timestamptz of PostgreSQL, or the
// microseconds since 1970 that Micros returns for SQLite. Null is the zero time.
type Time time.Time

// Scan implements sql.Scanner.
func (t *Time) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*t = Time{}
	case time.Time:
		*t = Time(v.UTC())
	case int64:
		*t = Time(time.UnixMicro(v).UTC())
	default:
		return fmt.Errorf("scan a time from %T", src)
	}
	return nil
}

// Micros returns a time as SQLite stores it; null for the zero time.
func Micros(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return t.UnixMicro()
}
