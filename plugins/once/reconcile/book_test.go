package reconcile

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/linefile"
)

func readAll(path string) (lines []Line, c Columns, err error) {
	c, err = ReadBook(path, func(_ Columns, l Line) error { lines = append(lines, l); return nil })
	return lines, c, err
}

func TestFormatsOfABook(t *testing.T) {
	t.Parallel()
	want := []Line{
		{Number: 2, Text: "a,b", Group: "acme", Receipt: "r1", Sum: -5, HasSum: true, Times: 1},
		{Number: 4, Text: "17", Times: 3},
	}
	for name, tt := range map[string]struct {
		text    string
		byKey   bool
		ignored []string
	}{
		"CSV":                    {"ID, Receipt ,created,group,sum,times\n\"a,b\",r1,x,acme,-5,\n\n17,,,,,3\n", false, []string{"created"}},
		"CSV of Windows":         {"\xef\xbb\xbfid,receipt,group,sum,times\r\n\"a,b\",r1,acme,-5,\r\n\r\n17,,,,3\r\n", false, nil},
		"CSV without a last end": {"id,receipt,group,sum,times\n\"a,b\",r1,acme,-5,1\n\n17,,,,3", false, nil},
		"by key":                 {"key,receipt,group,sum,times\n\"a,b\",r1,acme,-5,1\n\n17,,,,3", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			lines, c, err := readAll(bookOf(t, t.TempDir(), tt.text))
			require.NoError(t, err)
			require.Equal(t, want, lines)
			require.Equal(t, tt.byKey, c.ByKey)
			require.Equal(t, tt.ignored, c.Ignored)
		})
	}
	lines, c, err := readAll(bookOf(t, t.TempDir(), `{"id":"a,b","receipt":"r1","group":"acme","sum":-5,"x":[1]}
{"id":12345678901234567890,"times":2}

 {"id":"z","sum":null}`))
	require.NoError(t, err)
	require.Equal(t, []Line{
		{Number: 1, Text: "a,b", Group: "acme", Receipt: "r1", Sum: -5, HasSum: true, Times: 1}, {Number: 2, Text: "12345678901234567890", Times: 2},
		{Number: 4, Text: "z", Times: 1},
	}, lines)
	require.Equal(t, []string{"x"}, c.Ignored)
	require.ElementsMatch(t, []string{"id", "receipt", "group", "sum", "times"}, c.Used)
}

// A line that can't be read is named, with what was expected there.
func TestALineThatCannotBeRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                 "line 1: want a header with a column key or id, or one JSON object per line, and the file is empty",
		"receipt,created\n":                "line 1: want a column key (the idempotency key) or id (of the effect in its group), got neither: receipt, created",
		"id,key\n":                         "line 1: want a column key (the idempotency key) or id (of the effect in its group), got both",
		"id,id\n":                          "line 1: want each column once, got id twice",
		"id,sum\n1,2\n\n3\n":               "line 4: want 2 cells, as in the header, got 1",
		"id,sum\n1,2,3\n":                  "line 2: want 2 cells, as in the header, got 3",
		"id,sum\n1,2\n3,1.5\n":             `line 3: want sum as a whole number, got "1.5"`,
		"id,times\n1,0\n":                  `line 2: want times as a whole number from 1 on, got "0"`,
		"id,sum\n,2\n":                     "line 2: want id in every line, and it is missing or empty",
		"id\na\"b\n":                       `line 2: want a line of CSV, where a cell that has a quote or a comma is in double quotes: bare " in non-quoted-field`,
		"id\n\xff\n":                       `line 2: want id in UTF-8, got "\xff"`,
		"id\n" + strings.Repeat("x", 5000): "line 2: want id of at most 4096 bytes, got 5000",
		`{"id":1}` + "\n17\n":              "line 2: want one JSON object, got 17",
		`{"id":1}` + "\nnull\n":            "line 2: want one JSON object, got null",
		`{"id":1} {"id":2}`:                `line 1: want one JSON object, got more after it: {"id":1} {"id":2}`,
		`{"id":1}` + "\n" + `{"key":"a"}`:  "line 2: want id in every line, as the first one has it, got key",
		`{"id":[1]}`:                       "line 1: want id as a text or a whole number, got []interface {}",
		`{"id":1,"sum":"x"}`:               `line 1: want sum as a whole number, got "x"`,
		`{"id":1}` + "\n" + `{"id":""}`:    "line 2: want id in every line, and it is missing or empty",
		`{"id":"` + strings.Repeat("x", 1<<20) + `"}`: "line 1: want one JSON object of at most 1048576 bytes, and the line is longer",
	} {
		path := bookOf(t, t.TempDir(), text)
		_, _, err := readAll(path)
		var wrong *linefile.Error
		require.ErrorAs(t, err, &wrong, text)
		require.EqualError(t, err, path+", "+want)
	}
	_, _, err := readAll(t.TempDir() + "/none")
	require.ErrorIs(t, err, os.ErrNotExist)
}

func FuzzBook(f *testing.F) {
	for _, seed := range []string{"id,sum\n1,2\n", "\xef\xbb\xbfkey\n\"a\nb\"\n", `{"id":1,"times":2}`, "{\n", "id\n\"", "key,group\n,\n"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		lines, _, err := readAll(bookOf(t, t.TempDir(), text))
		if err != nil {
			var wrong *linefile.Error
			require.ErrorAs(t, err, &wrong, "the file can be read, so a line is wrong")
			require.Positive(t, wrong.Line)
		}
		for _, l := range lines {
			require.NotEmpty(t, l.Text)
			require.Positive(t, l.Times)
			require.Positive(t, l.Number)
		}
	})
}
