package redistest_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// Whatever a test waits for, the time in which its process runs excuses nothing.
func TestAProcessThatRunsHasNotStoodStill(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		stood := redistest.StoodStill(t, 100*time.Millisecond)
		for range 10 {
			time.Sleep(time.Minute + 7*time.Millisecond)
			require.Zero(t, stood())
		}
	})
}
