package producer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/producer"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/entry"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// rig is a producer of a domain that no other test uses.
type rig struct {
	*producer.Producer
	t      testing.TB
	client goredis.UniversalClient
	domain redis.DomainConfig
}

func newRig(t testing.TB, s redistest.Server, shards, maxLen int) *rig {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{s.Addr}
	server := redis.New().Server(&own)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	c := s.Client(t)
	domain := redis.DomainConfig{Prefix: redistest.Prefix(t, c) + ":events", Shards: shards, MaxLen: maxLen}
	return &rig{producer.New(server, domain, event.DefaultStages()), t, c, domain}
}

// guard stores the number of shards, as the first router does.
func (r *rig) guard(shards int) {
	r.t.Helper()
	key := "millrace:domain:" + r.domain.Prefix
	require.NoError(r.t, r.client.HSet(context.Background(), key, "shards", shards).Err())
	r.t.Cleanup(func() { r.client.Del(context.Background(), key) })
}

// events returns what a router reads from a shard.
func (r *rig) events(shard int) (list []event.Event) {
	r.t.Helper()
	entries, err := r.client.XRange(context.Background(), r.domain.Stream(shard), "-", "+").Result()
	require.NoError(r.t, err)
	for _, e := range entries {
		msg, err := entry.DecodeFields(e)
		require.NoError(r.t, err)
		stream := r.domain.Stream(shard)
		parsed, err := event.DefaultStages().Parse(msg.Payload, pipeline.Origin{Source: stream, Position: entry.Position(stream, e.ID)})
		require.NoError(r.t, err)
		list = append(list, parsed)
	}
	return list
}

func numbers(events []event.Event) (list []int64) {
	for _, e := range events {
		list = append(list, e.Seq)
	}
	return list
}

func step(job string, seq int64) *event.Event {
	return &event.Event{JobID: job, Stage: "step", Seq: seq, Data: json.RawMessage(`{"a":1}`)}
}

func TestAnEventIsAddedOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, 0)
		first, second := step("a", 1), &event.Event{JobID: "a", Stage: "token"}
		for range 3 {
			require.NoError(t, r.Publish(t.Context(), first, second))
		}
		events := r.events(0)
		require.Equal(t, []int64{1, 0}, numbers(events))
		require.Equal(t, first.EventID, events[0].EventID)
		require.JSONEq(t, `{"a":1}`, string(events[0].Data))
		_, err := time.Parse(time.RFC3339, events[0].Timestamp)
		require.NoError(t, err)
		require.NoError(t, r.Publish(t.Context(), step("a", 2)), "another event")
		require.Equal(t, []int64{1, 0, 2}, numbers(r.events(0)))
		for _, key := range r.client.Keys(t.Context(), "{"+r.domain.Prefix+"*").Val() {
			ttl := r.client.PTTL(t.Context(), key).Val()
			require.Greater(t, ttl, 110*time.Second, key)
			require.LessOrEqual(t, ttl, 2*time.Minute, key)
		}
		require.NoError(t, r.Publish(t.Context()))
	})
}

func TestWorkersOfOneJobGetNumbersWithoutHoles(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, 0)
		var workers sync.WaitGroup
		for range 4 {
			workers.Go(func() {
				for range 25 {
					e := step("a", 0)
					for range 2 {
						if err := r.Publish(t.Context(), e, &event.Event{JobID: "a", Stage: "token"}); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		workers.Wait()
		var want int64
		for _, n := range numbers(r.events(0)) {
			if n > 0 {
				want++
				require.Equal(t, want, n)
			}
		}
		require.EqualValues(t, 100, want)
		ttl := r.client.PTTL(t.Context(), "{"+r.domain.Stream(0)+"}:seq:a").Val()
		require.Greater(t, ttl, 179*time.Minute)
		require.LessOrEqual(t, ttl, 3*time.Hour)
	})
}

// R14: the answer is full, and nothing unread is trimmed.
func TestAFullShardRefuses(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, 3)
		events := []*event.Event{step("a", 0), step("a", 0), step("a", 0), step("a", 0), step("a", 0)}
		require.ErrorIs(t, r.Publish(t.Context(), events...), producer.ErrFull)
		require.Equal(t, []int64{1, 2, 3}, numbers(r.events(0)))
		require.ErrorIs(t, r.Publish(t.Context(), events...), producer.ErrFull)
		require.Equal(t, []int64{1, 2, 3}, numbers(r.events(0)))
		require.NoError(t, r.client.XTrimMaxLen(t.Context(), r.domain.Stream(0), 0).Err())
		require.NoError(t, r.Publish(t.Context(), events...))
		require.Equal(t, []int64{4, 5}, numbers(r.events(0)))
		require.EqualValues(t, 5, events[4].Seq)
	})
}

func TestEventsGoToTheirShards(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 4, 0)
		var events []*event.Event
		for n := range 300 {
			events = append(events, step(fmt.Sprint("job-", n%20), int64(n/20+1)))
		}
		require.NoError(t, r.Publish(t.Context(), events...))
		last, total := map[string]int64{}, 0
		for shard := range 4 {
			for _, e := range r.events(shard) {
				require.Equal(t, shard, event.Shard(e.JobID, 4))
				require.Equal(t, last[e.JobID]+1, e.Seq, "in their order")
				last[e.JobID] = e.Seq
				total++
			}
		}
		require.Equal(t, 300, total)
	})
}

func TestPublishRefuses(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2, 0)
		for class, e := range map[string]*event.Event{
			event.ClassMissingJobID: {Stage: "a"}, event.ClassBadEvent: {JobID: "a}", Stage: "a"}, event.ClassBadSeq: step("a", -1),
		} {
			require.Equal(t, class, pipeline.Class(r.Publish(t.Context(), step("a", 1), e)))
		}
		require.Empty(t, r.events(0))
		require.Empty(t, r.events(1))

		r.guard(3)
		require.ErrorIs(t, r.Publish(t.Context(), step("a", 1)), producer.ErrShards)
		r.guard(2)
		require.NoError(t, r.Publish(t.Context(), step("a", 1)))
	})
}

// The reply of the first call is lost on the wire, after the script ran.
func TestALostReplyAddsNothingTwice(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		proxy := redistest.NewProxy(t, s.Addr)
		r := newRig(t, redistest.Server{Name: s.Name, Addr: proxy.Addr()}, 1, 0)
		r.client = s.Client(t)
		r.guard(1)
		require.NoError(t, r.Publish(t.Context(), step("b", 1)))
		for attempt := 1; ; attempt++ {
			e := step(fmt.Sprint("a-", attempt), 0)
			// A new connection needs an answer before the call.
			proxy.SetDelay(2500 * time.Millisecond)
			proxy.Cut()
			ctx, cancel := context.WithCancel(t.Context())
			published := make(chan error, 1)
			go func() { published <- r.Publish(ctx, e) }()
			redistest.Eventually(t, "it was added", func() bool { return len(r.events(0)) == attempt+1 })
			cancel()
			proxy.SetDown(true)
			err := <-published
			proxy.SetDelay(0)
			proxy.SetDown(false)
			if err == nil && attempt < 5 {
				continue // the machine stood still until the reply was there
			}
			require.Error(t, err)
			require.NoError(t, r.Publish(t.Context(), e))
			require.EqualValues(t, 1, e.Seq)
			require.Equal(t, slices.Repeat([]int64{1}, attempt+1), numbers(r.events(0)))
			break
		}
	})
}

// Room that appears during Publish must not be for events after one that was refused.
func TestAFullShardKeepsTheOrder(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, 150)
		ctx, cancel := context.WithCancel(t.Context())
		var trimming sync.WaitGroup
		trimming.Go(func() {
			for ctx.Err() == nil {
				if n := r.client.XLen(ctx, r.domain.Stream(0)).Val(); n > 0 {
					r.client.XTrimMaxLen(ctx, r.domain.Stream(0), max(0, n-20))
				}
			}
		})
		defer trimming.Wait()
		defer cancel()
		for round := range 20 {
			var events []*event.Event
			for range 1000 {
				events = append(events, step(fmt.Sprint("job-", round), 0))
			}
			require.Eventually(t, func() bool {
				err := r.Publish(t.Context(), events...)
				if err != nil && !errors.Is(err, producer.ErrFull) {
					t.Error(err)
				}
				return err == nil
			}, 2*time.Minute, time.Millisecond)
			for i, e := range events {
				require.EqualValues(t, i+1, e.Seq)
			}
		}
	})
}

// A quiet or transient hour does not begin the numbers again.
func TestEachEventKeepsTheNumberOfItsJob(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, 0)
		r.CounterTTL = 5 * time.Hour
		counter := "{" + r.domain.Stream(0) + "}:seq:a"
		require.NoError(t, r.Publish(t.Context(), step("a", 0)))
		for _, e := range []*event.Event{{JobID: "a", Stage: "token"}, step("a", 0), step("a", 9)} {
			require.NoError(t, r.client.PExpire(t.Context(), counter, time.Minute).Err())
			require.NoError(t, r.Publish(t.Context(), e))
			require.Greater(t, r.client.PTTL(t.Context(), counter).Val(), 299*time.Minute, e.Stage)
		}
	})
}

func TestAnotherEventWithTheSameIDIsRefused(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, 0)
		e := step("a", 0)
		require.NoError(t, r.Publish(t.Context(), e))
		for name, change := range map[string]func(*event.Event){
			"job": func(e *event.Event) { e.JobID = "b" }, "stage": func(e *event.Event) { e.Stage = "done" },
			"seq": func(e *event.Event) { e.Seq = 2 }, "status": func(e *event.Event) { e.Status = "more" },
			"data": func(e *event.Event) { e.Data = nil }, "transient": func(e *event.Event) { e.Stage = "token" },
		} {
			other := *e
			change(&other)
			require.ErrorContains(t, r.Publish(t.Context(), &other, step("a", 0)), e.EventID, name)
		}
		again := *e
		again.Seq, again.Timestamp = 0, ""
		require.NoError(t, r.Publish(t.Context(), &again), "the same content, as after a lost reply")
		require.EqualValues(t, 1, again.Seq)
		require.Len(t, r.events(0), 1)
	})
}
