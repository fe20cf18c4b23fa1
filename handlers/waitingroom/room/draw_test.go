package room

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// preQueue is a rig whose room has a pre-queue with n users, user-0 and so on.
func preQueue(t *testing.T, s redistest.Server, n int) *rig {
	t.Helper()
	r := newRig(t, s, 200)
	r.control(Change{Verb: Open, Mode: p(Shuffle)})
	calls := make([]*redis.Call, n)
	for i := range calls {
		calls[i] = r.rooms.call("enter", r.event, fmt.Sprint("user-", i), "broker-1", 0, 0, 0)
	}
	for part := range slices.Chunk(calls, 200) {
		require.NoError(t, r.rooms.server.Do(r.ctx, part...))
	}
	return r
}

// freeze ends the pre-queue with a tick.
func (r *rig) freeze() {
	r.t.Helper()
	require.Equal(r.t, PreQueue, r.control(Change{Verb: Open}).State)
	require.Equal(r.t, Drawing, r.tick().Table.State)
}

// plan returns the draw that a process computes.
func (r *rig) plan() lots {
	r.t.Helper()
	fields, err := r.rooms.shuffled(r.ctx, r.event)
	require.NoError(r.t, err)
	all, err := r.rooms.lots(r.ctx, r.event, fields)
	require.NoError(r.t, err)
	return all
}

// part stores a part of a draw, and returns how many places are stored then.
func (r *rig) part(all lots, start int) int {
	r.t.Helper()
	drawn, err := r.rooms.part(r.ctx, r.event, all, start, maxCall)
	require.NoError(r.t, err)
	return drawn
}

func (r *rig) draw() int {
	r.t.Helper()
	drawn, err := r.rooms.Draw(r.ctx, r.event)
	require.NoError(r.t, err)
	return drawn.Users
}

// audit returns the verified audit of the draw.
func (r *rig) audit() shuffle.Audit {
	r.t.Helper()
	a, err := r.rooms.Shuffle(r.ctx, r.event)
	require.NoError(r.t, err)
	require.NoError(r.t, a.Verify())
	return a
}

// queue returns the members of the queue in their order. A user is in it at most once.
func (r *rig) queue() []string {
	r.t.Helper()
	list, seen := []string{}, map[string]bool{}
	for _, text := range r.client.ZRange(r.ctx, keys(r.event)[0], 0, -1).Val() {
		user, ok := userOf(text)
		require.True(r.t, ok, text)
		require.False(r.t, seen[user], user)
		seen[user], list = true, append(list, user)
	}
	return list
}

func TestAPreQueueIsDrawnAndPromotedInThatOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1200)
		published := r.tick().Table
		require.Len(t, published.Commitment, 64)
		require.Equal(t, PreQueue, published.State)
		require.EqualValues(t, 1200, published.Waiting)
		require.EqualValues(t, -1, r.status("user-7").Ahead, "no user has a position before the draw")
		_, err := r.rooms.Shuffle(r.ctx, r.event)
		require.ErrorIs(t, err, ErrConflict, "the secret is not shown before the draw")
		r.freeze()
		late := r.enter("late")
		require.EqualValues(t, -1, late.Ahead)
		tick := r.tick()
		require.Zero(t, tick.Promoted)
		require.EqualValues(t, 1201, tick.Table.Waiting)
		require.Equal(t, 1200, r.draw())
		require.Zero(t, r.draw(), "there is nothing more to do")

		a := r.audit()
		require.Equal(t, published.Commitment, a.Commitment)
		require.Len(t, a.Order, 1200)
		require.Equal(t, "late", r.queue()[1200])
		tick = r.tick()
		require.Equal(t, "open", tick.Table.State)
		require.Equal(t, 200, tick.Promoted)
		require.NotEqual(t, published.Epoch, tick.Table.Epoch, "brokers send their signs at once")
		for i := range 1200 {
			user := fmt.Sprint("user-", i)
			p := r.status(user)
			require.Equal(t, p.Index, tick.Table.Cut+int64(a.Place(user)), user)
			require.Equal(t, a.Place(user) <= 200, p.State == Ready, user)
		}
		require.EqualValues(t, 1000, r.status("late").Ahead)
		require.Equal(t, late.Index, r.status("late").Index)
		require.Greater(t, r.enter("later").Index, late.Index)
	})
}

// The audit file of a shuffle of 1,000 users is enough to verify it.
func TestAShuffleOfAThousandIsVerifiedFromItsFileAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1000)
		published := r.tick().Table.Commitment
		r.freeze()
		r.draw()
		users := r.queue()
		var file bytes.Buffer
		stored, err := r.rooms.Shuffle(r.ctx, r.event)
		require.NoError(t, err)
		require.NoError(t, stored.Write(&file))

		a, err := shuffle.Read(&file)
		require.NoError(t, err)
		require.NoError(t, a.Verify())
		require.Equal(t, published, a.Commitment)
		require.Equal(t, 1000, a.Users)
		for i, user := range users {
			require.Equal(t, i+1, a.Place(user))
		}
	})
}

// W21
func TestADrawContinuesAfterACrash(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1300)
		other := r.process(s, r.rooms.opts)
		r.freeze()
		all := r.plan()
		for drawn := 0; drawn < 1300; drawn = r.part(all, drawn) {
			require.Zero(t, r.tick().Promoted, "no promotion before the end")
			crashed := r.save()
			drawn, err := other.Draw(r.ctx, r.event)
			require.NoError(t, err)
			require.Equal(t, Drawn{Users: 1300}, drawn)
			require.Equal(t, all.users, r.queue())
			require.Equal(t, all.hashes, r.audit().Order)
			require.Zero(t, r.client.Exists(r.ctx, frozenKey(r.event)).Val())
			crashed()
		}
		drawn, err := other.Draw(r.ctx, r.event)
		require.NoError(t, err)
		require.Zero(t, drawn, "the last part was the end")
		require.Equal(t, all.users, r.queue())
	})
}

// W21
func TestAPartThatIsStoredTwiceOrTooEarlyChangesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1200)
		r.freeze()
		all := r.plan()
		require.Zero(t, r.part(all, maxCall), "too early")
		require.Empty(t, r.queue())
		require.Equal(t, maxCall, r.part(all, 0))
		r.leave(all.users[0])
		r.leave(all.users[1])
		r.enter(all.users[1])
		want := append(append([]string{}, all.users[2:maxCall]...), all.users[1])
		require.Equal(t, want, r.queue())
		require.Equal(t, maxCall, r.part(all, 0), "again")
		require.Equal(t, want, r.queue())
		other := all
		other.digest = shuffle.Digest(all.hashes[1:])
		_, err := r.rooms.part(r.ctx, r.event, other, maxCall, maxCall)
		require.ErrorIs(t, err, ErrConflict, "of other users")
		require.Equal(t, 1200, r.draw())
		_, err = r.rooms.part(r.ctx, r.event, all, 1000, maxCall)
		require.ErrorIs(t, err, ErrConflict, "the draw is over")
		require.Equal(t, append(append([]string{}, all.users[2:]...), all.users[1]), r.queue())
	})
}

func TestDispatchersDrawAtOnce(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1600)
		r.freeze()
		all := r.plan()
		var both sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			rooms := r.process(s, r.rooms.opts)
			both.Go(func() { _, errs[i] = rooms.Draw(r.ctx, r.event) })
		}
		both.Wait()
		require.Equal(t, make([]error, 2), errs)
		require.Equal(t, all.users, r.queue())
		require.Equal(t, all.hashes, r.audit().Order)
	})
}

// W2, W30
func TestUsersComeAndGoWhileThePreQueueIsFrozen(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 700)
		r.freeze()
		all := r.plan()
		first, second := all.users[0], all.users[600] // drawn at once, and later
		for _, user := range []string{first, second} {
			before := r.status(user)
			require.Equal(t, Waiting, before.State)
			attached := r.enter(user)
			require.Equal(t, []any{"attached", before.Index, int64(-1)}, []any{attached.How, attached.Index, attached.Ahead}, "in another tab")
			require.Equal(t, before.Index, r.seen(Sign{User: user, Index: before.Index})[0].Index)
			require.Equal(t, before.Index, r.back(user, before.Index).Index)
		}
		require.Empty(t, r.queue(), "none of them has overtaken the others")
		gone, again, kicked := all.users[1], all.users[2], all.users[3]
		for _, user := range []string{gone, again} {
			require.Equal(t, "left", r.leave(user).Reason)
		}
		r.control(Change{Verb: Kick, User: kicked})
		require.EqualValues(t, 697, r.tick().Table.Waiting)
		cursor := r.enter(again).Index
		require.Greater(t, cursor, r.tick().Table.Cut+700)
		r.draw()

		queue := r.queue()
		require.Equal(t, append(append([]string{first}, all.users[4:]...), again), queue)
		require.Equal(t, cursor, r.status(again).Index)
		require.Equal(t, "left", r.status(gone).Reason)
		require.Equal(t, "kicked", r.status(kicked).Reason)
		require.Equal(t, all.hashes, r.audit().Order, "the audit has all users of the pre-queue")
		require.EqualValues(t, 698, r.control(Change{Verb: Hold}).Waiting)
	})
}

// absent lets the next tick remove users as absent.
func (r *rig) absent(users ...string) {
	r.t.Helper()
	for _, user := range users {
		require.NoError(r.t, r.client.ZAdd(r.ctx, keys(r.event)[9], z(0, user)).Err())
	}
	require.Equal(r.t, len(users), r.tick().Removed)
}

// W2
func TestUsersThatAreAbsentInADrawKeepTheirDrawnPlace(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 900)
		r.absent("user-0")
		r.freeze()
		all := r.plan()
		require.Len(t, all.users, 899)
		require.Equal(t, maxCall, r.part(all, 0))
		before, back, after := all.users[200], all.users[600], all.users[880]
		r.absent(before, back, after)
		frozen := r.enter(back)
		require.Equal(t, "restored", frozen.How)
		require.LessOrEqual(t, frozen.Index, r.tick().Table.Cut, "it is frozen again")
		require.NotContains(t, r.queue(), back)
		require.Equal(t, 899, r.draw())

		cut := r.tick().Table.Cut
		require.Equal(t, cut+201, r.enter(before).Index)
		require.Equal(t, cut+601, r.status(back).Index)
		require.Equal(t, cut+881, r.enter(after).Index)
		last := r.enter("user-0")
		require.Equal(t, "restored", last.How)
		require.Equal(t, append(append([]string{}, all.users[200:]...), "user-0"), r.queue(), "it was not in the draw")
	})
}

// W29, W34, W35
func TestPlacesFromBeforeTheDrawDoNotCountAfterIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 20)
		old := map[string]int64{}
		for i := range 20 {
			user := fmt.Sprint("user-", i)
			old[user] = r.status(user).Index
		}
		r.lose("user-3") // no trace is left, and its broker has the old index
		r.leave("user-4")
		r.freeze()
		r.draw()
		drawn := r.queue()
		require.Len(t, drawn, 18)
		for _, user := range drawn {
			got := r.seen(Sign{User: user, Index: old[user]})[0]
			require.Equal(t, []any{Waiting, "attached"}, []any{got.State, got.How})
			require.Greater(t, got.Index, old[user])
			require.Equal(t, got.Index, r.back(user, old[user]).Index, "a reconnect")
		}
		require.Equal(t, drawn, r.queue())
		missing := r.seen(Sign{User: "user-3", Index: old["user-3"]})[0]
		require.Equal(t, "restored", missing.How)
		require.Equal(t, append(drawn, "user-3"), r.queue(), "at the end")
		require.Empty(t, r.seen(Sign{User: "user-4", Index: old["user-4"]})[0].State, "it has left")
		require.Empty(t, r.back("user-4", old["user-4"]).State)

		// A lease that was not claimed in time leaves the drawn index behind.
		index := r.status(drawn[0]).Index
		r.tick()
		require.Equal(t, Ready, r.status(drawn[0]).State)
		r.pass(2*time.Minute - time.Second)
		for _, user := range drawn {
			r.seen(Sign{User: user})
		}
		r.tick()
		require.Equal(t, index, r.seen(Sign{User: drawn[0], Index: old[drawn[0]]})[0].Index)
	})
}

// save copies the room, as a replica has it. The result makes the copy the server.
func (r *rig) save() (failover func()) {
	r.t.Helper()
	var names []string
	prefix := fmt.Sprintf("copy-%s:", watermill.NewULID())
	for _, key := range keys(r.event) {
		if r.client.Exists(r.ctx, key).Val() == 1 {
			names = append(names, key)
			require.NoError(r.t, r.client.Copy(r.ctx, key, prefix+key, r.client.Options().DB, true).Err())
			r.t.Cleanup(func() { r.client.Del(context.Background(), prefix+key) })
		}
	}
	return func() {
		r.t.Helper()
		r.client.Del(r.ctx, keys(r.event)...)
		for _, key := range names {
			require.NoError(r.t, r.client.Copy(r.ctx, prefix+key, key, r.client.Options().DB, true).Err())
		}
		require.NoError(r.t, r.client.HSet(r.ctx, roomKey(r.event), "run_id", "other").Err())
	}
}

func TestAFailoverLosesAPartOfADraw(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 1300)
		r.freeze()
		all := r.plan()
		first := r.save()
		r.part(all, 0)
		second := r.save()
		r.part(all, maxCall)
		shown := r.status(all.users[400])
		r.leave(all.users[1])
		second()
		require.Zero(t, r.tick().Promoted)
		require.Equal(t, 1300, r.draw())
		require.Equal(t, shown.Index, r.seen(Sign{User: all.users[400], Index: shown.Index})[0].Index, "the same place again")
		require.Equal(t, all.users, r.queue())
		first() // the end is lost, too
		require.Equal(t, Drawing, r.tick().Table.State)
		require.Equal(t, 1300, r.draw())
		require.Equal(t, all.users, r.queue())
		require.Zero(t, r.tick().Promoted, "brokers restore what was lost")
		r.pass(10 * time.Second)
		require.Equal(t, 200, r.tick().Promoted)
	})
}

func TestAFailoverLosesTheFreeze(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := preQueue(t, s, 300)
		r.control(Change{Verb: Open})
		failover := r.save()
		joined := r.enter("joined")
		require.Equal(t, Drawing, r.tick().Table.State)
		late := r.enter("late")
		r.draw()
		lease := r.tick().Table
		require.EqualValues(t, 200, lease.Ready)
		admitted := r.claim(r.queueHead(lease))
		signs := []Sign{{User: "joined", Index: r.status("joined").Index}, {User: "late", Index: late.Index}}
		for i := range 300 {
			user := fmt.Sprint("user-", i)
			if p := r.status(user); p.State == Waiting {
				signs = append(signs, Sign{User: user, Index: p.Index})
			}
		}
		holder := r.queueHead(lease)
		failover()
		tick := r.tick()
		require.Equal(t, PreQueue, tick.Table.State, "no freeze before lost users are restored")
		r.seen(append(signs, Sign{User: holder, Index: admitted.Index, JTI: admitted.JTI, Until: admitted.Until})...)
		require.Equal(t, Admitted, r.status(holder).State)
		require.Equal(t, Waiting, r.status("joined").State, "%d", joined.Index)
		require.Equal(t, PreQueue, r.tick().Table.State)
		r.pass(10 * time.Second)
		require.Equal(t, Drawing, r.tick().Table.State)
		want := r.plan()
		require.Contains(t, want.users, "late")
		require.NotContains(t, want.users, holder)
		require.Len(t, want.users, 301)
		require.Equal(t, 301, r.draw())
		require.Equal(t, want.users, r.queue())
		require.Equal(t, 199, r.tick().Promoted, "one slot has a lease")
	})
}

// queueHead returns the user of a draw that was promoted first.
func (r *rig) queueHead(t *Table) string {
	r.t.Helper()
	for user := range r.client.HGetAll(r.ctx, keys(r.event)[7]).Val() {
		if r.status(user).Index == t.Cut+1 {
			return user
		}
	}
	r.t.Fatal("the first user has no lease")
	return ""
}
