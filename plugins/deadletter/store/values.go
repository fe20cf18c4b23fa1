package store

import (
	"context"
	"database/sql"
	"fmt"
	"unicode/utf8"
)

// Field is a column that a filter or an argument of a command names.
type Field string

// The fields.
const (
	FieldID          Field = "id"
	FieldSource      Field = "source"
	FieldPlugin      Field = "plugin"
	FieldHandler     Field = "handler"
	FieldClass       Field = "class"
	FieldFingerprint Field = "fingerprint"
)

// Values returns up to limit different values of a field that begin with prefix, the shortest
// first. A value that equals prefix is the first one. All states count.
func (s *Store) Values(ctx context.Context, field Field, prefix string, limit int) ([]string, error) {
	var values []string
	prefix = clean(prefix)
	query := fmt.Sprintf(`SELECT %[1]s FROM dead_letters WHERE substr(%[1]s, 1, $2) = $1 GROUP BY %[1]s ORDER BY length(%[1]s), %[1]s LIMIT %[2]d`, field, limit)
	err := s.query(ctx, s.db, func(rows *sql.Rows) error {
		var value string
		err := rows.Scan(&value)
		values = append(values, value)
		return err
	}, query, prefix, utf8.RuneCountInString(prefix))
	if err != nil {
		return nil, s.wrap("find values of "+string(field), err)
	}
	return values, nil
}
