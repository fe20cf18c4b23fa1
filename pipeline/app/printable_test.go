package app

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                     "",
		"TX-9 é 漢字 ✓":          "TX-9 é 漢字 ✓",
		"a\x1b[2Jb":            "a\uFFFD[2Jb",
		"a\u009b2Jb":           "a\uFFFD2Jb",
		"paid\nNext: nothing.": "paid\uFFFDNext: nothing.",
		"a\tb\r\x00\x7f":       "a\uFFFDb\uFFFD\uFFFD\uFFFD",
		"tx-\u202egnp":         "tx-\uFFFDgnp",
		"\xff\xfe":             "\uFFFD\uFFFD",
		"line\u2028separator":  "line\uFFFDseparator",
	} {
		require.Equal(t, want, Printable(text), "%q", text)
	}
}

func TestCell(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "TX=9": "TX=9", "timeout": "timeout",
		"=1+1": "'=1+1", "+1": "'+1", "-1": "'-1", "@SUM(A1)": "'@SUM(A1)", "\t=1": "'\uFFFD=1", "\r=1": "'\uFFFD=1", "a\x1bb": "a\uFFFDb",
	} {
		require.Equal(t, want, Cell(text), "%q", text)
	}
}
