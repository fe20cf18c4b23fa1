package app

import (
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes foreign text safe to show in a terminal: control characters (escape sequences
// begin with one, and a newline begins a line that looks like ours), characters that change the
// direction of text, and what is not UTF-8 become U+FFFD. Everything else stays as it is.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return utf8.RuneError
		}
		return r // of invalid bytes: utf8.RuneError
	}, text)
}

// Cell is Printable for a cell of a table that a spreadsheet may open: text that the spreadsheet
// would take for a formula gets an apostrophe before it.
func Cell(text string) string {
	formula := text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0]))
	if text = Printable(text); formula {
		return "'" + text
	}
	return text
}
