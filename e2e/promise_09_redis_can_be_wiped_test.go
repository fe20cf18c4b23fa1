package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// FLUSHALL deletes everything in Redis three times while a campaign is paid.
func TestRedisCanBeWiped(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", usual)
	n := targets(t, 4_000)
	w.start()
	w.start()
	w.publish("VOUCHER", n)
	for _, part := range []int{10, 3, 2} {
		w.awaitPaid("VOUCHER", n/part, 5*time.Minute)
		require.NoError(t, w.redis.FlushAll(t.Context()).Err())
	}
	w.awaitSettled("VOUCHER", n, 10*time.Minute)
	w.assertBalanced("VOUCHER", n)
}
