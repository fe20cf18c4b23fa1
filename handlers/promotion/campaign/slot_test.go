package campaign

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// busyAPI is a Money API whose slots are all taken, and which must not be called.
type busyAPI struct{ money.API }

func (busyAPI) Slot(ctx context.Context) (release func(), err error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

type busyResources struct{ Resources }

func (busyResources) API() money.API { return busyAPI{} }

// A person who asks has no more calls than a payout, because payouts share the throttle of the API with them.
func TestALookupTakesASlot(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		e := Env{Resources: busyResources{}, Settings: func() Settings { return Settings{} }}
		answer := e.lookUp(t.Context(), ledger.Explanation{})
		require.Equal(t, "not_sent", answer.Answer)
		require.Contains(t, answer.Text, "no call slot")
		require.Error(t, answer.contradicts(resolution{unpaid: true}), "nobody was asked")
	})
}
