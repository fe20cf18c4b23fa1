package poll

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The polls of many idle streams come in few groups, and none comes later than a tenth of the poll
// interval.
func TestIdlePollsAreDueTogether(t *testing.T) {
	for _, interval := range []time.Duration{100 * time.Millisecond, 5 * time.Second, time.Hour} {
		p := &poller{shared: &shared{opts: &Options{Config: Config{PollInterval: interval}}}, idle: interval}
		due := map[time.Duration]bool{}
		for range 10_000 {
			now, wait := rand.N(interval), p.nextWait()
			at := roundUp(now+wait, wait/pollSteps)
			due[at] = true
			require.GreaterOrEqual(t, at-now, interval)
			require.LessOrEqual(t, at-now, interval+interval/10)
		}
		require.LessOrEqual(t, len(due), 3*pollSteps)
	}
	require.Equal(t, 17*time.Nanosecond, roundUp(17, 0))
}
