package console_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console"
)

func inText(r *rig, accept string) string {
	r.t.Helper()
	answer, text := r.do(http.MethodGet, "/tried", "", "Accept: "+accept)
	require.Equal(r.t, http.StatusOK, answer.StatusCode)
	require.Equal(r.t, "text/plain; charset=utf-8", answer.Header.Get("Content-Type"))
	_, text, found := strings.Cut(text, "UTC\n\n") // the first line has the time
	require.True(r.t, found, text)
	return text
}

// A page is text for who asks for it: what has no place beside the numbers is below them.
func TestAPageIsText(t *testing.T) {
	t.Parallel()
	r := start(t, nil, page(
		loading("routes", pages.Blocks{
			pages.Table{
				Columns: pages.Columns("Route", "State", "Waiting", "From", "Oldest"),
				Rows: [][]pages.Cell{
					{pages.Word("shop.orders"), pages.Word("behind: the oldest message waits for 3m").In(operate.Warn), pages.Count(1204), pages.Word("kafka orders, group shop"), pages.Word("3m ago")},
					{pages.Word("shop.mails"), pages.Word("idle").In(operate.OK), pages.Number(nil), pages.Word("redis mails"), pages.Word("–")},
				},
				Note: "What waits in a Kafka topic includes what is in flight.",
			},
			operateChecks,
		}, nil),
		loading("numbers", pages.Stats{{Name: "Open", Cell: pages.Count(3)}, {Name: "Abandoned", Cell: pages.Number(nil)}}, nil),
		pages.Panel{Name: "slow", Title: "Slow", Asked: true, Load: func(context.Context, pages.Query) (pages.Block, error) { return nil, pages.ErrNothing }},
		loading("drawing", pages.HTML{Source: "<svg></svg>"}, nil),
	))
	require.Equal(t, `Panel routes
Route        Waiting  Oldest
shop.orders    1,204  3m ago
    State: ! behind: the oldest message waits
    for 3m · From: kafka orders, group shop
shop.mails   unknown  –
    State: idle · From: redis mails
What waits in a Kafka topic includes what is
in flight.
!! failure redis: no answer
    To do: start it.

Panel numbers
Open       3
Abandoned  unknown

Slow
It reads the servers only when a person asks
for it, with the button of the page.
`, inText(r, "text/plain; columns=45"))
	wide := inText(r, "text/plain;columns=200, text/html")
	require.Contains(t, wide, "shop.orders  ! behind: the oldest message waits for 3m    1,204  kafka orders, group shop  3m ago\n")
	require.Contains(t, inText(r, "text/plain; columns=45; color=1"), "\x1b[33m    State: ! behind: the oldest message waits\x1b[0m\n\x1b[33m    for 3m")
	require.Contains(t, r.get("/tried"), "<!DOCTYPE html>", "a browser wants no text")
}

var operateChecks = pages.Checks{{Name: "redis", Level: operate.Fail, Text: "no answer", Remedy: "start it"}}

// A text that somebody has written may be long, and costs time by its length only.
func TestALongTextIsCut(t *testing.T) {
	t.Parallel()
	text := console.TextOf("t", pages.Stats{{Name: "Key", Cell: pages.Word(strings.Repeat("k ", 1<<20))}}, 80)
	require.Less(t, len(text), 128<<10)
	require.Contains(t, text, "…\n")
}

// No line is wider than the terminal, and foreign text moves no cursor.
func TestTextStaysInItsColumns(t *testing.T) {
	t.Parallel()
	words := rapid.StringOfN(rapid.RuneFrom([]rune("ab \n\t\x1b\u202e–é")), 0, 300, -1)
	levels := rapid.SampledFrom([]operate.Level{"", operate.OK, operate.Warn, operate.Fail})
	rapid.Check(t, func(t *rapid.T) {
		cell := func() pages.Cell {
			if rapid.Bool().Draw(t, "number") {
				return pages.Count(rapid.Int64().Draw(t, "count"))
			}
			return pages.Word(words.Draw(t, "cell")).In(levels.Draw(t, "level"))
		}
		table := pages.Table{Note: words.Draw(t, "note"), Empty: words.Draw(t, "empty")}
		var stats pages.Stats
		for range rapid.IntRange(1, 12).Draw(t, "columns") {
			table.Columns = append(table.Columns, pages.Column{Title: words.Draw(t, "title")})
			stats = append(stats, pages.Stat{Name: words.Draw(t, "name"), Cell: cell()})
		}
		for range rapid.IntRange(0, 4).Draw(t, "rows") {
			var row []pages.Cell
			for range rapid.IntRange(0, len(table.Columns)).Draw(t, "cells") {
				row = append(row, cell())
			}
			table.Rows = append(table.Rows, row)
		}
		shown := pages.Blocks{
			table, stats, pages.Record{Fields: stats, Folds: []pages.Fold{{Title: words.Draw(t, "fold"), Text: words.Draw(t, "text")}}},
			pages.Text(words.Draw(t, "paragraph")), pages.Checks{{Name: words.Draw(t, "check"), Level: levels.Draw(t, "of a check"), Text: words.Draw(t, "why")}},
		}
		width := rapid.IntRange(40, 120).Draw(t, "width")
		for _, line := range strings.Split(console.TextOf(words.Draw(t, "page"), shown, width), "\n") {
			if n := utf8.RuneCountInString(line); n > width {
				t.Fatalf("%d columns in a terminal of %d: %q", n, width, line)
			}
			if i := strings.IndexFunc(line, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r) }); i >= 0 {
				t.Fatalf("a control character in %q", line)
			}
		}
	})
}
