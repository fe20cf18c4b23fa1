package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// FuzzTargets: each target of a campaign file can be published and decoded again. The first mistake
// ends the file, and its error has the line.
func FuzzTargets(f *testing.F) {
	head := "promotionType,targetId,amount,voucherId\n"
	for _, s := range []string{"", "POINT,7,500,\nVOUCHER,8,,V-1\n", "POINT,7,500,V\n", "POINT,-7,500,\n", "\"POINT\",7,\"5\n00\",\n", "VOUCHER,9,,\"V,\"\"1\"\n", "POINT,7,500\n", "\xef\xbb\xbf"} {
		f.Add(head + s)
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		failed := false
		for target, err := range readCSV(strings.NewReader(text)) {
			require.False(t, failed, "no target comes after a mistake")
			if err != nil {
				failed = true
				require.Regexp(t, `^[1-9][0-9]*: `, err.Error())
				continue
			}
			payload, err := target.of.Encode(1, 2, target.id, target.value)
			require.NoError(t, err)
			p, err := target.of.Decode(payload)
			require.NoError(t, err)
			require.Equal(t, target.id, p.Target)
		}
	})
}
