package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

func TestFindShowsTheShopOfALease(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	require.NoError(t, writeUser(&text, admin.User{User: "ann", State: room.Admitted, Shop: "web\x1b"}))
	require.Regexp(t, `(?m)^shop +web\x{FFFD}$`, text.String())
	text.Reset()
	require.NoError(t, writeUser(&text, admin.User{User: "ann", State: room.Waiting}))
	require.NotContains(t, text.String(), "shop")
}

// The pause after an outage is shown with its rest, because it ends by itself, unlike a hold.
func TestStatusShowsThePauseAfterAnOutage(t *testing.T) {
	t.Parallel()
	open := room.Status{Event: "42", State: "open"}
	paused := open
	paused.Halted, paused.Hold = room.OnHold, 7_200
	sold := paused
	sold.Halted = room.SoldOut
	for want, s := range map[string]room.Status{"open": open, "open, pause after an outage": paused, "open, sold out": sold} {
		require.Equal(t, want, s.Short())
		var text strings.Builder
		require.NoError(t, writeRoom(&text, s))
		if s.Hold > 0 {
			require.Regexp(t, `(?m)^pause after an outage +7\.2s left$`, text.String())
		} else {
			require.NotContains(t, text.String(), "pause")
		}
	}
	held := room.Status{State: "paused", Halted: room.OnHold}
	require.Equal(t, "paused", held.Short())
}
