package reclaim

import (
	"slices"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// streamsOf returns the streams of the runs with this delivery count, sorted and without repeats.
func streamsOf(runs []run, delivered int64) (streams []string) {
	for _, r := range runs {
		if r.delivered == delivered {
			streams = append(streams, r.stream)
		}
	}
	slices.Sort(streams)
	return slices.Compact(streams)
}

// Each domain of the list is reclaimed, all its shards. Another one is not.
func TestEachDomainOfTheListIsReclaimed(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		domains := []redis.DomainConfig{s.domain("scan", 4), s.domain("chat", 2), s.domain("mail", 1)}
		other := s.domain("other", 1)
		var want []string
		for _, d := range domains {
			s.left(t, d, "killed-9-0", 1)
			for shard := range d.Shards {
				want = append(want, d.Stream(shard))
			}
		}
		s.left(t, other, "killed-9-0", 1)
		in := newInstance(t, s, instanceConfig{domains: domains, minIdle: time.Hour})
		redistest.Eventually(t, "all of the list is acknowledged", func() bool {
			return s.pending(t, domains[0])+s.pending(t, domains[1])+s.pending(t, domains[2]) == 0
		})
		slices.Sort(want)
		require.Equal(t, want, streamsOf(in.ran(), 2))
		require.EqualValues(t, 1, s.pending(t, other))
	})
}

// The readers and the reclaimer have one list: the shards with fresh entries are those with
// reclaimed ones. A stream behind the last shard has neither.
func TestReadersAndReclaimerHaveOneList(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		more := []redis.DomainConfig{s.domain("scan", 3), s.domain("chat", 2)}
		domains := slices.Clone(more)
		var want []string
		for i, d := range more {
			s.left(t, d, "killed-9-0", 1)
			domains[i].Shards-- // as if the settings had one shard less
			for shard := range domains[i].Shards {
				want = append(want, d.Stream(shard))
			}
		}
		in := newInstance(t, s, instanceConfig{domains: domains, minIdle: time.Hour})
		for _, d := range more {
			for shard := range d.Shards {
				s.add(t, d.Stream(shard), "fresh")
			}
		}
		redistest.Eventually(t, "all of the list is acknowledged", func() bool {
			return len(in.ran()) == 2*len(want) && s.pending(t, domains[0])+s.pending(t, domains[1]) == 0
		})
		slices.Sort(want)
		require.Equal(t, want, streamsOf(in.ran(), 1))
		require.Equal(t, want, streamsOf(in.ran(), 2))
	})
}

// A reclaimed entry of flat fields has the stream, the id and the payload that it had at first.
func TestAReclaimedEntryHasItsFirstID(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		d := s.domain("scan", 1)
		d.Fields = true
		in := newInstance(t, s, instanceConfig{
			domains: []redis.DomainConfig{d}, minIdle: 300 * time.Millisecond,
			handle: func(r run) error {
				if r.delivered == 1 {
					return errInjected
				}
				return nil
			},
		})
		id, err := s.client.XAdd(t.Context(), &goredis.XAddArgs{Stream: d.Stream(0), Values: []any{"job_id", "j", "seq", "1"}}).Result()
		require.NoError(t, err)
		redistest.Eventually(t, "handled in the end", func() bool { return len(in.ran()) > 1 && s.pending(t, d) == 0 })
		for _, r := range in.ran() {
			require.Equal(t, run{d.Stream(0), id, `{"job_id":"j","seq":"1"}`, r.delivered}, r)
		}
		redistest.Eventually(t, "it is counted", func() bool { // after the server has taken the ack
			return in.metric(t, "millrace_reclaim_messages_total", map[string]string{"domain": d.Prefix[:strings.Index(d.Prefix, ":")], "shard": "0"}) > 0
		})
	})
}

// The handler of a domain hangs with all that it may have in flight. The other domain is read and
// reclaimed.
func TestADomainThatHangsDelaysNoOther(t *testing.T) {
	eachServer(t, func(t *testing.T, s server) {
		scan, chat := s.domain("scan", 2), s.domain("chat", 2)
		release := make(chan struct{})
		hangs := len(s.left(t, scan, "killed-9-0", 3))
		in := newInstance(t, s, instanceConfig{
			domains: []redis.DomainConfig{scan, chat}, minIdle: time.Hour, slots: 1,
			handle: func(r run) error {
				if strings.HasPrefix(r.stream, scan.Prefix) {
					<-release
				}
				return nil
			},
		})
		t.Cleanup(func() {
			select {
			case <-release:
			default:
				close(release)
			}
		})
		redistest.Eventually(t, "both shards hang", func() bool { return len(streamsOf(in.ran(), 2)) == 2 })
		s.left(t, chat, "killed-10-0", 3)
		for shard := range chat.Shards {
			s.add(t, chat.Stream(shard), "fresh")
		}
		redistest.Eventually(t, "the other domain is read and reclaimed", func() bool {
			return len(in.deliveries("fresh")) == chat.Shards && s.pending(t, chat) == 0
		})
		require.EqualValues(t, hangs, s.pending(t, scan))
		close(release)
		redistest.Eventually(t, "the first goes on", func() bool { return s.pending(t, scan) == 0 })
	})
}
