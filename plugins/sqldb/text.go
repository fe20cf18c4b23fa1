package sqldb

import (
	"strings"
	"unicode/utf8"
)

// Text makes s storable in a text column: valid UTF-8 without NUL, and at most limit bytes before
// the replacement of invalid bytes.
func Text(s string, limit int) string {
	s = s[:min(len(s), limit)]
	if utf8.ValidString(s) && strings.IndexByte(s, 0) < 0 {
		return s
	}
	return strings.ReplaceAll(strings.ToValidUTF8(s, "\uFFFD"), "\x00", "\uFFFD")
}
