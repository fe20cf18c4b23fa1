package e2e

import (
	"testing"
	"time"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// The flag routes fresh records; the stream side runs on while there is work.
func TestTheFlag(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Promotion)
	t.Run("off", func(t *testing.T) {
		w := onServers(t, "redis", usual)
		w.set("plugins.promotion.stream.enabled", false)
		w.start()
		w.publish("POINT", 2_000)
		w.awaitSettled("POINT", 2_000, 3*time.Minute)
		w.assertBalanced("POINT", 2_000)
	})
	t.Run("switched while a campaign runs", func(t *testing.T) {
		w := onServers(t, "redis", simulator.Faults{Latency: 20 * time.Millisecond, FailRate: 0.02, Seed: 2})
		in := w.start()
		w.publish("VOUCHER", 3_000)
		w.awaitPaid("VOUCHER", 300, time.Minute)
		for _, next := range []struct {
			enabled bool
			targets int
		}{{false, 4_000}, {true, 5_000}} {
			in.terminate()
			w.set("plugins.promotion.stream.enabled", next.enabled)
			in = w.start()
			w.publish("VOUCHER", next.targets)
		}
		w.awaitSettled("VOUCHER", 5_000, 5*time.Minute)
		w.assertBalanced("VOUCHER", 5_000)
	})
}
