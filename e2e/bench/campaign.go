package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
)

// campaign is one measurement of the complete path: a promotion, and the processes that pay it.
type campaign struct {
	label     string
	targets   int
	instances int            // of the binary; 0: one
	slots     int            // of each instance; 0: the default
	latency   time.Duration  // of the Money API
	joined    bool           // all instances join their groups before the records are published
	settings  map[string]any // further settings by their dotted paths
	effects   bool           // the binary has a kind of effects for the records instead of promotions, and calls a far side of any kind
	peer      string         // bare or stock runs instead of the binary
	// watch is called while the campaign is paid, about once per second. Nil: not called.
	watch func(ctx context.Context, r *run)
}

// run is a Money API and the processes that call it, on servers that were empty at the start.
type run struct {
	*trial
	dsn, url  string // of the ledger, and of the Money API
	api       *process
	processes []*process
	began     time.Time
}

// begin empties the servers and creates the topics.
func (t *trial) begin(ctx context.Context, partitions int32) *run {
	r := &run{trial: t, dsn: t.empty(ctx)}
	t.createTopics(ctx, partitions, publishTopic)
	t.createTopics(ctx, 1, promotiontype.StartedTopic)
	return r
}

// simulateMoney starts the simulated Money API.
func (r *run) simulateMoney(ctx context.Context, latency time.Duration) {
	r.serve(ctx, r.start("money-api", r.millrace, "money-simulator", "--listen", "127.0.0.1:0", "--json", "--interval", "1h", "--latency", latency.String()))
}

// serve takes the process as what is called.
func (r *run) serve(ctx context.Context, api *process) {
	api.await(ctx, `"url":"`)
	found := regexp.MustCompile(`"url":"(http://[^"]+)"`).FindStringSubmatch(api.out.String())
	expect(found != nil, "no address in %s", api.tail())
	r.api, r.url = api, found[1]
}

// result is the figures of one campaign.
type result struct {
	// Rate is payouts per second from the first accepted to the last settled.
	Rate float64
	// Middle is payouts per second from 20 % to 90 % settled.
	Middle float64
	// CPU is per payout: own (all instances together), and each server.
	CPU  map[string]time.Duration
	Peak int64 // largest memory of a process, in bytes
}

func (r result) String() string {
	text := fmt.Sprintf("%.0f/s (20–90 %%: %.0f/s), CPU per payout in µs:", r.Rate, r.Middle)
	for _, name := range []string{"own", servers.Postgres, servers.Redis, servers.Kafka, "api"} {
		text += fmt.Sprintf(" %s %.1f,", name, r.micros(name))
	}
	return text + fmt.Sprintf(" peak %d MB", r.Peak>>20)
}

func (r result) micros(name string) float64 { return micros(r.CPU[name]) }

const (
	promotion = 12345
	// leastAnnounced gives a smaller campaign the default slots of one with 100,000 targets.
	leastAnnounced = 100_000
)

// campaigns runs campaigns one after the other and prints their results.
func (t *trial) campaigns(ctx context.Context, list ...campaign) (results []result) {
	for _, c := range list {
		t.part(func(t *trial) { results = append(results, t.pay(ctx, c)) })
		t.logf("  %s: %s", c.label, results[len(results)-1])
	}
	return results
}

// pay runs a campaign on empty servers. It refuses the figures if a payout is missing or was
// repeated.
func (t *trial) pay(ctx context.Context, c campaign) (res result) {
	r := t.begin(ctx, 8)
	if c.effects {
		r.serve(ctx, r.start("far-side", r.self, "far-side", "{}"))
	} else {
		r.simulateMoney(ctx, c.latency)
	}
	if !c.joined {
		t.load(ctx, c.targets, promotion)
	}
	for range max(1, c.instances) {
		r.startOne(ctx, c)
	}
	if c.joined {
		check(sleep(ctx, 5*time.Second))
	}
	before := r.cpu()
	r.began = time.Now()
	if c.peer == "" && !c.effects {
		t.announce(ctx, max(c.targets, leastAnnounced))
	}
	if c.joined {
		t.load(ctx, c.targets, promotion)
		r.began = time.Now()
	}
	if err := try(func() { r.settled(ctx, c) }); err != nil {
		for _, p := range r.processes {
			_ = os.WriteFile(filepath.Join(t.dir, p.name+".log"), []byte(p.out.String()), 0o600)
		}
		check(err)
	}
	res.CPU = map[string]time.Duration{}
	for name, d := range r.cpu() {
		res.CPU[name] = (d - before[name]) / time.Duration(c.targets)
	}
	for _, p := range r.processes {
		res.Peak = max(res.Peak, p.memory(peak))
	}
	r.verify(ctx, c, &res)
	return res
}

// startOne runs a process of the campaign until it is ready.
func (r *run) startOne(ctx context.Context, c campaign) {
	name := "instance" + strconv.Itoa(len(r.processes)+1)
	if c.peer != "" {
		p := r.start(name, r.self, c.peer, peerConfig{
			Brokers: r.brokers(), Redis: r.fleet.Addr(servers.Redis), Postgres: r.dsn, API: r.url, Targets: c.targets,
		}.String())
		r.processes = append(r.processes, p)
		p.await(ctx, "running")
		return
	}
	all := map[string]any{
		"environment": "external", "log.format": "json", "instance_id": name,
		"plugins.telemetry.listen": "",
		"plugins.kafka.brokers":    r.brokers(),
		"plugins.redis.addrs":      []string{r.fleet.Addr(servers.Redis)},
	}
	if c.effects {
		maps.Copy(all, r.kindSettings())
	} else {
		maps.Copy(all, r.promotionSettings(c.slots))
	}
	maps.Copy(all, c.settings)
	r.processes = append(r.processes, r.startProduct(ctx, name, all))
}

func (r *run) promotionSettings(slots int) map[string]any {
	all := map[string]any{
		"plugins.promotion.stream.enabled": true,
		"plugins.promotion.ledger.dsn":     r.dsn,
		"plugins.promotion.money_api.url":  r.url,
	}
	if slots > 0 {
		all["plugins.promotion.stream.min_consumers_per_instance"] = slots
		all["plugins.promotion.stream.max_consumers_per_instance"] = slots
	}
	return all
}

// settled waits until all payouts are settled. Each peer prints a line then.
func (r *run) settled(ctx context.Context, c campaign) {
	if c.peer != "" {
		r.processes[0].await(ctx, "settled")
		return
	}
	last := time.Now()
	until(ctx, 100*time.Millisecond, func() bool {
		for _, p := range r.processes {
			p.alive()
		}
		if c.watch != nil && time.Since(last) > time.Second {
			last = time.Now()
			c.watch(ctx, r)
		}
		if c.effects {
			return r.settledEffects(ctx) >= c.targets
		}
		return r.settledCount(ctx) >= c.targets
	})
}

func (e *environment) settledCount(ctx context.Context) int {
	return e.count(ctx, "SELECT coalesce(sum(paid + failed + unknown + cancelled), 0)::bigint FROM promotion_summaries")
}

// cpu returns the CPU time of the processes and servers so far.
func (r *run) cpu() map[string]time.Duration {
	used := map[string]time.Duration{"api": r.api.cpu()}
	for _, p := range r.processes {
		used["own"] += p.cpu()
	}
	for _, name := range []string{servers.Kafka, servers.Redis, servers.Postgres} {
		used[name] = cpuTime(r.fleet.PID(name))
	}
	return used
}

// verify checks that each target was paid by exactly one call, in the ledger and in the journal of
// the Money API. It sets the rates, which are computed from the times in the ledger.
func (r *run) verify(ctx context.Context, c campaign, res *result) {
	var t totals
	var all, middle float64
	n, from := c.targets, "payouts"
	if c.effects && c.peer == "" {
		from = effectRows
	}
	check(r.db.QueryRow(ctx, `
SELECT count(*), count(*) FILTER (WHERE state = 'SUCCESS'), coalesce(sum(attempts), 0)::bigint,
	extract(epoch FROM max(settled_at) - min(accepted_at))::float8,
	extract(epoch FROM percentile_disc(0.9) WITHIN GROUP (ORDER BY settled_at) - percentile_disc(0.2) WITHIN GROUP (ORDER BY settled_at))::float8
FROM `+from).Scan(&t.Rows, &t.Paid, &t.Attempts, &all, &middle))
	check(json.Unmarshal(get(ctx, r.url+"/_sim/summary"), &t))
	res.Rate, res.Middle = float64(n)/all, 0.7*float64(n)/middle
	check(t.balance(n))
}

// get returns the body of an answer.
func get(ctx context.Context, url string) []byte {
	answer, err := http.DefaultClient.Do(must(http.NewRequestWithContext(ctx, http.MethodGet, url, nil)))
	check(err)
	defer answer.Body.Close()
	return must(io.ReadAll(answer.Body))
}

// totals are the counts of the ledger and of the journal of the Money API.
type totals struct {
	Rows, Paid, Attempts int // of the ledger

	Charged       int `json:"executed"`
	Executions    int `json:"executions"`
	DoubleCharged int `json:"doubled"`
}

// balance returns nil if each of n targets was paid by one attempt and one charge.
func (t totals) balance(n int) error {
	if expected := (totals{Rows: n, Paid: n, Attempts: n, Charged: n, Executions: n}); t != expected {
		return fmt.Errorf("refused: the ledger and the Money API have %+v, expected were %+v", t, expected)
	}
	return nil
}

// comparePath measures the complete path. The stock flow pays fewer targets, because it is slow.
func comparePath(ctx context.Context, t *trial) {
	r := t.campaigns(ctx,
		campaign{label: bareLoopPeer, targets: t.campaign, peer: "bare"},
		campaign{label: "32 slots", targets: t.campaign, slots: 32},
		campaign{label: "default slots", targets: t.campaign},
		campaign{label: "stock parts", targets: t.stock, peer: "stock"})
	bare, slots32, standard, stock := r[0], r[1], r[2], r[3]
	t.figure("own-cpu", slots32.micros("own"), bare.micros("own"))
	t.figure("rate", standard.Rate, bare.Rate)
	t.figure("postgres-cpu", slots32.micros(servers.Postgres), bare.micros(servers.Postgres))
	t.figure("stock-rate", standard.Rate, stock.Rate)
}

func compareThree(ctx context.Context, t *trial) {
	r := t.campaigns(ctx,
		campaign{label: "one instance", targets: t.campaign, slots: 32, joined: true},
		campaign{label: "three instances", targets: t.campaign, slots: 32, joined: true, instances: 3})
	t.figure("three-rate", r[1].Rate, r[0].Rate)
	t.figure("three-cpu", r[1].micros("own"), r[0].micros("own"))
}

func compareLarge(ctx context.Context, t *trial) {
	r := t.campaigns(ctx,
		campaign{label: "small campaign", targets: t.campaign, slots: 32},
		campaign{label: "large campaign", targets: t.large, slots: 32})
	t.figure("large-rate", r[1].Rate, r[0].Rate)
}

func compareSlots(ctx context.Context, t *trial) {
	const instances, slots, latency = 4, 32, 200 * time.Millisecond
	r := t.campaigns(ctx, campaign{
		label: "4 instances", targets: t.slow, slots: slots, joined: true, instances: instances, latency: latency,
	})
	t.figure("slots", r[0].Middle, float64(instances*slots)/latency.Seconds())
}
