package letters

import (
	"context"
	"database/sql"
	"fmt"
	"unicode/utf8"
)

// Field is a property of letters that people name.
type Field string

// The fields that people name.
const (
	FieldID          Field = "id"
	FieldSource      Field = "source"
	FieldPlugin      Field = "plugin"
	FieldHandler     Field = "handler"
	FieldClass       Field = "class"
	FieldFingerprint Field = "fingerprint"
)

// Words returns up to limit different values of a field that begin with prefix, shortest first: what is all of a value comes
// before what only begins with it. They are those of all letters, whatever their state.
func (s *Store) Words(ctx context.Context, field Field, prefix string, limit int) ([]string, error) {
	var words []string
	prefix = clean(prefix)
	query := fmt.Sprintf(`SELECT %[1]s FROM dead_letters WHERE substr(%[1]s, 1, $2) = $1 GROUP BY %[1]s ORDER BY length(%[1]s), %[1]s LIMIT %[2]d`, field, limit)
	err := s.query(ctx, s.db, func(rows *sql.Rows) error {
		var word string
		err := rows.Scan(&word)
		words = append(words, word)
		return err
	}, query, prefix, utf8.RuneCountInString(prefix))
	if err != nil {
		return nil, s.wrap("look for a "+string(field), err)
	}
	return words, nil
}
