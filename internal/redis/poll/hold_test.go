package poll

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A route may say that its handler takes as long as it likes. The setting is for the others.
func TestARouteWithoutALongestHold(t *testing.T) {
	t.Parallel()
	for hold, kept := range map[time.Duration]bool{-1: true, 0: false, time.Minute: false, 2 * time.Hour: true} {
		o := Options{LongestHandlerHold: hold, Config: Config{MinIdle: time.Minute, LongestHold: 30 * time.Minute}}.withDefaults()
		table := newInflight(&o, NewMetrics())
		since := time.Unix(1_000_000, 0)
		e := &pendingEntry{confirmed: since, since: since, started: true}
		table.entries = map[string]*pendingEntry{"1-1": e}
		require.Equal(t, kept, len(table.renewable(since.Add(time.Hour))) == 1, hold)
	}
}
