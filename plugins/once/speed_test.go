package once

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once/ledger"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// minuteOf are counts with the same number in each step of a minute.
func minuteOf(perStep int64) ledger.Counts {
	c := ledger.Counts{Seconds: 60}
	for range recentSteps {
		c.Settled, c.Done = append(c.Settled, perStep), append(c.Done, perStep)
	}
	return c
}

// calls is an instance that settles so many effects of acme in each step of 5 s, and as many of others.
func calls(name string, perStep int64, bound string) ledger.Instance {
	took := make([]int64, latencyStep(3*time.Second)+1)
	took[latencyStep(3*time.Second)] = 10
	return ledger.Instance{Name: name, At: noon.Add(-2 * time.Second), Activity: ledger.Activity{
		Bound: bound, Calling: 30, Concurrency: 32, Counts: minuteOf(2 * perStep), Groups: map[string]ledger.Counts{"acme": minuteOf(perStep)}, Took: took, CallSeconds: 31,
		Answers: map[string]int64{"done": 10},
	}}
}

func stops(name string, perStep int64) ledger.Instance {
	i := calls(name, perStep, boundStopped)
	i.Reason, i.Since = "the breaker is open", noon.Add(-time.Minute)
	return i
}

func gone(name string, perStep int64) ledger.Instance {
	i := calls(name, perStep, boundConcurrency)
	i.At, i.Gone, i.Leases, i.LeasesEnd = noon.Add(-50*time.Second), true, 3, noon.Add(30*time.Second)
	return i
}

// with returns an instance after a change.
func with(i ledger.Instance, change func(*ledger.Instance)) ledger.Instance {
	change(&i)
	return i
}

func acme(open int64, change func(*wanted)) wanted {
	w := wanted{kind: "invoice", group: "acme", waiting: open, open: open, plugin: "invoices"}
	if change != nil {
		change(&w)
	}
	return w
}

// The words are about all instances together.
func TestTheWordsOfASpeed(t *testing.T) {
	t.Parallel()
	const more = ". More instances or a higher concurrency make it faster, as far as the far side permits"
	limited := func(w *wanted) {
		w.limits.InForce = ledger.InForce{Limits: ledger.Limits{PerSecond: 20, InFlight: 8}, PerSecondFrom: ledger.FromOperator, InFlightFrom: ledger.FromSettings}
	}
	short := func(seconds float64, settled ...int64) func(*ledger.Instance) {
		return func(i *ledger.Instance) {
			i.Groups = map[string]ledger.Counts{"acme": {Seconds: seconds, Settled: settled, Done: settled}}
		}
	}
	for name, c := range map[string]struct {
		of    wanted
		all   []ledger.Instance
		lines []string
	}{
		"nobody": {acme(100, nil), nil, nil},
		"two instances": {acme(57600, nil), []ledger.Instance{calls("a", 200, boundConcurrency), calls("b", 200, boundConcurrency)}, []string{
			"80/s have ended in the last minute, 80/s of them done; the 57,600 effects that are open end in about 12m at this rate",
			"limited by the concurrency of the kind invoice in plugins.invoices: 60 of 64 calls run, on 2 instances, and a call takes 3.1s" + more,
		}},
		"some failed": {acme(0, nil), []ledger.Instance{with(calls("a", 200, boundNothingDue), func(i *ledger.Instance) {
			i.Groups["acme"] = ledger.Counts{Seconds: 60, Settled: []int64{600}, Done: []int64{60}}
		})},
			[]string{"10/s have ended in the last minute, 1.0/s of them done"}},
		"more are expected": {acme(600, func(w *wanted) { w.missing, w.kind, w.plugin = 56, "parcel", "" }), []ledger.Instance{calls("a", 50, boundConcurrency)}, []string{
			"10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate, without the 56 that are expected and not accepted yet",
			"limited by the concurrency of the kind parcel: 30 of 32 calls run, on 1 instance, and a call takes 3.1s" + more,
		}},
		"one is called for": {acme(1, func(w *wanted) { w.waiting = 0 }), []ledger.Instance{calls("a", 50, boundConcurrency)},
			[]string{"10/s have ended in the last minute, 10/s of them done; the effect that is open ends in about 0s at this rate"}},
		"the limit": {acme(600, limited), []ledger.Instance{calls("a", 50, limitPerSecond)}, []string{
			"10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
			"limited by per_second of the kind invoice, which is 20/s (operator)",
		}},
		"slots": {acme(600, limited), []ledger.Instance{calls("a", 50, limitInFlight)}, []string{
			"10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
			"limited by in_flight of the kind invoice, which is 8 in flight (settings), and a call takes 3.1s",
		}},
		"the far side": {acme(600, nil), []ledger.Instance{calls("a", 50, limitFarSide)}, []string{
			"10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
			"limited by the far side, which has refused calls: they begin at the rate that it answers",
		}},
		"the ledger": {acme(600, nil), []ledger.Instance{calls("a", 50, boundLedger), calls("b", 0, boundLedger), calls("c", 0, boundConcurrency)}, []string{
			"10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
			"limited by the database of the ledger: most of the time goes by with claims, and with answers that are stored, and a call takes 3.1s",
		}},
		"later": {acme(600, nil), []ledger.Instance{calls("a", 50, boundNothingDue)}, []string{
			"10/s have ended in the last minute, 10/s of them done", "limited by nothing that is due: what waits has a later time",
		}},
		"paused": {acme(600, func(w *wanted) { w.held = true }), []ledger.Instance{calls("a", 50, boundPaused)}, []string{"10/s have ended in the last minute, 10/s of them done"}},
		"resumed, and slower": {acme(600, func(w *wanted) { w.resumedFor = 20 * time.Second }), []ledger.Instance{with(calls("a", 200, boundConcurrency), short(60, 10, 10, 10, 10, 10, 1000))}, []string{
			"2.5/s have ended in the 20s since it was resumed, 2.5/s of them done; the 600 effects that are open end in about 4m at this rate",
			"limited by the concurrency of the kind invoice in plugins.invoices: 30 of 32 calls run, on 1 instance, and a call takes 3.1s" + more,
		}},
		"resumed": {acme(600, func(w *wanted) { w.resumedFor = 20 * time.Second }),
			[]ledger.Instance{with(calls("a", 50, boundConcurrency), func(i *ledger.Instance) { i.Concurrency, i.StepSeconds = 30, 5 })}, []string{
				"10/s have ended in the 20s since it was resumed, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
				"limited by the concurrency of the kind invoice in plugins.invoices: 30 of 30 calls run, on 1 instance, and a call takes 3.1s" + more,
			}},
		"too short to know": {acme(600, limited), []ledger.Instance{with(calls("a", 50, limitPerSecond), short(8, 40, 40))},
			[]string{"10/s have ended in the last 8s, 10/s of them done", "limited by per_second of the kind invoice, which is 20/s (operator)"}},
		"too few to know": {acme(600, limited), []ledger.Instance{with(calls("a", 50, limitPerSecond), short(60, 3))},
			[]string{"3.0/min have ended in the last minute, 3.0/min of them done", "limited by per_second of the kind invoice, which is 20/s (operator)"}},
		"none ended": {acme(600, limited), []ledger.Instance{with(calls("a", 50, limitPerSecond), func(i *ledger.Instance) { i.Groups = nil })},
			[]string{"no effect has ended in the last minute", "limited by per_second of the kind invoice, which is 20/s (operator)"}},
		"a limit that only another program knows": {acme(600, nil), []ledger.Instance{with(calls("a", 50, limitInFlight), func(i *ledger.Instance) { i.Groups, i.Took = nil, nil })},
			[]string{"no effect has ended in the last minute", "limited by in_flight of the kind invoice"}},
		"one of many groups": {acme(600, limited), []ledger.Instance{with(calls("a", 50, limitPerSecond), func(i *ledger.Instance) { i.Groups, i.More = nil, true })},
			[]string{"limited by per_second of the kind invoice, which is 20/s (operator)"}},
		"one of many groups for some": {acme(600, limited), []ledger.Instance{with(calls("a", 50, limitPerSecond), func(i *ledger.Instance) { i.Groups, i.More = nil, true }), calls("b", 50, limitPerSecond)}, []string{
			"at least 10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
			"limited by per_second of the kind invoice, which is 20/s (operator)",
		}},
		"one has stopped": {acme(600, limited), []ledger.Instance{calls("a", 50, limitPerSecond), stops("b", 50), stops("c", 50)}, []string{
			"30/s have ended in the last minute, 30/s of them done; the 600 effects that are open end in about 1m at this rate", // that of the others
			"limited by per_second of the kind invoice, which is 20/s (operator)",
		}},
		"all have stopped": {acme(600, limited), []ledger.Instance{stops("a", 50)},
			[]string{"10/s have ended in the last minute, 10/s of them done", "limited by instances that call for nothing"}},
		"one is gone": {acme(600, limited), []ledger.Instance{calls("a", 50, limitPerSecond), gone("b", 50)}, []string{
			"10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
			"limited by per_second of the kind invoice, which is 20/s (operator)",
			"b is gone since 2026-01-31T11:59:10Z: it has 3 leases, which end by 2026-01-31T12:00:30Z",
		}},
		"all are gone": {acme(600, nil), []ledger.Instance{with(gone("a", 50), func(i *ledger.Instance) { i.Leases = 1 }), with(gone("b", 50), func(i *ledger.Instance) { i.Leases = 0 }),
			with(gone("c", 50), func(i *ledger.Instance) { i.At = time.Time{} })}, []string{
			"a is gone since 2026-01-31T11:59:10Z: it has 1 lease, which ends by 2026-01-31T12:00:30Z",
			"b is gone since 2026-01-31T11:59:10Z: it has no lease any more",
			"c is gone, and has told nothing: it has 3 leases, which end by 2026-01-31T12:00:30Z",
		}},
		"the whole kind": {acme(600, func(w *wanted) { w.group = "" }), []ledger.Instance{calls("a", 25, boundLedger)}, []string{
			"10/s have ended in the last minute, 10/s of them done; the 600 effects that are open end in about 1m at this rate",
			"limited by the database of the ledger: most of the time goes by with claims, and with answers that are stored, and a call takes 3.1s",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.lines, speedOf(ledger.Instances{Now: noon, All: c.all}, c.of).lines())
		})
	}
}

// Each instance has a row, and one that is gone shows no numbers as if they were those of now.
func TestTheTableOfInstances(t *testing.T) {
	t.Parallel()
	begun := ledger.Instance{Name: "d", Leases: 2}
	all := ledger.Instances{Now: noon, All: []ledger.Instance{calls("a", 50, boundConcurrency), stops("b", 0), gone("c", 50), begun}}
	s := speedOf(all, acme(600, nil))
	require.Equal(t, operate.Table{
		Columns: []string{"INSTANCE", "STATE", "PER SECOND", "OF THE GROUP", "CALLS", "CALL TAKES", "WAITS FOR"},
		Rows: [][]string{
			{"a", "calls", "20/s", "10/s", "30 of 32", "3.1s", "its own calls"},
			{"b", "calls for nothing: the breaker is open", "0/s", "0/s", "30 of 32", "3.1s", "the far side"},
			{"c", "gone since 2026-01-31T11:59:10Z: it has 3 leases, which end by 2026-01-31T12:00:30Z", "-", "-", "-", "-", "-"},
			{"d", "has begun", "-", "-", "-", "-", "-"},
		},
	}, s.table())
	require.Len(t, speedOf(all, acme(600, func(w *wanted) { w.group = "" })).table().Rows[0], 6)
	require.Equal(t, noon.Add(time.Minute), s.ExpectedEnd)
	require.Equal(t, callsOfMinute{Answers: map[string]int64{"done": 20}, Mean: 3.1, P50: latencyOf(latencyStep(3 * time.Second)).Seconds(), P99: latencyOf(latencyStep(3 * time.Second)).Seconds()}, s.Calls)
}
