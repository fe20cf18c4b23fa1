package sqldb

import (
	"fmt"
	"time"
)

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
