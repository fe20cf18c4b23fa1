package app

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/internal/terminaltest"
)

const wideTable = "GROUPS\n\nID\tROUTE\tCOUNT\tERROR\n" +
	"01M8HY59QWGK3418H00W74Z5D0\tpromotion.point.accept\t12\tthe service has answered with status 503 to every call of the last minute\n" +
	"2\tshop\t3\tgone\n\nNext: replay them.\n"

// A terminal gets no line that is wider than itself, and no cell loses a character.
func TestATableFitsItsTerminal(t *testing.T) {
	t.Parallel()
	person, screen := terminaltest.Open(t)
	w := Table(screen)
	fmt.Fprint(w, wideTable)
	require.NoError(t, w.Flush())
	fmt.Fprintln(screen, "end")
	var got strings.Builder
	for line := ""; line != "end\n"; {
		got.WriteString(line)
		read, err := person.ReadString('\n')
		require.NoError(t, err)
		line = strings.ReplaceAll(read, "\r", "")
	}
	require.Equal(t, `GROUPS

ID                          ROUTE                   COUNT  ERROR
01M8HY59QWGK3418H00W74Z5D0  promotion.point.accept  12     the service has
                                                           answered with status
                                                           503 to every call of
                                                           the last minute
2                           shop                    3      gone

Next: replay them.
`, got.String())
}

// What is no terminal gets whole lines.
func TestAPipedTableHasWholeLines(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	w := Table(&out)
	fmt.Fprint(w, wideTable)
	require.NoError(t, w.Flush())
	require.Contains(t, out.String(), "\n01M8HY59QWGK3418H00W74Z5D0  promotion.point.accept  12     the service has answered with status 503 to every call of the last minute\n")
}

// Of many columns a narrow terminal shows records, without what is empty.
func TestTooManyColumnsAreRecords(t *testing.T) {
	t.Parallel()
	header := strings.Repeat("A LONG COLUMN\t", 8) + "LAST"
	row := strings.Repeat("a value that is long\t", 2) + strings.Repeat("\t", 6) + "the last value, which is longer than a line of the terminal has characters"
	require.Equal(t, `A LONG COLUMN  a value that is long
A LONG COLUMN  a value that is long
LAST           the last value, which is longer
               than a line of the terminal has
               characters

A LONG COLUMN  b
`, fitted(header+"\n"+row+"\nb\t\n", 48))
}

func TestEveryTableFits(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		columns := rapid.IntRange(30, 120).Draw(t, "columns")
		cell := rapid.StringMatching(`[a-zé:/ -]{0,60}`)
		n := rapid.IntRange(2, 9).Draw(t, "n")
		rows := rapid.SliceOfN(rapid.SliceOfN(cell, n, n), 1, 5).Draw(t, "rows")
		text := strings.TrimSuffix(strings.Repeat("NAME\t", n), "\t") + "\n"
		for _, row := range rows {
			text += strings.Join(row, "\t") + "\n"
		}
		got := fitted(text, columns)
		for line := range strings.Lines(got) {
			require.LessOrEqual(t, utf8.RuneCountInString(line)-1, columns, got)
		}
		count := func(s string) int { return strings.Count(s, "e") + strings.Count(s, "é") + strings.Count(s, ":") }
		require.Equal(t, count(text), count(got), "nothing is cut off")
	})
}
