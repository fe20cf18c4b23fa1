package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
)

// row is one line of the table.
type row struct {
	key     string
	what    string
	against string // the peer, or –
	unit    string // × for a ratio
	goal    float64
	atMost  bool   // the figure must not exceed the goal; otherwise it must reach it
	why     string // the reason if a quiet run falls short
	tried   string // what was tried, in Markdown; it follows the table
}

// pair is one measurement of a row: the product's figure and its peer's in the same run. Without a
// peer the latter is 0.
type pair struct{ ours, peer float64 }

func (p pair) figure() float64 {
	if p.peer == 0 {
		return p.ours
	}
	return p.ours / p.peer
}

// comparison measures one or more rows together.
type comparison struct {
	name    string
	runs    int
	rows    []row
	measure func(ctx context.Context, e *environment, s sizes) (map[string]pair, error)
}

func (c comparison) keys() []string {
	keys := make([]string, len(c.rows))
	for i, r := range c.rows {
		keys[i] = r.key
	}
	return keys
}

// The pages with the tables of the comparisons.
const (
	mainPage = "README.md"
	jobsPage = "jobs.md" // of the event router
	roomPage = "room.md" // of the waiting room
)

// page returns the page that has the rows of the comparison.
func (c comparison) page() string {
	switch {
	case strings.HasPrefix(c.name, "jobs-"):
		return jobsPage
	case strings.HasPrefix(c.name, "room-"):
		return roomPage
	}
	return mainPage
}

// sizes are the counts of the comparisons.
type sizes struct {
	campaign int           // targets of a campaign
	large    int           // targets of a large campaign
	million  int           // targets of the largest one
	stock    int           // targets of the stock flow, which is slow
	slow     int           // targets at a slow Money API
	messages int           // of a stream; a peer gets fewer
	streams  int           // idle streams
	woken    int           // idle streams that get an entry
	quiet    time.Duration // until streams are idle
	observed time.Duration // of an idle instance
	watchers int           // of jobs
	events   int           // per second, of many jobs
	half     time.Duration // of a pair of measurements of jobs
	single   int           // events on an idle system

	users    int           // of a waiting room
	signed   time.Duration // time between two signs of life of a user
	samples  int           // calls of a script
	live     int           // users with a stream
	promoted int           // of them per second
	polling  int           // users that enter without a stream
	rooms    int           // without users
}

func full() sizes {
	return sizes{
		campaign: 100_000, large: 500_000, million: 1_000_000, stock: 10_000, slow: 30_000, messages: 300_000,
		streams: 10_000, woken: 200, quiet: 20 * time.Second, observed: 30 * time.Second,
		watchers: 10_000, events: 5000, half: 12 * time.Second, single: 100,
		users: 1_000_000, signed: 30 * time.Second, samples: 200, live: 10_000, promoted: 300, polling: 50_000, rooms: 100,
	}
}

func quick() sizes {
	return sizes{
		campaign: 500, large: 1000, million: 1000, stock: 100, slow: 500, messages: 3000,
		streams: 50, woken: 10, quiet: time.Second, observed: 2 * time.Second,
		watchers: 100, events: 500, half: 4 * time.Second, single: 10,
		users: 20_000, signed: 3 * time.Second, samples: 20, live: 300, promoted: 20, polling: 500, rooms: 10,
	}
}

// Names of peers in the table.
const (
	bareLoopPeer    = "bare loop"
	stockStreamPeer = "watermill-redisstream"
)

// These texts say what was tried for the rows that fall short.
const (
	triedCPU = `The bare loop has no leases, retries, checks of a promotion, metrics or Router. The product
also passes each payout through several goroutines: the reader, the handler, the batch of the ledger
and the batch of acks. Tried, from 150 µs: larger batches of the ledger, a decoder that takes half
the time, less work per message in the Router. The HTTP client of the standard library takes 25 µs
in both ([why it stays](../../docs/decisions/0023-net-http.md)).`
	triedRate = `All servers, the Money API and the product share two cores, which are busy all the time. So the
rate follows from the CPU of all parts per payout: about 210 µs, and 115 µs in the bare loop. The
two rows of CPU say where the rest is.`
	triedPostgres = `The bare loop changes a row twice. The ledger also stores the announcement, the lease, each
attempt and the totals of the promotion. Tried, from 107 µs: 40 payouts per statement
instead of 20, and a begin that changes no index.`
	triedThree = `Each instance has batches of its own, which are smaller: PostgreSQL needs 40 % more CPU per
payout. Tried: a pause of 10 ms instead of 5 ms between two batches. Three instances are then as
fast as one, and one instance is slower than before.`
	triedLarge = `The stream has 100,000 entries at most. About half of the 500,000 targets find it full, and
the feeder enqueues them later: PostgreSQL needs 40 % more CPU per payout. Tried: more memory and
fewer checkpoints for PostgreSQL, without a change.`
	triedWindow = `All 256 handlers of the window sleep together. Then the cores have 256 records to handle,
for 17 µs each, while few handlers sleep. So the ratio follows the speed of the cores: a faster
machine had 117×. Tried: a run of 300,000 records instead of 60,000, without a change. A seventh of
the CPU is growth of stacks, of the goroutines that wait for acks.`
	triedIdle = `The reads of the streams are a fifth of the CPU. A quarter is the control loop, which compares
the active streams with those that are read, and an eighth are queries of the ledger. The 10,000
streams have 28 MB of the memory, and the pages of the binary 40 MB. The rest is garbage: a reserve
of 40 MB makes the collector run less often, which saves a quarter of the CPU under load. Tried: a
check for dead instances that reads no stream while all live. It halved the commands.`
)

// comparisons returns all comparisons in the order of the table.
func comparisons() []comparison {
	return slices.Concat([]comparison{
		{"path", 3, []row{
			{key: "own-cpu", what: "complete path, 32 slots: own CPU per payout (µs)", against: bareLoopPeer, unit: "×", goal: 1.5, atMost: true,
				why: "guarantees need more work; see below", tried: triedCPU},
			{key: "rate", what: "complete path, default slots: payouts/s", against: bareLoopPeer, unit: "×", goal: 0.6,
				why: "both cores are busy; see below", tried: triedRate},
			{key: "postgres-cpu", what: "complete path, 32 slots: PostgreSQL CPU per payout (µs)", against: bareLoopPeer, unit: "×", goal: 2, atMost: true,
				why: "the ledger stores more; see below", tried: triedPostgres},
			{key: "stock-rate", what: "complete path, default slots: payouts/s", against: "stock Watermill parts", unit: "×", goal: 5},
		}, comparePath},
		{"three", 3, []row{
			{key: "three-rate", what: "three instances: payouts/s", against: "one instance", unit: "×", goal: 1,
				why: "batches are smaller; see below", tried: triedThree},
			{key: "three-cpu", what: "three instances: total CPU per payout (µs)", against: "one instance", unit: "×", goal: 1.2, atMost: true,
				why: "batches are smaller; see below", tried: triedThree},
		}, compareThree},
		{"large", 3, []row{
			{key: "large-rate", what: "500,000 targets: payouts/s", against: "100,000 targets", unit: "×", goal: 0.95,
				why: "the stream overflows; see below", tried: triedLarge},
		}, compareLarge},
		{"consume", 3, []row{
			{key: "consume-local", what: "consume and ack a stream through the Router (per second)", against: stockStreamPeer, unit: "×", goal: 8},
			{key: "consume-far", what: "the same, round trip 1.3 ms", against: stockStreamPeer, unit: "×", goal: 50},
			{key: "stream-allocations", what: "allocations per message: reader of streams, Router and chain", against: "committed table", unit: "×", goal: 1.05, atMost: true},
		}, compareConsume},
		{"publish", 3, []row{
			{key: "publish-1-local", what: "publish from 8 goroutines, 1 message per call (per second)", against: stockStreamPeer, unit: "×", goal: 1,
				why: "both send one XADD per call"},
			{key: "publish-1-far", what: "the same, round trip 1.3 ms", against: stockStreamPeer, unit: "×", goal: 1},
			{key: "publish-50-local", what: "publish from 8 goroutines, 50 messages per call (per second)", against: stockStreamPeer, unit: "×", goal: 4},
			{key: "publish-50-far", what: "the same, round trip 1.3 ms", against: stockStreamPeer, unit: "×", goal: 30},
		}, comparePublish},
		{"window", 3, []row{
			{key: "window", what: "one Kafka partition, 1 ms handler, window 256 (records/s)", against: "watermill-kafka", unit: "×", goal: 100,
				why: "the cores are too slow; see below", tried: triedWindow},
			{key: "kafka-allocations", what: "allocations per record: Kafka reader, Router and chain", against: "committed table", unit: "×", goal: 1.05, atMost: true},
		}, compareWindow},
		{"idle", 1, []row{
			{key: "idle-commands", what: "10,000 idle active streams, profile production: Redis commands", against: none, unit: "/s", goal: 2500, atMost: true},
			{key: "idle-cpu", what: "10,000 idle streams: own CPU, of one core", against: none, unit: " %", goal: 5, atMost: true,
				why: "the control loop looks at each stream; see below", tried: triedIdle},
			{key: "idle-memory", what: "10,000 idle streams: resident memory", against: none, unit: " MB", goal: 100, atMost: true,
				why: "the collector runs rarely; see below", tried: triedIdle},
		}, compareIdle},
		{"wake", 3, []row{
			{key: "wake", what: "enqueue by one instance to begin by another, idle stream, p99", against: none, unit: " ms", goal: 150, atMost: true},
		}, compareWake},
		{"slots", 3, []row{
			{key: "slots", what: "4 instances with 32 slots, API 200 ms: payouts/s, 20–90 %", against: "limit of 640/s", unit: "×", goal: 0.95},
		}, compareSlots},
		{"million", 1, []row{
			{key: "million-paid", what: "1,000,000 targets, API 5 ms: targets with exactly one charge", against: "targets", unit: "×", goal: 1},
			{key: "million-memory", what: "the same: peak memory of the process", against: none, unit: " MB", goal: 300, atMost: true},
			{key: "million-stream", what: "the same: entries in the stream, at most", against: "`max_len`", unit: "×", goal: 1, atMost: true},
		}, compareMillion},
	}, jobComparisons(), roomComparisons())
}

const none = "–"

// compare runs a comparison several times. Each run measures both sides.
func (e *environment) compare(ctx context.Context, c comparison, s sizes, runs int) outcome {
	o := outcome{comparison: c, pairs: map[string][]pair{}}
	for i := range runs {
		began := time.Now()
		fmt.Fprintf(e.log, "\n%s, run %d of %d\n", c.name, i+1, runs)
		pairs, err := c.measure(ctx, e, s)
		if err != nil {
			o.err = fmt.Errorf("%s: %w", c.name, err)
			fmt.Fprintf(e.log, "  %v\n", o.err)
			return o
		}
		for _, r := range c.rows {
			p, ok := pairs[r.key]
			if !ok {
				o.err = fmt.Errorf("%s: the run has no figure for %s", c.name, r.key)
				return o
			}
			o.pairs[r.key] = append(o.pairs[r.key], p)
			fmt.Fprintf(e.log, "  %s: %s\n", r.key, o.lines(r)[0])
		}
		fmt.Fprintf(e.log, "  took %s\n", time.Since(began).Round(time.Second))
	}
	return o
}

// campaigns runs campaigns one after the other and prints their results.
func (e *environment) campaigns(ctx context.Context, list ...campaign) ([]result, error) {
	results := make([]result, len(list))
	for i, c := range list {
		var err error
		if results[i], err = e.pay(ctx, c); err != nil {
			return results, fmt.Errorf("%s: %w", c.label, err)
		}
		fmt.Fprintf(e.log, "  %s: %s\n", c.label, results[i])
	}
	return results, nil
}

// comparePath measures the complete path. The stock flow pays fewer targets, because it is slow.
func comparePath(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	r, err := e.campaigns(ctx,
		campaign{label: bareLoopPeer, targets: s.campaign, peer: "bare"},
		campaign{label: "32 slots", targets: s.campaign, slots: 32},
		campaign{label: "default slots", targets: s.campaign},
		campaign{label: "stock parts", targets: s.stock, peer: "stock"})
	bare, slots32, standard, stock := r[0], r[1], r[2], r[3]
	return map[string]pair{
		"own-cpu":      {micros(slots32.CPU["own"]), micros(bare.CPU["own"])},
		"rate":         {standard.Rate, bare.Rate},
		"postgres-cpu": {micros(slots32.CPU[servers.Postgres]), micros(bare.CPU[servers.Postgres])},
		"stock-rate":   {standard.Rate, stock.Rate},
	}, err
}

func compareThree(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	r, err := e.campaigns(ctx,
		campaign{label: "one instance", targets: s.campaign, slots: 32, joined: true},
		campaign{label: "three instances", targets: s.campaign, slots: 32, joined: true, instances: 3})
	one, three := r[0], r[1]
	return map[string]pair{
		"three-rate": {three.Rate, one.Rate},
		"three-cpu":  {micros(three.CPU["own"]), micros(one.CPU["own"])},
	}, err
}

func compareLarge(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	r, err := e.campaigns(ctx,
		campaign{label: "small campaign", targets: s.campaign, slots: 32},
		campaign{label: "large campaign", targets: s.large, slots: 32})
	return map[string]pair{"large-rate": {r[1].Rate, r[0].Rate}}, err
}

func compareSlots(ctx context.Context, e *environment, s sizes) (map[string]pair, error) {
	const instances, slots, latency = 4, 32, 200 * time.Millisecond
	limit := float64(instances*slots) / latency.Seconds()
	r, err := e.campaigns(ctx, campaign{
		label: "4 instances", targets: s.slow, slots: slots, joined: true, instances: instances, latency: latency,
	})
	return map[string]pair{"slots": {r[0].Middle, limit}}, err
}

// micros returns at least 0.1, because a short run may use less CPU time than a tick of the clock.
func micros(d time.Duration) float64 { return max(0.1, float64(d)/float64(time.Microsecond)) }
