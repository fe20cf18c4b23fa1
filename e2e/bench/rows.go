package main

import (
	"strings"
	"time"
)

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
	settling time.Duration // after a kill, in which a limit need not be reached
	limited  time.Duration // of the measurement of a limit
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
		streams: 10_000, woken: 200, quiet: 20 * time.Second, observed: 30 * time.Second, settling: 10 * time.Second, limited: 15 * time.Second,
		watchers: 10_000, events: 5000, half: 12 * time.Second, single: 100,
		users: 1_000_000, signed: 30 * time.Second, samples: 200, live: 10_000, promoted: 300, polling: 50_000, rooms: 100,
	}
}

func quick() sizes {
	return sizes{
		campaign: 500, large: 1000, million: 1000, stock: 100, slow: 500, messages: 3000,
		streams: 50, woken: 10, quiet: time.Second, observed: 2 * time.Second, settling: time.Second, limited: 6 * time.Second,
		watchers: 100, events: 500, half: 4 * time.Second, single: 10,
		users: 20_000, signed: 3 * time.Second, samples: 20, live: 300, promoted: 20, polling: 500, rooms: 10,
	}
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

// Names of peers in the table.
const (
	bareLoopPeer    = "bare loop"
	stockStreamPeer = "watermill-redisstream"
	none            = "–"
)

// atLeast is a row whose figure must reach the goal.
func atLeast(key, what, against, unit string, goal float64) row {
	return row{key: key, what: what, against: against, unit: unit, goal: goal}
}

// atMost is a row whose figure must not exceed the goal.
func atMost(key, what, against, unit string, goal float64) row {
	return row{key: key, what: what, against: against, unit: unit, goal: goal, atMost: true}
}

// because gives the reason for a row that falls short, and what was tried.
func (r row) because(why, tried string) row {
	r.why, r.tried = why, tried
	return r
}

// comparisons returns all comparisons in the order of the table.
func comparisons() []comparison {
	const (
		without    = "without that client"
		scriptGoal = 10 // the longest time of a script, in ms
	)
	return []comparison{
		{"path", 3, comparePath, []row{
			atMost("own-cpu", "complete path, 32 slots: own CPU per payout (µs)", bareLoopPeer, "×", 1.5).because("guarantees need more work; see below", triedCPU),
			atLeast("rate", "complete path, default slots: payouts/s", bareLoopPeer, "×", 0.6).because("both cores are busy; see below", triedRate),
			atMost("postgres-cpu", "complete path, 32 slots: PostgreSQL CPU per payout (µs)", bareLoopPeer, "×", 2).because("the ledger stores more; see below", triedPostgres),
			atLeast("stock-rate", "complete path, default slots: payouts/s", "stock Watermill parts", "×", 5),
		}},
		{"three", 3, compareThree, []row{
			atLeast("three-rate", "three instances: payouts/s", "one instance", "×", 1).because("batches are smaller; see below", triedThree),
			atMost("three-cpu", "three instances: total CPU per payout (µs)", "one instance", "×", 1.2).because("batches are smaller; see below", triedThree),
		}},
		{"large", 3, compareLarge, []row{
			atLeast("large-rate", "500,000 targets: payouts/s", "100,000 targets", "×", 0.95).because("the stream overflows; see below", triedLarge),
		}},
		{"effects", 3, compareEffects, []row{
			atLeast("effects-rate", "effects of a kind without Go, from Kafka to the ledger: effects/s", bareLoopPeer, "×", 0.7).because("both cores are busy; see below", triedEffects),
			atMost("effects-cpu", "the same: own CPU per effect (µs)", bareLoopPeer, "×", 1.4).because("guarantees need more work; see below", triedEffects),
			atMost("effects-postgres", "the same: PostgreSQL CPU per effect (µs)", bareLoopPeer, "×", 1.5).because("the ledger stores more; see below", triedEffects),
			atMost("effects-groups", "the same, a group per effect: own CPU per effect (µs)", "one group", "×", 3),
			atMost("effects-three", "the same, three instances: own CPU per effect (µs)", "one instance", "×", 1.1).because("batches are smaller", ""),
			atMost("effects-streams", "the same, three instances, `via: streams`: own CPU per effect (µs)", "`via: ledger`", "×", 1.2),
			atMost("effects-streams-postgres", "the same: PostgreSQL CPU per effect (µs)", "`via: ledger`", "×", 1.2),
		}},
		{"limit", 3, compareLimit, []row{
			atLeast("limit-1", "effects with a limit, from 10 s after a kill, one instance: calls/s", "limit", "×", 0.95),
			atMost("limit-1-most", "the same: most calls/s in 5 s", "limit", "×", 1.01).because("tokens are for a quarter of a second, and a stretch may have those of one more", ""),
			atLeast("limit-4", "the same, four instances: calls/s", "limit", "×", 0.95),
			atMost("limit-4-most", "the same: most calls/s in 5 s", "limit", "×", 1.01).because("tokens are for a quarter of a second, and a stretch may have those of one more", ""),
		}},
		{"refusals", 3, compareRefusals, []row{
			atLeast("refusals-1", "effects without a limit, API of 500/s that refuses more, from 10 s on, one instance: calls/s", "limit of the API", "×", 0.95),
			atMost("refusals-1-share", "the same: refused calls", none, " %", 2),
			atLeast("refusals-4", "the same, four instances: calls/s", "limit of the API", "×", 0.95),
			atMost("refusals-4-share", "the same: refused calls", none, " %", 2),
		}},
		{"consume", 3, compareConsume, []row{
			atLeast("consume-local", "consume and ack a stream through the Router (per second)", stockStreamPeer, "×", 8),
			atLeast("consume-far", "the same, round trip 1.3 ms", stockStreamPeer, "×", 50),
			atMost("stream-allocations", "allocations per message: reader of streams, Router and chain", "committed table", "×", 1.05),
		}},
		{"publish", 3, comparePublish, []row{
			atLeast("publish-1-local", "publish from 8 goroutines, 1 message per call (per second)", stockStreamPeer, "×", 1).because("both send one XADD per call", ""),
			atLeast("publish-1-far", "the same, round trip 1.3 ms", stockStreamPeer, "×", 1),
			atLeast("publish-50-local", "publish from 8 goroutines, 50 messages per call (per second)", stockStreamPeer, "×", 4),
			atLeast("publish-50-far", "the same, round trip 1.3 ms", stockStreamPeer, "×", 30),
		}},
		{"window", 3, compareWindow, []row{
			atLeast("window", "one Kafka partition, 1 ms handler, window 256 (records/s)", "watermill-kafka", "×", 100).because("the cores are too slow; see below", triedWindow),
			atMost("kafka-allocations", "allocations per record: Kafka reader, Router and chain", "committed table", "×", 1.05),
		}},
		{"idle", 1, compareIdle, []row{
			atMost("idle-commands", "10,000 idle active streams, profile production: Redis commands", none, "/s", 2500),
			atMost("idle-cpu", "10,000 idle streams: own CPU, of one core", none, " %", 5).because("the control loop looks at each stream; see below", triedIdle),
			atMost("idle-memory", "10,000 idle streams: resident memory", none, " MB", 100).because("the collector runs rarely; see below", triedIdle),
		}},
		{"wake", 3, compareWake, []row{
			atMost("wake", "enqueue by one instance to begin by another, idle stream, p99", none, " ms", 150),
		}},
		{"slots", 3, compareSlots, []row{
			atLeast("slots", "4 instances with 32 slots, API 200 ms: payouts/s, 20–90 %", "limit of 640/s", "×", 0.95),
		}},
		{"million", 1, compareMillion, []row{
			atLeast("million-paid", "1,000,000 targets, API 5 ms: targets with exactly one charge", "targets", "×", 1),
			atMost("million-memory", "the same: peak memory of the process", none, " MB", 300),
			atMost("million-stream", "the same: entries in the stream, at most", "`max_len`", "×", 1),
		}},

		{"jobs-many", 5, compareManyJobs, []row{
			atLeast("jobs-many-rate", "10,000 jobs with one watcher each: events published per second", "5,000/s", "×", 0.98),
			atMost("jobs-many-p50", "the same: XADD to the client's socket, median", none, " ms", 50),
			atMost("jobs-many-p99", "the same, p99", none, " ms", 150),
			atMost("jobs-many-slow", "the same, p99 of the others with a client that stops reading (ms)", without, "×", 1.5),
			atMost("jobs-many-cpu", "the same: CPU of router and gateway per event", none, " µs", 200),
			atMost("jobs-many-memory", "the same: memory of the gateway per connection", none, " KB", 64),
		}},
		{"jobs-one", 5, compareOneJob, []row{
			atMost("jobs-one-p50", "one job with 10,000 watchers, 1 event/s: XADD to the client's socket, median", none, " ms", 150),
			atMost("jobs-one-p99", "the same, p99", none, " ms", 300),
			atMost("jobs-one-slow", "the same, p99 of the others with a client that stops reading (ms)", without, "×", 1.5),
			atMost("jobs-one-cpu", "the same: CPU of router and gateway per delivered event", none, " µs", 25).because("idle shards cost 10 µs", ""),
			atMost("jobs-one-memory", "the same: memory of the gateway per connection", none, " KB", 64),
		}},
		{"jobs-idle", 1, compareIdleJobs, []row{
			atMost("jobs-idle-p50", "one event on an idle system: XADD to the client's socket, median", none, " ms", 100),
			atMost("jobs-idle-p99", "the same, p99", none, " ms", 150),
		}},

		{"room-million", 1, compareMillionWaiting, []row{
			atLeast("room-enter", "1,000,000 users enter one event: users per second, by script", none, "/s", 5000),
			atMost("room-memory", "1,000,000 users wait: memory of Redis per user", none, " B", 600),
			atMost("room-memory-peak", "the same, at most, with signs of life of all users", none, " B", 600),
			atMost("room-positions", "the same: Redis time per second for ticks, and rank tables of 10 brokers (ms)", "one ZRANK per user", "×", 0.01),
			atMost("room-signs", "the same: Redis time per second for signs of life every 30 s", none, " ms", 500),
			atMost("room-tick-p99", "the same: script of a tick, p99", none, " ms", scriptGoal),
			atMost("room-promotion-p99", "the same: a tick that promotes 200 users, p99", none, " ms", scriptGoal).
				because("it also ranks 1,000,000 users; 6.88 ms with `promote_batch: 100`", ""),
			atMost("room-signs-p99", "the same: script of at most 250 signs of life, p99", none, " ms", scriptGoal),
			atMost("room-claims-p99", "the same: script of 200 claims, p99", none, " ms", scriptGoal),
		}},
		{"room-draw", 1, compareDraw, []row{
			atMost("room-draw-time", "draw of 1,000,000 users of a shuffled pre-queue: duration", none, " s", 60),
			atMost("room-draw-script", "the same: all scripts, p99", none, " ms", scriptGoal),
			atMost("room-restore-p99", "signs of life queue these users: script of 250 signs, p99", none, " ms", scriptGoal),
		}},
		{"room-live", 3, compareLiveRoom, []row{
			atLeast("room-live-enter", "10,000 users open their streams: streams per second", none, "/s", 1000),
			atMost("room-live-p50", "10,000 live streams, 300 promotions per second: script to the client's socket, median", none, " ms", 150),
			atMost("room-live-p99", "the same, p99", none, " ms", 500),
			atMost("room-live-slow", "the same, p99 with clients that stop reading (ms)", "without them", "×", 1.5),
			atMost("room-live-script", "the same: all scripts, p99", none, " ms", scriptGoal),
			atMost("room-live-memory", "the same: memory of the broker per connection", none, " KB", 64),
		}},
		{"room-poll", 3, comparePolling, []row{
			atLeast("room-poll-enter", "users that enter without a stream, over HTTP: users per second", none, "/s", 2000),
		}},
		{"room-idle", 1, compareIdleRooms, []row{
			atMost("room-idle-cpu", "100 events without users: CPU of process and Redis, of one core", none, " %", 2),
		}},
	}
}

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
	triedEffects = `PostgreSQL writes seven rows per effect, and three in the bare loop: the effect is inserted,
claimed and settled, its row in the table of what is due is inserted, moved and deleted, and the totals
get a row per batch. Tried, from 645 effects/s and 800 µs of PostgreSQL: a plan of its own for each
delete from the table of what is due, because the plan of an empty table reads all of a full one; claims
and answers that share a commit; a place for the next call before the answer is stored.`
	triedThree = `Each instance has batches of its own, which are smaller: PostgreSQL needs 40 % more CPU per
payout. Tried: a pause of 10 ms instead of 5 ms between two batches. Three instances are then as
fast as one, and one instance is slower than before. The figures of 26 November 2026 have a second
cause: all settles of a promotion waited for the row of its summary, which took most of the 8 to
11 ms of a settle. [Decision 0031](../../docs/decisions/0031-summary-slots.md) ended that the day
after, so their share of the difference is not measured.`
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
