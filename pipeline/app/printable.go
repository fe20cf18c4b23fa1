package app

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Printable makes foreign text safe to show in a terminal. Control characters, characters that
// change the direction of text, and invalid UTF-8 become U+FFFD. Newlines are control characters
// too: foreign text must not begin a line.
func Printable(text string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) || r == '\u2028' || r == '\u2029' {
			return utf8.RuneError
		}
		return r // of invalid bytes: utf8.RuneError
	}, text)
}

// Cell is Printable for a table that a spreadsheet may open. Text that looks like a formula gets an
// apostrophe before it.
func Cell(text string) string {
	formula := text != "" && strings.ContainsRune("=+-@\t\r", rune(text[0]))
	if text = Printable(text); formula {
		return "'" + text
	}
	return text
}

// Thousands writes n with a comma after every three digits, as in 1,234,567.
func Thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// Plural writes n and the noun, in the plural unless n is 1, as in "1 target" and "2,000 targets".
func Plural(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return Thousands(n) + " " + noun
}
