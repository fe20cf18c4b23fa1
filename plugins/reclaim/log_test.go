package reclaim

import (
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// refusedError is an answer of the server.
type refusedError string

func (e refusedError) Error() string { return string(e) }
func (refusedError) RedisError()     {}

var _ goredis.Error = refusedError("")

// An outage of a thousand streams is a line per minute, and hides no stream that the server refuses.
func TestAnOutageIsALinePerMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(quick(), "me", present())
		d := newDomain(r.Reclaimer, &fakeTarget{})
		for minute := range 3 {
			for range 5 { // rounds
				for i := range 1000 {
					d.failed(Stream{Shard: "0", Name: fmt.Sprint("room:", i)}, io.EOF)
				}
				d.failed(Stream{Shard: "0", Name: "odd"}, refusedError("WRONGTYPE"))
				time.Sleep(12 * time.Second)
			}
			require.Equal(t, minute+1, r.log.Count("the server did not answer"), r.log)
			require.Equal(t, minute+1, r.log.Count("the server refused"), r.log)
			require.Equal(t, minute+1, r.log.Count("stream=odd"))
		}
		require.Equal(t, 6, r.log.Count("level=WARN"))
		require.Zero(t, r.log.Count("level=ERROR"), "the next round tries again")
		require.Equal(t, 2, r.log.Count("times=5000"), r.log)
		require.InDelta(t, 15_015, testutil.ToFloat64(r.opts.metrics.failures.WithLabelValues("domain", "0")), 0)
	})
}

// The same of an outage of the presence, which each round asks for.
func TestAnOutageOfThePresenceIsALinePerMinute(t *testing.T) {
	t.Parallel()
	p := present()
	p.err = io.EOF
	r := newRig(quick(), "me", p)
	d := newDomain(r.Reclaimer, &fakeTarget{})
	for range 5 {
		d.findDead(t.Context(), []*check{{consumers: []goredis.XInfoConsumer{{Name: "other-0"}}}}, map[string]bool{})
	}
	require.Equal(t, 1, r.log.Count("presence of instances could not be read"), r.log)
	require.Equal(t, 1, r.log.Count("error=EOF"), r.log)
}

// A setting that another one raises is named at the start with both values. Nobody has asked for the default.
func TestAMinIdleWithoutEffectIsNamed(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		set, readers time.Duration
		warnings     int
	}{{10 * time.Second, 5 * time.Minute, 1}, {10 * time.Second, 10 * time.Second, 0}, {DefaultConfig().MinIdle, time.Hour, 0}} {
		c := DefaultConfig()
		c.MinIdle = tc.set
		r := newRig(c, "me", present(), &fakeTarget{minIdle: tc.readers}, &fakeTarget{minIdle: tc.readers})
		r.run(t)
		require.Equal(t, tc.warnings, r.log.Count("plugins.reclaim.min_idle has no effect"), r.log)
		require.Equal(t, tc.warnings, r.log.Count("domains=[domain] min_idle=10s min_idle_of_readers=5m0s"), r.log)
		require.Equal(t, tc.warnings, r.log.Count("lower plugins.redis.min_idle"), r.log)
	}
}
