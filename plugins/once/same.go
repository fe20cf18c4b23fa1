package once

import (
	"bytes"
	"log/slog"
	"runtime/debug"

	"github.com/go-json-experiment/json/jsontext"
)

// same is Kind.Same, whose panic must not leave the ledger's transaction open: the request then counts as another one.
func (e *Effects[T]) same(stored, offered []byte) (same bool) {
	defer func() {
		if r := recover(); r != nil {
			e.plugin.log.Error("Same of a kind panicked, so the request counts as another one than that which was accepted before",
				slog.String("kind", e.kind.Name), slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
			same = false
		}
	}()
	return e.kind.Same(stored, offered)
}

// SameJSON reports whether two texts are JSON and equal but for white space, the order of names, and how characters are
// escaped. Numbers are compared as they are written, so 1 and 1.0 differ. A text with a name twice is the same as no other.
func SameJSON(a, b []byte) bool {
	first, err := jsontext.AppendFormat(nil, a, jsontext.ReorderRawObjects(true))
	if err != nil {
		return false
	}
	second, err := jsontext.AppendFormat(nil, b, jsontext.ReorderRawObjects(true))
	return err == nil && bytes.Equal(first, second)
}
