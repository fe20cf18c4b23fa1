package promotion

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/pipeline/console"
)

// The page of a campaign says what limits its rate in the words of campaign status.
func TestThePageSaysWhatLimitsTheRate(t *testing.T) {
	t.Parallel()
	for limit, shown := range map[string]string{"the calls at once": "the calls at once", "": "–"} {
		stats, ok := speedOf(campaign.Status{Rate: &campaign.Rate{}, LimitedBy: limit}).(console.Stats)
		require.True(t, ok)
		require.Equal(t, "Limited by", stats[1].Name)
		require.Equal(t, shown, stats[1].Cell.Text)
		require.Equal(t, limit, stats[1].Cell.Data)
	}
}
