package reclaim

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The entries of an instance that was killed are claimed by another one.
func TestEntriesOfAFamilyAreClaimedFromADeadInstance(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		dead := newInstance(t, s, instanceConfig{minIdle: time.Hour})
		st := s.stream(t, "a", "", nil)
		s.hold(t, st, dead.name+"-0", 3)
		require.NoError(t, dead.rt.Stop(context.Background()), "its presence ends")
		in := newInstance(t, s, instanceConfig{minIdle: time.Hour, family: &redis.FamilyOptions{
			Name: s.prefix + ":<id>", Group: st.Group, List: func(context.Context) ([]string, error) { return []string{st.Name}, nil },
		}})
		redistest.Eventually(t, "all are claimed", func() bool { return len(in.ran()) == 3 })
		require.Equal(t, []int64{2}, in.deliveries("0"))
	})
}
