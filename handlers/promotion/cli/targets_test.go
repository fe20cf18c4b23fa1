package cli

import (
	"fmt"
	"os"
	"path/filepath"
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
