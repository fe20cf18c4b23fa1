package cli

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestOneLineCutsTheMiddle(t *testing.T) {
	t.Parallel()
	complete := "promotion: pay: Post \"http://127.0.0.1:18089/v1/payouts\": read tcp 127.0.0.1:52282->127.0.0.1:18089: read: connection reset by peer"
	for name, c := range map[string]struct {
		text string
		most int
		want string
	}{
		"short":         {"as it is", 8, "as it is"},
		"odd":           {"0123456789", 7, "012…789"},
		"even":          {"0123456789", 6, "01…789"},
		"one":           {"0123456789", 1, "…"},
		"characters":    {"äöüäöüäöü", 5, "äö…öü"},
		"one line":      {"a\n\tb  c", 10, "a; b c"},
		"joined errors": {"amount: must be > 0, got -1\ncustomer: must be set\n", 80, "amount: must be > 0, got -1; customer: must be set"},
		"a list":        {"2 problems:\n  one\n  two", 80, "2 problems: one; two"},
		"no commands":   {"a\x1b[2Jb", 10, "a\uFFFD[2Jb"},
		"no C1":         {"a\u009b2Jb", 10, "a\uFFFD2Jb"},
		"an error":      {complete, errorWidth, complete},
		"a long error":  {strings.Repeat("x", 500) + ": connection reset by peer", 60, strings.Repeat("x", 29) + "…" + "xxxx: connection reset by peer"},
	} {
		got := OneLine(c.text, c.most)
		require.Equal(t, c.want, got, name)
		require.LessOrEqual(t, utf8.RuneCountInString(got), c.most)
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain é": "plain é", "": "", "a\nb": `"a\nb"`, "\x1b[2J": `"\u001b[2J"`, "a\u009b2J": "\"a\uFFFD2J\"", "\xff": `"\ufffd"`, "tx-\u202egnp": "\"tx-\uFFFDgnp\"",
	} {
		require.Equal(t, want, quoted(text))
	}
}
