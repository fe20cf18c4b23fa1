package simulator

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestFatesDependOnSeedKeyAndAttemptOnly(t *testing.T) {
	t.Parallel()
	f := Faults{Latency: time.Millisecond, Jitter: time.Millisecond, FailRate: .2, TimeoutRate: .2, ResetRate: .2, ThrottleRate: .2, Seed: 7}
	other := f
	other.Seed = 8
	bySeed, byAttempt, byKey, bySalt := 0, 0, 0, 0
	for i := range 1000 {
		key := fmt.Sprintf("invoice:1:%d", i+1)
		x := f.fate(key, 1, 0)
		require.Equal(t, x, f.fate(key, 1, 0))
		require.GreaterOrEqual(t, x.latency, time.Millisecond)
		require.Less(t, x.latency, 2*time.Millisecond)
		for _, c := range []struct {
			n *int
			y fate
		}{{&bySeed, other.fate(key, 1, 0)}, {&byAttempt, f.fate(key, 2, 0)}, {&byKey, f.fate(key+"0", 1, 0)}, {&bySalt, f.fate(key, 1, saltLookup)}} {
			if c.y.outcome != x.outcome {
				*c.n++
			}
		}
	}
	for _, n := range []int{bySeed, byAttempt, byKey, bySalt} {
		require.InDelta(t, 800, n, 60, "independent draws among five outcomes differ in four of five cases")
	}
}

func TestRatesAreMet(t *testing.T) {
	t.Parallel()
	f := Faults{FailRate: .02, TimeoutRate: .01, ResetRate: .03, ThrottleRate: .04, RejectRate: .05, Seed: 1}
	counts, rejected := map[outcome]int{}, 0
	const n = 100_000
	for i := range n {
		key := fmt.Sprintf("invoice:1:%d", i+1)
		counts[f.fate(key, 1, 0).outcome]++
		if f.rejects(key) {
			rejected++
		}
	}
	for o, rate := range map[outcome]float64{fail: .02, timeout: .01, reset: .03, throttle: .04, succeed: .90} {
		require.InDelta(t, rate*n, counts[o], 400)
	}
	require.InDelta(t, .05*n, rejected, 400)
}

func TestZeroFaultsDoNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		f := Faults{Seed: rapid.Uint64().Draw(t, "seed")}
		key := rapid.String().Draw(t, "key")
		require.Equal(t, fate{}, f.fate(key, rapid.Uint32().Draw(t, "attempt"), 0))
		require.False(t, f.rejects(key))
		f = Faults{FailRate: 1, RejectRate: 1, Seed: f.Seed}
		require.Equal(t, fail, f.fate(key, 1, 0).outcome)
		require.True(t, f.rejects(key))
	})
}

func TestFaultsJSON(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		d := rapid.Custom(func(t *rapid.T) time.Duration { return time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "d")) })
		r := rapid.Float64Range(0, 1)
		f := Faults{
			Latency: d.Draw(t, "latency"), Jitter: d.Draw(t, "jitter"), RetryAfter: d.Draw(t, "retry"), DownFor: d.Draw(t, "down"),
			FailRate: r.Draw(t, "fail"), TimeoutRate: r.Draw(t, "timeout"), ResetRate: r.Draw(t, "reset"), RejectRate: r.Draw(t, "reject"),
			ThrottleRate: r.Draw(t, "throttle"), Silence: rapid.Bool().Draw(t, "silence"), Down: rapid.Bool().Draw(t, "isDown"),
			Unauthorized: rapid.Bool().Draw(t, "unauthorized"), Seed: rapid.Uint64().Draw(t, "seed"),
		}
		b, err := json.Marshal(f)
		require.NoError(t, err)
		var back Faults
		require.NoError(t, json.Unmarshal(b, &back))
		require.Equal(t, f, back)
	})
	var f Faults
	require.ErrorContains(t, json.Unmarshal([]byte(`{"latencies":"1s"}`), &f), "latencies")
	require.ErrorContains(t, json.Unmarshal([]byte(`{"latency":"soon"}`), &f), "latency")
}

func TestFaultsValidate(t *testing.T) {
	t.Parallel()
	require.NoError(t, Faults{FailRate: .5, TimeoutRate: .5}.Validate())
	nan := 0.0
	nan /= nan
	err := Faults{FailRate: 1.1, TimeoutRate: -1, ResetRate: nan, Latency: -1, Jitter: -1, RetryAfter: -1, DownFor: -1}.Validate()
	for _, name := range []string{"fail_rate", "timeout_rate", "reset_rate", "latency", "jitter", "retry_after", "down_for"} {
		require.ErrorContains(t, err, name+" must")
	}
	require.ErrorContains(t, Faults{FailRate: .6, ThrottleRate: .6}.Validate(), "add up to at most 1")
	_, err = New(invoices(), Config{Faults: Faults{FailRate: 2}})
	require.ErrorContains(t, err, "fail_rate")
	_, err = New(invoices(), Config{KeyTTL: -1})
	require.ErrorContains(t, err, "key ttl")
}
