package promotion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// A campaign whose end is not known says why, and one that has ended has none.
func TestThePageSaysWhyNoEndIsExpected(t *testing.T) {
	t.Parallel()
	stopped := &campaign.Rate{NotTaking: map[string]string{"a": "breaker open"}}
	for _, tt := range []struct {
		want    string
		state   rules.GroupState
		pending int64
		rate    *campaign.Rate
	}{
		{"–", rules.GroupRunning, 0, nil},
		{"paused", rules.GroupPaused, 7, stopped},
		{"unknown: breaker open", rules.GroupRunning, 7, stopped},
		{"unknown", rules.GroupRunning, 7, nil},
	} {
		require.Equal(t, tt.want, endCell(time.Time{}, tt.state, tt.pending, tt.rate).Text)
	}
}
