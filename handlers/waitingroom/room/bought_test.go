package room

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func purchases(n int) func(*Options) { return func(o *Options) { o.PurchasesPerUser = n } }

// buys takes a user from the entry to the sale.
func (r *rig) buys(user string) {
	r.t.Helper()
	_, err := r.finish(user, r.admitted(user).JTI, true)
	require.NoError(r.t, err)
}

func TestAUserBuysAsOftenAsAllowed(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for limit, allowed := range map[int]int{0: 4, 1: 1, 3: 3} {
			r := newRig(t, s, 100, purchases(limit))
			for n := range 4 {
				if n < allowed {
					r.buys("u1")
					continue
				}
				got, err := r.rooms.Enter(r.ctx, r.event, "u1", "broker-1", 0)
				require.ErrorIs(t, err, ErrRejected)
				require.Equal(t, []any{State(""), "bought"}, []any{got.State, got.Reason})
			}
			require.EqualValues(t, allowed, r.tick().Table.Sold)
			require.Equal(t, allowed, r.found("u1").Bought)
			r.buys("u2")
			require.Equal(t, "sold", r.status("u1").Reason, "nothing is queued")
		}
	})
}

func (r *rig) found(user string) Details {
	r.t.Helper()
	d, err := r.rooms.Find(r.ctx, r.event, user)
	require.NoError(r.t, err)
	return d
}

// Only a sale counts: neither a turn without one, nor one that the shop reports again.
func TestOnlyASaleIsAPurchase(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 100, purchases(2))
		ends := map[string]func(p Place){
			"abandoned": func(p Place) {
				_, err := r.finish("u1", p.JTI, false)
				require.NoError(t, err)
			},
			"left":    func(Place) { r.leave("u1") },
			"expired": func(Place) { r.pass(5 * time.Minute); require.Equal(t, 1, r.tick().Ended[Expired]) },
			"kicked":  func(Place) { r.control(Change{Verb: Kick, User: "u1"}) },
		}
		for name, end := range ends {
			end(r.admitted("u1"))
			require.Zero(t, r.found("u1").Bought, name)
		}
		p := r.admitted("u1")
		for range 3 {
			_, err := r.finish("u1", p.JTI, true)
			require.NoError(t, err)
		}
		require.Equal(t, 1, r.found("u1").Bought)
		r.buys("u1")
		require.Equal(t, 2, r.found("u1").Bought)
		_, err := r.rooms.Enter(r.ctx, r.event, "u1", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected)
	})
}

// A sale that is reported after the end of its turn counts, too. The user may wait again by then, or
// be in the shop: no user gets more seats than allowed.
func TestALateSaleIsAPurchase(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		late := func(t *testing.T) (*rig, Place) {
			r := newRig(t, s, 100, purchases(1))
			p := r.admitted("u1")
			r.pass(5 * time.Minute)
			require.Equal(t, 1, r.tick().Ended[Expired])
			return r, p
		}
		refused := func(r *rig) {
			_, err := r.rooms.Enter(r.ctx, r.event, "u1", "broker-1", 0)
			require.ErrorIs(r.t, err, ErrRejected)
			require.Equal(r.t, 1, r.found("u1").Bought)
		}
		t.Run("without a place", func(t *testing.T) {
			r, p := late(t)
			_, err := r.finish("u1", p.JTI, true)
			require.NoError(t, err)
			refused(r)
		})
		t.Run("while the user waits", func(t *testing.T) {
			r, p := late(t)
			waits := r.enter("u1")
			_, err := r.finish("u1", p.JTI, true)
			require.NoError(t, err)
			require.Equal(t, "sold", r.seen(Sign{User: "u1", Index: waits.Index})[0].Reason)
			require.Zero(t, r.tick().Promoted)
			refused(r)
		})
		t.Run("during the next turn", func(t *testing.T) {
			r, p := late(t)
			next := r.admitted("u1")
			_, err := r.finish("u1", p.JTI, true)
			require.NoError(t, err)
			require.Equal(t, "sold", r.status("u1").Reason)
			_, err = r.rooms.Verify(r.ctx, r.event, "u1", next.JTI, "session")
			require.ErrorIs(t, err, ErrEnded)
			_, err = r.finish("u1", next.JTI, true)
			require.ErrorIs(t, err, ErrConflict)
			require.EqualValues(t, 0, r.tick().Table.Admitted)
			refused(r)
		})
		t.Run("while the shop makes the next purchase", func(t *testing.T) {
			r, p := late(t)
			next := r.verified("u1", "session")
			_, err := r.finish("u1", p.JTI, true)
			require.ErrorIs(t, err, ErrConflict)
			_, err = r.finish("u1", next.JTI, true)
			require.NoError(t, err)
			refused(r)
		})
	})
}

// Purchases are kept as long as the room, also when it is closed and opened again.
func TestPurchasesAreKeptAsLongAsTheRoom(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 100, purchases(1))
		r.buys("u1")
		r.control(Change{Verb: Close})
		r.tick()
		r.control(Change{Verb: Open})
		_, err := r.rooms.Enter(r.ctx, r.event, "u1", "broker-1", 0)
		require.ErrorIs(t, err, ErrRejected)
		r.control(Change{Verb: Close})
		r.tick()
		r.pass(24 * time.Hour)
		require.True(t, r.tick().Cleared)
		require.Zero(t, r.client.Exists(r.ctx, "ENTRY_BUYERS:{"+r.event+"}").Val())
		r.control(Change{Verb: Open, Capacity: p(int64(9))})
		r.buys("u1")
	})
}
