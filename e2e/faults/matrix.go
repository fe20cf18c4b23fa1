package faults

import (
	"slices"

	"github.com/millrace-io/millrace/internal/failpoint"
)

// Groups of faults, as the table of results has them.
const (
	GroupKill     = "kill -9"
	GroupFrozen   = "frozen worker"
	GroupShutdown = "shutdown"
	GroupRedis    = "Redis"
	GroupKafka    = "Kafka"
	GroupPostgres = "PostgreSQL"
	GroupMoney    = "Money API"
	GroupPerson   = "a person"
	GroupPoison   = "poison"
)

// Fault is one line of the matrix.
type Fault struct {
	Name  string // group/what, unique
	Group string
	Says  string // for people
	// Points are where processes are lost; for pairs the plan draws two of them.
	Points []failpoint.Point
	Pair   bool
	Of     string // the Kind of its cases; empty: the plan draws a type of promotions
}

// Effect is the Kind of the cases of OfEffects.
const Effect = "EFFECT"

// Matrix is every fault that is tried.
func Matrix() []Fault {
	var all []Fault
	for _, p := range failpoint.Points() {
		all = append(all, Fault{Name: "kill/" + string(p), Group: GroupKill, Says: "at " + string(p), Points: []failpoint.Point{p}})
	}
	for _, n := range []string{"1", "2", "3", "4", "5", "6"} {
		all = append(all, Fault{Name: "kill/pair-" + n, Group: GroupKill, Says: "at a random pair of points", Points: pairable(failpoint.Points()), Pair: true})
	}
	for _, f := range []struct{ name, group, says string }{
		{"frozen/before-the-call", GroupFrozen, "SIGSTOP between SENDING and the call until the lease is gone, then woken"},
		{"frozen/after-the-call", GroupFrozen, "SIGSTOP after the call until the lease is gone, then woken"},
		{"frozen/in-a-transaction", GroupFrozen, "SIGSTOP in a transaction of the ledger, a pause behind it, another campaign, then woken"},
		{"frozen/clean-up", GroupFrozen, "SIGSTOP in the clean-up of a drained stream until it has entries again"},
		{"shutdown/sigterm", GroupShutdown, "SIGTERM under load"},
		{"shutdown/rolling", GroupShutdown, "rolling restart of three instances"},
		{"redis/restart", GroupRedis, "restart"},
		{"redis/flushall", GroupRedis, "FLUSHALL"},
		{"redis/flushall-inflow", GroupRedis, "FLUSHALL while records keep coming"},
		{"redis/client-kill", GroupRedis, "CLIENT KILL"},
		{"redis/slow", GroupRedis, "slow by 50 ms"},
		{"redis/answers-cut", GroupRedis, "answers cut off after the command ran"},
		{"redis/failover", GroupRedis, "primary replaced by a replica that lacks the last second"},
		{"redis/oom", GroupRedis, "OOM refusal"},
		{"redis/oom-long", GroupRedis, "OOM refusal for 40 s, with acknowledged entries on the stream"},
		{"redis/refused-key", GroupRedis, "the key of one campaign's stream is a string, another campaign on the same partitions"},
		{"kafka/restart", GroupKafka, "broker restart"},
		{"kafka/kill", GroupKafka, "broker killed, its coordinator loaded again"},
		{"kafka/coordinator", GroupKafka, "coordinator moved to another broker, and back"},
		{"kafka/rebalance-storm", GroupKafka, "rebalance storm"},
		{"kafka/produce-errors", GroupKafka, "produce errors"},
		{"kafka/duplicates", GroupKafka, "a duplicate delivery of 10 % of records"},
		{"kafka/held-back", GroupKafka, "an instance killed while one record holds back the offsets of those behind it"},
		{"kafka/compressed", GroupKafka, "a campaign compressed a hundredfold, with records of 900 kB"},
		{"postgres/restart", GroupPostgres, "restart"},
		{"postgres/terminate", GroupPostgres, "pg_terminate_backend"},
		{"postgres/read-only", GroupPostgres, "switchover to a server that takes no writes, and back"},
		{"postgres/locks", GroupPostgres, "locks held 10 s"},
		{"postgres/full-pool", GroupPostgres, "a full pool"},
		{"money/fail", GroupMoney, "5 % 500"},
		{"money/cut-off", GroupMoney, "5 % charged, then cut off"},
		{"money/throttled", GroupMoney, "429 with Retry-After"},
		{"money/unauthorized", GroupMoney, "401 for a while"},
		{"money/silence", GroupMoney, "silence"},
		{"money/down", GroupMoney, "down for a while"},
		{"money/poison-answers", GroupMoney, "1 % of payouts: always 403, 404, 429 or lookups 410"},
		{"person/pause-resume", GroupPerson, "pause and resume under load"},
		{"person/cancel", GroupPerson, "cancel under load"},
		{"person/flag", GroupPerson, "flag switched under load"},
		{"poison/undecodable", GroupPoison, "undecodable, one in a hundred"},
		{"poison/unknown-type", GroupPoison, "unknown type, one in a hundred"},
		{"poison/large", GroupPoison, "1 MiB, one in a hundred"},
		{"poison/limit", GroupPoison, "just under the topic's size limit"},
		{"poison/panic", GroupPoison, "handler panic, one in a hundred"},
		{"poison/hang", GroupPoison, "handler that never returns, one in a hundred"},
	} {
		all = append(all, Fault{Name: f.name, Group: f.group, Says: f.says})
	}
	return all
}

func pairable(points []failpoint.Point) []failpoint.Point { return slices.DeleteFunc(points, seldom) }

// OfEffects is what is tried with kinds of effects: the faults of the matrix that are not about streams, retry
// topics or the types of promotions, at the points that an effect passes.
func OfEffects() []Fault {
	points := failpoint.EffectPoints()
	others := []string{
		"frozen/before-the-call", "frozen/after-the-call", "shutdown/sigterm", "shutdown/rolling",
		"redis/restart", "redis/flushall", "redis/client-kill", "redis/slow", "redis/answers-cut", "redis/failover",
		"redis/oom", "kafka/restart", "kafka/kill", "kafka/coordinator", "kafka/rebalance-storm",
		"kafka/produce-errors", "kafka/duplicates", "kafka/held-back", "postgres/restart", "postgres/terminate", "postgres/read-only",
		"postgres/locks", "postgres/full-pool", "money/fail", "money/cut-off", "money/throttled", "money/unauthorized", "money/silence",
		"money/down", "person/pause-resume", "person/cancel", "poison/undecodable", "poison/large",
	}
	all := slices.DeleteFunc(Matrix(), func(f Fault) bool {
		return !f.Pair && !slices.Contains(others, f.Name) && !(len(f.Points) == 1 && slices.Contains(points, f.Points[0]))
	})
	all = append(all, Fault{Name: "kill/" + string(failpoint.Told), Group: GroupKill, Says: "at " + string(failpoint.Told), Points: []failpoint.Point{failpoint.Told}})
	all = append(all, Fault{Name: "poison/conflict", Group: GroupPoison, Says: "a known key with another request, one in a hundred"})
	for i := range all {
		all[i].Of = Effect
		if all[i].Pair {
			all[i].Points = points
		}
	}
	return all
}
