package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/demo"
)

// A crowd passes a waiting room of two brokers and two dispatchers, of which one each is killed
// (SIGKILL). No user is overtaken or lost, no slot is lost, and no seat is sold twice. The draw of
// another room is verified from its audit file.
func TestACrowdPassesAWaitingRoomWhileProcessesAreKilled(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"embedded", "redis", "valkey"} {
		t.Run(name, func(t *testing.T) {
			var r demo.Report
			runDemo(t, name, &r, "room", "demo", "--users", "100", "--seats", "40", "--concurrency", "20")
			require.True(t, r.OK(), "%+v", r)
			require.Equal(t, 2, r.Killed)
			require.Equal(t, []int{100, 40}, []int{r.Users, r.Sold})
			require.Zero(t, r.Leases)
			require.Equal(t, demo.Drawn{Users: 50, Commitment: r.Drawn.Commitment}, r.Drawn)
			require.Len(t, r.Drawn.Commitment, 64)
		})
	}
}
