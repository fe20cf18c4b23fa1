package cli

import (
	"encoding/json"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline/app"
)

// errorWidth is the width of an error, in the last column of a table.
const errorWidth = 160

// OneLine returns text as one line, without characters that control a terminal. most is its largest
// length in characters. A longer text loses its middle, because the end of an error says what
// happened.
func OneLine(text string, most int) string {
	text = app.Printable(strings.Join(strings.Fields(text), " "))
	if r := []rune(text); len(r) > most {
		head := (most - 1) / 2
		return string(r[:head]) + "…" + string(r[len(r)-(most-1-head):])
	}
	return text
}

// quoted returns text unchanged if a terminal shows it as it is, otherwise escaped.
func quoted(text string) string {
	if text == app.Printable(text) && utf8.ValidString(text) && !strings.ContainsFunc(text, unicode.IsControl) {
		return text
	}
	escaped, _ := json.Marshal(text) // a string always encodes
	return app.Printable(string(escaped))
}
