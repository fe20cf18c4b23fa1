package room

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// clockFront is Lua in front of each script. The time and the run_id of the server come from a key
// of the history.
const clockFront = `local clock, real = '%s', redis
local redis = setmetatable({}, {__index = real})
local function answer(call, name, ...)
  local upper = string.upper(name)
  if upper == 'TIME' then
    local t = real.call('HGET', clock, 'now')
    return {string.sub(t, 1, -7), string.format('%%d', tonumber(string.sub(t, -6)))}
  end
  if upper == 'INFO' then return '# Server\r\nrun_id:' .. real.call('HGET', clock, 'run') .. '\r\n' end
  return call(name, ...)
end
redis.call = function(...) return answer(real.call, ...) end
redis.pcall = function(...) return answer(real.pcall, ...) end
`

// historyEnv is what the histories of one worker share.
type historyEnv struct {
	name      string
	client    *goredis.Client
	server    *redis.Server
	clock     string
	acks      acks
	histories int
	last      int
	steps     int
	draws     int // that were completed
}

func newHistoryEnv(t testing.TB, s redistest.Server) *historyEnv {
	t.Helper()
	db := s.Database(t)
	own := redis.DefaultClientConfig()
	own.Addrs, own.DB = []string{s.Addr}, db
	own.ReadTimeout = 30 * time.Second // a slow machine is no finding
	server := redis.New().Server(&own)
	require.NoError(t, server.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, server.Stop(context.Background())) })
	c := s.Client(t, func(o *goredis.Options) { o.DB, o.ReadTimeout = db, 30*time.Second })
	e := &historyEnv{name: s.Name, client: c, server: server, clock: redistest.Prefix(t, c)}
	server.Client().AddHook(&e.acks)
	return e
}

// played returns the number of histories since its last call, at least one.
func (e *historyEnv) played() int {
	n := e.histories - e.last
	e.last = e.histories
	return max(n, 1)
}

const (
	sec     = int64(1_000_000) // of the clock
	brokers = 3
)

// broker is an instance with the open tabs of users. It does what the package broker does.
type broker struct {
	name   string
	cut    bool
	tabs   map[string]*tab
	epoch  int64
	signed int64 // µs; 0: its signs are due
	claims []lateClaim
}

// tab is the connection of one user to one broker.
type tab struct {
	index  int64
	jti    string
	until  int64
	looked int64 // when its broker last compared it with the table
	unsure bool  // the lease is to be claimed, or claimed again
}

// lateClaim is a claim whose answer has not arrived.
type lateClaim struct {
	user   string
	index  int64
	answer Place
}

// history is one event, the brokers, the users and the shops.
type history struct {
	*historyEnv
	t     interface{ Fatalf(string, ...any) }
	ctx   context.Context
	event string
	rooms *Store
	other *Store // of a second dispatcher
	o     Options
	m     *model
	truth truth

	begin, now int64 // µs
	run        int   // the run_id of the server
	replica    *replica

	brokers [brokers]*broker
	plans   [2]*drawPlan // of the dispatchers
	users   []string
	given   map[int64]string // each user who was given a new index
	newest  map[string]int64 // the newest index that a user was given
	cursor  map[string]int64 // what the browser has as Last-Event-ID
	tokens  []token          // that users have
	closed  map[string]int64 // by lease: the newest index of its user when a shop ended it
	ready   map[string]int64 // when a user was promoted
	alive   map[string]int64 // the last sign of life that the server has
	ticks   int

	excess    int64 // sold and leases above capacity, after the last step
	mayExceed bool  // lower capacity, a failover, or a lease that it had lost

	faults []string
	log    []string
}

type token struct{ user, jti string }

type replica struct {
	at    int64
	m     *model
	truth truth
	keys  []string
	alive map[string]int64

	excess    int64 // those of the history
	mayExceed bool
}

func (e *historyEnv) newHistory(t interface{ Fatalf(string, ...any) }, change func(*Options)) *history {
	e.histories++
	h := &history{historyEnv: e, t: t, ctx: context.Background(), event: e.clock + "-" + strconv.Itoa(e.histories), o: historyOptions,
		given: map[int64]string{}, newest: map[string]int64{}, cursor: map[string]int64{}, closed: map[string]int64{}, ready: map[string]int64{}, alive: map[string]int64{},
		truth: newTruth(), users: []string{"u1", "u2", "u3", "u4", "u5"}}
	change(&h.o)
	front := fmt.Sprintf(clockFront, e.clock)
	h.m, h.rooms, h.other = newModel(h.o), newRooms(e.server, h.o, front), newRooms(e.server, h.o, front)
	h.rooms.missingFor, h.other.missingFor = 0, 0
	h.acks.left = -1
	h.begin = 1_800_000_000 * sec
	h.now = h.begin
	for i := range h.brokers {
		h.brokers[i] = &broker{name: string(rune('a' + i)), tabs: map[string]*tab{}}
	}
	h.run++
	h.advance(0)
	h.must(h.rooms.Create(h.ctx, h.event))
	h.m.lastTick, h.m.lastRun = h.now/1000, h.run
	return h
}

// advance moves the clock of the server.
func (h *history) advance(us int64) {
	h.now += us
	h.m.now, h.m.run = h.now, h.run
	h.must(h.client.HSet(h.ctx, h.clock, "now", h.now, "run", h.run).Err())
	if h.replica != nil && h.now-us-h.replica.at > 2*sec && !h.stopped() {
		h.replicate()
	}
}

// eventKeys returns the keys of the event that exist.
func (h *history) eventKeys() []string {
	keys, err := h.client.Keys(h.ctx, "*:{"+h.event+"}*").Result()
	h.must(err)
	return slices.DeleteFunc(keys, func(key string) bool { return strings.HasPrefix(key, "copy:") })
}

// replicate makes the replica have all that the server has.
func (h *history) replicate() {
	h.drop()
	h.replica = &replica{at: h.now, m: h.m.clone(), truth: h.truth.clone(), keys: h.eventKeys(), alive: maps.Clone(h.alive),
		excess: h.excess, mayExceed: h.mayExceed}
	h.copyAll(h.replica.keys, "", "copy:")
}

func (h *history) copyAll(keys []string, from, to string) {
	pipe := h.client.Pipeline()
	for _, key := range keys {
		pipe.Copy(h.ctx, from+key, to+key, h.client.Options().DB, true)
	}
	_, err := pipe.Exec(h.ctx)
	h.must(err)
}

// restore gives the server the data of the replica.
func (h *history) restore() {
	if keys := h.eventKeys(); len(keys) > 0 {
		h.must(h.client.Del(h.ctx, keys...).Err())
	}
	h.copyAll(h.replica.keys, "copy:", "")
	h.m, h.truth, h.alive = h.replica.m.clone(), h.replica.truth.clone(), maps.Clone(h.replica.alive)
}

// drop deletes the replica.
func (h *history) drop() {
	if h.replica != nil {
		for _, key := range h.replica.keys {
			h.client.Del(h.ctx, "copy:"+key)
		}
	}
}

func (h *history) clear() {
	h.drop()
	h.client.Del(h.ctx, append(h.eventKeys(), h.key("ROOM"))...)
	h.client.SRem(h.ctx, roomsKey, h.event)
}

func (h *history) seats(n int64) {
	h.m.capacity = n
	h.must(h.rooms.SetCapacity(h.ctx, h.event, n))
}

// play is one history.
func (e *historyEnv) play(t *rapid.T) {
	h := e.newHistory(t, func(o *Options) {
		o.Release = rapid.IntRange(0, 3).Draw(t, "absent: release") == 3
		o.CloseSoldOut = rapid.IntRange(0, 3).Draw(t, "close when sold out") == 3
		o.Replicas = rapid.IntRange(0, 1).Draw(t, "replicas")
		o.PurchasesPerUser = rapid.IntRange(0, 2).Draw(t, "purchases per user")
	})
	defer h.clear()
	h.users = h.users[:rapid.IntRange(2, len(h.users)).Draw(t, "users")]
	h.seats(int64(rapid.IntRange(1, 4).Draw(t, "seats")))
	if rapid.Bool().Draw(t, "pre-queue") {
		h.preQueue(int64(uniform(t, 5)) * 4)
	}
	if h.o.Replicas > 0 || rapid.Bool().Draw(t, "replica") {
		h.replicate()
	}
	for _, s := range rapid.SliceOfN(rapid.Custom(newStep), 20, 60).Draw(t, "steps") {
		e.steps++
		h.take(s)
		h.compare()
		h.check()
	}
}

// TestRandomHistories plays random histories of one event: three brokers, five users, shops, two
// dispatchers and an operator. The clock of the server is the history's. It compares each answer
// and all data with a model, and checks the guarantees at every step.
//
// MILLRACE_HISTORIES is the number of histories, over the embedded and the real server. `make
// histories` plays 10,000 on each.
func TestRandomHistories(t *testing.T) {
	if tier.IsRest(t) {
		tier.Rest(t) // more of them
	}
	total := 200
	if text := os.Getenv("MILLRACE_HISTORIES"); text != "" {
		var err error
		total, err = strconv.Atoi(text)
		require.NoError(t, err, "MILLRACE_HISTORIES")
	}
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		t.Parallel()
		e := newHistoryEnv(t, s)
		for left := total / 2; left > 0; left -= e.played() {
			rapid.Check(t, e.play)
		}
		t.Logf("%d histories, %d steps, %d draws", e.histories, e.steps, e.draws)
	})
}
