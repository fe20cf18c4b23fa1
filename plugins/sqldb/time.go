package sqldb

import (
	"fmt"
	"time"
)

// Time scans a timestamptz of PostgreSQL, or the microseconds since 1970 that Micros returns for
// SQLite. Null is the zero time.
type Time struct{ time.Time }

// Scan implements sql.Scanner.
func (t *Time) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		t.Time = time.Time{}
	case time.Time:
		t.Time = v.UTC()
	case int64:
		t.Time = time.UnixMicro(v).UTC()
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
