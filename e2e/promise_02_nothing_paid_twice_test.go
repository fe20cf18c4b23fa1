package e2e

import (
	"testing"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// Three instances share a campaign. One is killed in the middle of it, and another one starts.
func TestNothingIsPaidTwice(t *testing.T) {
	t.Parallel()
	for _, redisName := range []string{servers.Redis, servers.Valkey} {
		t.Run(redisName, func(t *testing.T) {
			if redisName == servers.Valkey {
				tier.Rest(t, tier.Promotion)
			} else {
				tier.Default(t)
			}
			w := onServers(t, redisName, usual)
			// Others take over soon what the killed instance had: its partitions, leases and
			// entries.
			w.set("plugins.kafka.session_timeout", "6s")
			w.set("plugins.promotion.stream.min_idle", "4s").set("plugins.promotion.stream.longest_hold", "5s")
			w.set("plugins.reclaim.min_idle", "4s").set("plugins.reclaim.interval", "1s")
			n := targets(t, 4_000)
			instances := []*instance{w.start(), w.start(), w.start()}
			w.publish("POINT", n)
			w.awaitPaid("POINT", n/4, 5*time.Minute)
			instances[1].kill()
			w.start()
			w.awaitSettled("POINT", n, 10*time.Minute)
			w.assertBalanced("POINT", n)
		})
	}
}
