package dispatcher

import (
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// is waits until the series of a metric have a sum.
func (r *rig) is(name string, want float64) {
	r.t.Helper()
	redistest.Eventually(r.t, name, func() bool { return r.gauge("millrace_room_"+name) == want })
}

func TestTheFiguresOfARoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		_, err := r.rooms.Control(t.Context(), "e", room.Change{Verb: room.Open, By: "test"})
		require.NoError(t, err)
		for _, user := range []string{"a", "b", "c"} {
			_, err := r.rooms.Enter(t.Context(), "e", user, "broker", 0)
			require.NoError(t, err)
		}
		r.is("waiting", 3)
		r.is("capacity_unknown", 1)
		r.is("slots_free", 0)
		seats, most := int64(9), int64(1)
		_, err = r.rooms.Control(t.Context(), "e", room.Change{Verb: room.Set, By: "test", Capacity: &seats, Concurrency: &most})
		require.NoError(t, err)
		r.is("capacity_unknown", 0)
		r.is("promoted_total", 1)
		r.is("waiting", 2)
		r.is("leases", 1)
		require.Zero(t, r.gauge("millrace_room_sold"))
		place, err := r.rooms.Status(t.Context(), "e", "a")
		require.NoError(t, err)
		_, err = r.rooms.Finish(t.Context(), "e", "a", place.JTI, "", true)
		require.NoError(t, err)
		r.is("sold", 1)
		r.is("promoted_total", 2)
		require.NoError(t, r.admin.ZAdd(t.Context(), "WAITING:{e}", goredis.Z{Score: 1, Member: "no user"}).Err())
		most = 3
		_, err = r.rooms.Control(t.Context(), "e", room.Change{Verb: room.Set, By: "test", Concurrency: &most})
		require.NoError(t, err)
		r.is("aside_total", 1)
		r.is("promoted_total", 3)
		r.is("slots_free", 1)
		require.Zero(t, r.gauge("millrace_room_ended_total"))
		// The time of both leases is over.
		require.NoError(t, r.admin.ZAdd(t.Context(), "ENTRY_LEASES:{e}", goredis.Z{Score: 1, Member: "b"}, goredis.Z{Score: 1, Member: "c"}).Err())
		r.is("ended_total", 2)
		r.is("leases", 0)
		r.is("excess", 0)
		seats = 0
		_, err = r.rooms.Control(t.Context(), "e", room.Change{Verb: room.Set, By: "test", Capacity: &seats})
		require.NoError(t, err)
		r.is("excess", 1)
		r.is("sold_out", 0)
		require.Positive(t, r.gauge("millrace_room_promotion_script_duration_seconds"))
	})
}

func TestEntriesOfStreamsAreCounted(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := start(t, s, nil)
		r.open("e", "a")
		r.is("slots_free", 10)
		require.NoError(t, r.rooms.Route(t.Context(), "never seen", "e", "1", "2", "3"))
		require.NoError(t, r.rooms.Route(t.Context(), "other", "e", "1"))
		r.clean(t.Context())
		r.is("stream_entries", 3)
	})
}

func TestTicksThatWaitAreCounted(t *testing.T) {
	t.Parallel()
	d := New(Options{Config: DefaultConfig(), Redis: redis.New()})
	d.queue <- []string{"e"}
	require.InDelta(t, 1, (&rig{t: t, Dispatcher: d}).gauge("millrace_room_promoter_queue"), 0)
}

func TestSoldOutRoomsWithUsersAreCounted(t *testing.T) {
	t.Parallel()
	d := New(Options{Config: DefaultConfig(), Redis: redis.New()})
	r := &rig{t: t, Dispatcher: d}
	full := func(waiting, sold int64) *event {
		return &event{at: time.Now(), table: &room.Table{State: "open", Waiting: waiting, Capacity: 5, Sold: sold, Concurrency: -1, PerMinute: -1}}
	}
	d.events["nobody waits"], d.events["a seat is left"] = full(0, 5), full(3, 4)
	require.Zero(t, r.gauge("millrace_room_sold_out"))
	d.events["users wait"] = full(3, 5)
	require.InDelta(t, 1, r.gauge("millrace_room_sold_out"), 0)
}

// The figures of an event that another instance ticks now are not reported.
func TestOldFiguresAreNotReported(t *testing.T) {
	t.Parallel()
	d := New(Options{Config: DefaultConfig(), Redis: redis.New()})
	r := &rig{t: t, Dispatcher: d}
	d.events["e"] = &event{table: &room.Table{Waiting: 7}, at: time.Now()}
	require.InDelta(t, 7, r.gauge("millrace_room_waiting"), 0)
	d.events["e"].at = time.Now().Add(-tableAge - time.Second)
	require.Zero(t, r.gauge("millrace_room_waiting"))
}
