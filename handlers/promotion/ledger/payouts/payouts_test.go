package payouts

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// Each promotion has one stream, and no other name of a stream is taken for it.
func TestAStreamHasTheNameOfOnePromotion(t *testing.T) {
	for _, id := range []int64{1, 12345, math.MaxInt64} {
		p := Promotion{Type: "POINT", ID: id}
		got, err := PromotionOfStream(p.Type, p.StreamID())
		require.NoError(t, err)
		require.Equal(t, p, got)
	}
	for _, id := range []string{"", "0", "-1", "+1", "007", "1 ", "x", "1e3", "99999999999999999999"} {
		_, err := PromotionOfStream("POINT", id)
		require.ErrorIs(t, err, rules.ErrInvalid, id)
	}
}
