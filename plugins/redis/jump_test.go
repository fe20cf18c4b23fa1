package redis_test

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The clock of the server is set forward, and all leases seem to be over. It is set back, and the
// lease of an instance that is gone seems to last for an hour.
func TestTheClockOfTheServerIsSet(t *testing.T) {
	t.Parallel()
	s := redistest.Mini(t)
	c := exclusiveDomain(t, s, 4)
	a, b := c.join(nil), c.join(nil)
	c.shares("2 2", a, b)
	handled := func() {
		for range 20 {
			c.add()
		}
		c.handled()
	}
	s.Mini.SetTime(time.Now().Add(time.Hour))
	handled()
	c.shares("2 2", a, b)
	a.proxy.SetDown(true)
	past := time.Now().Add(-time.Hour)
	s.Mini.SetTime(past)
	redistest.Eventually(t, "no lease ends later than in 5 s", func() bool {
		for n := range 4 {
			until, err := strconv.ParseInt(c.admin.HGet(t.Context(), redis.MetaKey(c.d.Stream(n)), "until").Val(), 10, 64)
			if err != nil || until > past.Add(5*time.Second).UnixMilli() {
				return false
			}
		}
		return true
	})
	s.Mini.SetTime(past.Add(6 * time.Second))
	c.shares("4 0", b, a)
	handled()
	a.proxy.SetDown(false)
	owned := map[int]bool{}
	for _, s := range c.started() {
		require.False(t, s.owned && owned[s.n], "%d had two owners", s.n)
		owned[s.n] = owned[s.n] || s.owned
	}
}
