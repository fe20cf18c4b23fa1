package main

import (
	"context"
	"io/fs"
	"net"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/twmb/franz-go/pkg/kfake"
	"go.yaml.in/yaml/v3"

	"github.com/millrace-io/millrace/configs/profiles"
)

// production returns the settings of the streams in the profile production, for streams that stay
// active without work.
func production(streams int) map[string]any {
	var profile struct {
		Plugins struct {
			Promotion struct {
				Stream map[string]any
			}
		}
	}
	check(yaml.Unmarshal(must(fs.ReadFile(profiles.Files(), "production.yaml")), &profile))
	settings := map[string]any{
		"plugins.promotion.stream.idle_timeout":          "1h",
		"plugins.promotion.stream.max_active_promotions": streams + 10,
	}
	for key, value := range profile.Plugins.Promotion.Stream {
		settings["plugins.promotion.stream."+key] = value
	}
	return settings
}

// promotions returns the numbers of n promotions.
func promotions(n int) []int64 {
	numbers := make([]int64, n)
	for i := range numbers {
		numbers[i] = promotion + int64(i)
	}
	return numbers
}

// compareIdle measures an instance whose active streams have no work.
func compareIdle(ctx context.Context, t *trial) {
	settings := production(t.streams)
	settings["plugins.telemetry.listen"] = "127.0.0.1:0"
	r := t.begin(ctx, 8)
	r.simulateMoney(ctx, 0)
	c := campaign{targets: t.streams, settings: settings}
	t.load(ctx, 1, promotions(t.streams)...)
	r.startOne(ctx, c)
	r.settled(ctx, c)
	check(sleep(ctx, t.quiet)) // the reads of idle streams become rare
	active := t.count(ctx, "SELECT count(*) FROM promotion_streams WHERE active")
	expect(active == t.streams, "%d streams are active, %d were expected", active, t.streams)
	commands := func() int64 { return t.redisInfo(ctx, "stats", "total_commands_processed:") }
	sent, began, used := commands(), time.Now(), r.processes[0].cpu()
	check(sleep(ctx, t.observed))
	took, used := time.Since(began).Seconds(), r.processes[0].cpu()-used
	t.figure("idle-commands", float64(commands()-sent)/took)
	t.figure("idle-cpu", 100*used.Seconds()/took)
	t.figure("idle-memory", float64(r.processes[0].memory(resident))/(1<<20))
}

// compareWake measures how soon an instance begins an entry that another one has put into an idle
// stream. The first instance enqueues; its calls fail until its breaker is open. The second one
// pays. Its Kafka is another one, without records.
func compareWake(ctx context.Context, t *trial) {
	enqueues, pays := campaign{settings: production(t.woken)}, campaign{settings: production(t.woken)}
	enqueues.settings["plugins.promotion.money_api.url"] = "http://" + unusedAddress(ctx)
	enqueues.settings["plugins.promotion.money_api.breaker.open_delay"] = "1h"
	elsewhere := must(kfake.NewCluster(kfake.NumBrokers(1)))
	t.cleanup(elsewhere.Close)
	pays.settings["plugins.kafka.brokers"] = elsewhere.ListenAddrs()
	pays.settings["instance_id"] = "payer"
	r := t.begin(ctx, 1)
	r.simulateMoney(ctx, 0)
	// awaitPaid waits until n payouts are paid.
	awaitPaid := func(n int) {
		until(ctx, 100*time.Millisecond, func() bool {
			return t.count(ctx, "SELECT count(*) FROM payouts WHERE promotion_id >= $1 AND state = 'SUCCESS'", promotion) >= n
		})
	}
	// each publishes a record of one target to each promotion, with a pause after each.
	each := func(target int, pause time.Duration) {
		t.send(ctx, func(send sender) {
			for _, number := range promotions(t.woken) {
				send(publishTopic, "", pointRecord(number, target))
				check(sleep(ctx, pause))
			}
		})
	}
	const broken = 1 // promotion whose calls open the breaker
	t.load(ctx, 60, broken)
	r.startOne(ctx, enqueues)
	r.processes[0].await(ctx, "breaker opened")
	r.startOne(ctx, pays)
	each(1, 0)
	awaitPaid(t.woken)
	check(sleep(ctx, t.quiet))
	each(2, 50*time.Millisecond)
	awaitPaid(2 * t.woken)
	rows := must(t.db.Query(ctx, `SELECT extract(epoch FROM attempt_started_at - accepted_at)::float8 * 1000 FROM payouts
		WHERE promotion_id >= $1 AND target_id = 2 AND attempt_by = 'payer'`, promotion))
	waits := must(pgx.CollectRows(rows, pgx.RowTo[float64]))
	expect(len(waits) == t.woken, "the other instance paid %d of %d payouts", len(waits), t.woken)
	t.figure("wake", quantile(waits, 0.99))
}

// unusedAddress returns an address of loopback without a listener.
func unusedAddress(ctx context.Context) string {
	l := must((&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"))
	check(l.Close())
	return l.Addr().String()
}
