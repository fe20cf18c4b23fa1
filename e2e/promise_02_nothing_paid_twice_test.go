package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// repeats is the number of payouts whose records are sent twice, one after the other.
const repeats = 200

// Three instances share a campaign. Its producer repeats records, so that workers have the same
// payout at once, and their leases alone keep them apart: the Money API honours its keys, and so its
// charges say nothing about that. One instance is killed in the middle of it, and another one starts.
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
			w.set("plugins.promotion.stream.min_idle", "10s").set("plugins.promotion.stream.longest_hold", "10s")
			// A process that stands still keeps its connection, so a lease is longer than it stands.
			w.set("plugins.promotion.money_api.lease_margin", "8s")
			w.set("plugins.reclaim.min_idle", "4s").set("plugins.reclaim.interval", "1s")
			n := targets(t, 4_000)
			instances := []*instance{w.start(), w.start(), w.start()}
			var repeated []string
			for i := range repeats {
				record := point(w.promotion, n+1+i, "100")
				repeated = append(repeated, record, record)
			}
			w.send("campaign-promotion-point-publish", repeated...)
			w.publish("POINT", n)
			w.awaitPaid("POINT", n/4, 5*time.Minute)
			instances[1].kill()
			w.start()
			w.awaitSettled("POINT", n+repeats, 10*time.Minute)
			w.assertBalanced("POINT", n+repeats)
			w.assertLeasesKept("POINT", instances[1])
		})
	}
}

// assertLeasesKept asserts by the Money API's own count that no call of a payout began during
// another one, and that none followed an answer that its caller had received. The killed instance
// has lost the answers that it had not stored, and a caller without CPU has given up on others. The
// ledger has a line about each of both, and the calls behind it are permitted until one is paid.
func (w *deployment) assertLeasesKept(kind string, killed *instance) {
	w.t.Helper()
	require.Zero(w.t, w.api.Summary().Overlaps, "calls began during another call of the same payout")
	const lease = 9 * time.Second // call_timeout and lease_margin
	for _, charges := range w.charges(w.id(kind)) {
		e := charges[0]
		if e.AfterDone == 0 {
			continue
		}
		x, err := w.ledger.Explain(w.t.Context(), payouts.Key{Type: payouts.Type(e.Type), Promotion: e.PromotionID, Target: e.TargetID})
		require.NoError(w.t, err)
		lost, permitted := false, 0
		for _, c := range x.Calls {
			if lost && !c.Late {
				permitted++
			}
			if c.Outcome == payouts.Paid {
				break
			}
			unstored := c.Class == rules.ClassLeaseExpired && c.Instance == killed.name && c.EndedAt.Sub(c.StartedAt) >= lease
			if unstored || !c.Late && c.Status == 0 && (c.Outcome == payouts.PerhapsCharged || c.Outcome == payouts.Unrecognized) {
				lost = true
			}
		}
		require.LessOrEqual(w.t, e.AfterDone, permitted, "%s was called after it was paid: %+v", e.Key, x.Calls)
	}
}
