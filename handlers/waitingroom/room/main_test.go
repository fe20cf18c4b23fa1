package room

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// rig is the room of an event that no other test uses.
type rig struct {
	t      testing.TB
	ctx    context.Context
	client *goredis.Client
	rooms  *Store
	event  string
}

func options() Options {
	return Options{
		PromoteInterval: time.Second, PromoteBatch: 200, TokenTTL: 5 * time.Minute, ReadyTTL: 2 * time.Minute,
		Grace: 2 * time.Minute, SeenInterval: 30 * time.Second, ClearAfter: 24 * time.Hour, MaxEvents: 100_000,
	}
}

// newRig creates a room with a number of seats; -1: unknown.
func newRig(t testing.TB, s redistest.Server, seats int64, change ...func(*Options)) *rig {
	t.Helper()
	o := options()
	for _, f := range change {
		f(&o)
	}
	r := &rig{t: t, ctx: t.Context(), client: s.Client(t), event: "test-" + watermill.NewULID()}
	r.rooms = r.process(s, o)
	require.NoError(t, r.client.Set(r.ctx, r.clock(), time.Now().UnixMilli(), 0).Err())
	t.Cleanup(func() {
		ctx := context.Background()
		for user := range r.client.HGetAll(ctx, "ENTRY_RECORD:{"+r.event+"}").Val() {
			r.client.Del(ctx, "ENTRY_TOKEN:{"+r.event+"}:"+user)
		}
		r.client.Del(ctx, append(keys(r.event), r.clock(), r.full())...)
		r.client.SRem(ctx, roomsKey, r.event)
	})
	require.NoError(t, r.rooms.Create(r.ctx, r.event))
	if seats >= 0 {
		require.NoError(t, r.rooms.SetCapacity(r.ctx, r.event, seats))
	}
	return r
}

// process returns the rooms as another process has them. The time of their scripts is that of the
// rig.
func (r *rig) process(s redistest.Server, o Options) *Store {
	r.t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{s.Addr}
	own.ReadTimeout = 30 * time.Second // on a slow machine no script is sent twice
	server := redis.New().Server(&own)
	require.NoError(r.t, server.Start(r.t.Context()))
	r.t.Cleanup(func() { require.NoError(r.t, server.Stop(context.Background())) })
	rooms := newRooms(server, o, fmt.Sprintf(`
local server = redis
local full, dirty = server.call('EXISTS', '%[2]s') == 1, false
local grow = {HSET = true, HSETNX = true, HINCRBY = true, ZADD = true, SET = true, XADD = true}
local shrink = {ZREM = true, HDEL = true, DEL = true, UNLINK = true}
local redis = {pcall = server.pcall, call = function(name, ...)
  if full and not dirty and grow[name] then error("OOM command not allowed when used memory > 'maxmemory'.") end
  dirty = dirty or shrink[name]
  if name ~= 'TIME' then return server.call(name, ...) end
  local ms = tonumber(server.call('GET', '%[1]s'))
  return {string.format('%%.0f', math.floor(ms / 1000)), string.format('%%.0f', ms %% 1000 * 1000)}
end}
`, r.clock(), r.full()))
	rooms.missingFor = 0 // a replica that is back counts at once
	return rooms
}

// full is the key that makes the scripts meet a full server: it refuses a script's first write when
// that write may need memory.
func (r *rig) full() string { return "FULL:{" + r.event + "}" }

func (r *rig) clock() string { return "CLOCK:{" + r.event + "}" }

// outage lets time pass without ticks.
func (r *rig) outage(d time.Duration) {
	r.t.Helper()
	require.NoError(r.t, r.client.IncrBy(r.ctx, r.clock(), d.Milliseconds()).Err())
}

// pass lets time pass in which ticks ran.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	r.outage(d)
	require.NoError(r.t, r.client.HIncrBy(r.ctx, roomKey(r.event), "tick_at", d.Milliseconds()).Err())
}

// tick runs the next tick, a second after the last one.
func (r *rig) tick() Tick {
	r.t.Helper()
	r.outage(time.Second)
	got, err := r.rooms.Tick(r.ctx, r.event)
	require.NoError(r.t, err)
	require.True(r.t, got.Ran)
	return got
}

func (r *rig) enter(user string) Place {
	r.t.Helper()
	p, err := r.rooms.Enter(r.ctx, r.event, user, "broker-1", 0)
	require.NoError(r.t, err)
	return p
}

// enterAll lets n users enter, as user-0 and so on.
func (r *rig) enterAll(n int) {
	r.t.Helper()
	for i := range n {
		r.enter(fmt.Sprint("user-", i))
	}
}

func (r *rig) status(user string) Place {
	r.t.Helper()
	p, err := r.rooms.Status(r.ctx, r.event, user)
	require.NoError(r.t, err)
	return p
}

func (r *rig) claim(user string) Place {
	r.t.Helper()
	list, err := r.rooms.Claim(r.ctx, r.event, "broker-1", []Sign{{User: user}})
	require.NoError(r.t, err)
	require.Len(r.t, list, 1)
	return list[0]
}
