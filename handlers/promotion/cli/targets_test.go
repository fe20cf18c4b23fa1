package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

func TestReadCSV(t *testing.T) {
	t.Parallel()
	const header = "promotionType,targetId,amount,voucherId\n"
	tests := []struct {
		name, in string
		want     []string
		err      string
	}{
		{name: "both types", in: header + "POINT,7,500,\nVOUCHER,8,,V-1\n", want: []string{"POINT 7 500", "VOUCHER 8 V-1"}},
		{name: "no targets", in: header},
		{name: "a byte order mark", in: "\xef\xbb\xbf" + header + "POINT,7,500,\n", want: []string{"POINT 7 500"}},
		{name: "empty file", in: "", err: "1: the file is empty"},
		{name: "wrong header", in: "type,target\nPOINT,7\n", err: "1: the header must be promotionType,targetId,amount,voucherId"},
		{name: "a header without a target", in: "promotionType\nPOINT\n", err: "1: the header must be promotionType,targetId,amount,voucherId"},
		{name: "a column twice", in: "promotionType,targetId,amount,amount\nPOINT,7,5,6\n", err: "1: the header must be promotionType,targetId,amount,voucherId"},
		{name: "only the columns of its types", in: "promotionType,targetId,voucherId\nVOUCHER,8,V-1\n", want: []string{"VOUCHER 8 V-1"}},
		{name: "a type without its column", in: "promotionType,targetId,voucherId\nPOINT,7,\n", err: `2: amount: must be a whole number of minor units, got ""`},
		{name: "other header", in: "a,b,c,d\n", err: "got a,b,c,d"},
		{name: "unknown type", in: header + "POINT,7,500,\npoint,8,500,\n", want: []string{"POINT 7 500"}, err: `3: promotionType: must be one of POINT, VOUCHER`},
		{name: "negative target", in: header + "POINT,-7,500,\n", err: `2: targetId: must be a whole number > 0, got "-7"`},
		{name: "fractional amount", in: header + "POINT,7,0.5,\n", err: `2: amount: must be a whole number of minor units, got "0.5"`},
		{name: "voucher in a point line", in: header + "POINT,7,5,V-1\n", err: `2: voucherId: must be empty for POINT, got "V-1"`},
		{name: "too few columns", in: header + "POINT,7\n", err: "2: wrong number of fields: the columns are promotionType,"},
		{name: "a quote that never ends", in: header + "\"POINT,7,5,\n", err: "extraneous or missing"},
		{name: "semicolons", in: strings.ReplaceAll(header, ",", ";") + "POINT;7;500;\n", err: "separated by semicolons"},
		{name: "tabs", in: strings.ReplaceAll(header, ",", "\t") + "POINT\t7\t500\t\n", err: "separated by tabs"},
		{name: "little-endian UTF-16", in: "\xff\xfep\x00r\x00", err: "1: the file is in UTF-16"},
		{name: "big-endian UTF-16", in: "\xfe\xff\x00p\x00r", err: "1: the file is in UTF-16"},
		{name: "UTF-16 without a mark", in: "p\x00r\x00o\x00", err: "1: the file is in UTF-16"},
		{name: "a separator line", in: "sep=,\n" + header + "POINT,7,500,\n", err: `the line "sep=" is for Excel alone`},
		{name: "another separator line", in: "sep=;\n" + header, err: `the line "sep=" is for Excel alone`},
		{name: "carriage returns", in: strings.ReplaceAll(header+"POINT,7,500,\n", "\n", "\r"), err: "carriage return alone"},
		{name: "carriage returns and line feeds", in: strings.ReplaceAll(header+"POINT,7,500,\n", "\n", "\r\n"), want: []string{"POINT 7 500"}},
		{name: "an emptied row", in: header + "POINT,7,500,\n,,,\n", want: []string{"POINT 7 500"}, err: "(the line is empty"},
		{name: "a short emptied row", in: header + "POINT,7,500,\n,,\n", want: []string{"POINT 7 500"}, err: "3: wrong number of fields: the columns are promotionType,targetId,amount,voucherId (the line is empty"},
		{name: "emptied columns", in: "promotionType,targetId,amount,,\nPOINT,7,5,,\n", err: "(empty columns follow it"},
		{name: "Ctrl-Z", in: header + "POINT,7,500,\n\x1a", want: []string{"POINT 7 500"}, err: "Ctrl-Z"},
		{name: "blanks", in: header + "POINT, 7,500,\n", err: `2: targetId: must be a whole number > 0, got " 7" (a field has blanks around it`},
		{name: "case of a column", in: "PromotionType,TargetID,amount\nPOINT,7,5\n", err: "(the names of columns are without blanks, and upper and lower case count)"},
		{name: "blanks in the header", in: "promotionType, targetId, amount\nPOINT,7,5\n", err: "(the names of columns are without blanks"},
		{name: "a column that nobody knows", in: "promotionType,targetId,amounts\n", err: "got promotionType,targetId,amounts"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			var got []string
			var failed error
			for target, err := range readCSV(strings.NewReader(tt.in)) {
				require.NoError(t, failed, "it went on after an error")
				if err != nil {
					failed = err
					continue
				}
				got = append(got, fmt.Sprint(target.of.Name, " ", target.id, " ", target.value))
			}
			require.Equal(t, tt.want, got)
			if tt.err == "" {
				require.NoError(t, failed)
			} else {
				require.ErrorContains(t, failed, tt.err)
			}
		})
	}
}

func TestCSVErrorsNameFileAndLine(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "campaign.csv")
	require.NoError(t, os.WriteFile(path, []byte("promotionType,targetId,amount,voucherId\nPOINT,x,5,\n"), 0o600))
	reported := 0
	for _, err := range fromCSV(path) {
		reported++
		require.ErrorContains(t, err, path+": line 2: targetId")
	}
	for _, err := range fromCSV(path + ".missing") {
		reported++
		require.ErrorContains(t, err, "no such file")
	}
	require.Equal(t, 2, reported)
}

func TestGeneratedTargetsRepeatWithTheirSeed(t *testing.T) {
	t.Parallel()
	collect := func(seed uint64) (all []string) {
		for target, err := range generated(50, seed, promotiontype.All()...) {
			require.NoError(t, err)
			_, err = target.of.Encode(1, 1, target.id, target.value)
			require.NoError(t, err)
			all = append(all, fmt.Sprint(target.of.Name, target.id, target.value))
		}
		return all
	}
	require.Len(t, collect(1), 50*len(promotiontype.All()))
	require.Equal(t, collect(1), collect(1))
	require.NotEqual(t, collect(1), collect(2))
}

// A campaign of standard input can be read more than once, and its copy is removed at the end.
func TestACampaignIsReadFromStandardInput(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cmd := &cobra.Command{}
	cmd.SetIn(strings.NewReader("promotionType,targetId,amount,voucherId\nPOINT,7,500,\nVOUCHER,8,,V-1\n"))
	source, remove, err := readSource(cmd, "-")
	require.NoError(t, err)
	for range 2 {
		var read []string
		for target, err := range source.targets {
			require.NoError(t, err)
			read = append(read, fmt.Sprint(target.of.Name, " ", target.id, " ", target.value))
		}
		require.Equal(t, []string{"POINT 7 500", "VOUCHER 8 V-1"}, read)
	}
	require.Equal(t, map[string]int64{"POINT": 1, "VOUCHER": 1}, source.counts)
	remove()
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left)

	cmd.SetIn(strings.NewReader("nonsense\n"))
	_, _, err = readSource(cmd, "-")
	require.ErrorContains(t, err, "the header must be promotionType")
	left, err = os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left, "also after an error")
}

// An error without a known habit names none.
func TestOtherErrorsOfACampaignFileNameNoHabit(t *testing.T) {
	t.Parallel()
	require.Empty(t, headerHabit([]string{"promotionType", "targetId", "amounts"}))
	require.Empty(t, headerHabit([]string{"targetId", "promotionType", "amount"}))
	require.Empty(t, lineHabit([]string{"POINT", "-7", "500", ""}))
	require.Empty(t, withHabit(""))
}

// A target may be there twice with one value, which is paid once. With two values only the first would
// be paid, so the file is refused.
func TestATargetThatIsThereTwice(t *testing.T) {
	t.Parallel()
	const header = "promotionType,targetId,amount,voucherId\n"
	read := func(lines string) (targetSource, error) {
		path := filepath.Join(t.TempDir(), "campaign.csv")
		require.NoError(t, os.WriteFile(path, []byte(header+lines), 0o600))
		return fileSource(path)
	}
	for lines, want := range map[string]string{
		"POINT,9,5,\nPOINT,8,5,\nPOINT,9,6,\n":     `lines 2 and 4: 9 of POINT is there twice, with amount "5" and "6"`,
		"VOUCHER,9,,A\nPOINT,9,5,\nVOUCHER,9,,B\n": `lines 2 and 4: 9 of VOUCHER is there twice, with voucherId "A" and "B"`,
		"POINT,123,5,\nPOINT,00123,6,\n":           `lines 2 and 3: 00123 of POINT is there twice`,
	} {
		_, err := read(lines)
		require.ErrorContains(t, err, want)
	}
	s, err := read("POINT,9,5,\nPOINT,9,5,\nVOUCHER,9,,A\n")
	require.NoError(t, err)
	require.EqualValues(t, 2, s.distinct)
	require.Empty(t, s.notes)
	s, err = read("POINT,00123,5,\nPOINT,7,5,\nPOINT,123,5,\nPOINT,+8,5,\n")
	require.NoError(t, err)
	require.EqualValues(t, 3, s.distinct)
	require.Len(t, s.notes, 1)
	require.Contains(t, s.notes[0], "lines 2 and 4: 00123 and 123 are the same target of POINT")
}

// The check of a file of millions of lines needs a few bytes per line, also for the few targets that
// are there twice.
func TestTheCheckOfALargeFileNeedsLittleMemory(t *testing.T) { //nolint:paralleltest // it measures the heap, so nothing else may run
	const lines, bytesPerLine = 200_000, 24
	point, known := promotiontype.ByName("POINT")
	require.True(t, known)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most, reads := heap(), int64(0), 0
	s, err := checkedSource("campaign.csv", func(yield func(target, error) bool) {
		reads++
		for i := range int64(lines) {
			if i == lines-1 {
				most = max(most, heap()-before)
			}
			id := max(100, i*7919%lines) // every id above 100 once, out of order
			if !yield(target{of: point, id: id, written: written{value: strings.Clone("500"), line: int(i) + 2}}, nil) {
				return
			}
		}
	})
	require.NoError(t, err)
	require.Equal(t, 2, reads)
	require.EqualValues(t, lines-100, s.distinct)
	require.Equal(t, map[string]int64{"POINT": lines}, s.counts)
	require.Less(t, most, int64(lines*bytesPerLine))
}
