package room

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// admitted lets a user enter, and returns the claimed lease.
func (r *rig) admitted(user string) Place {
	r.t.Helper()
	r.enter(user)
	r.tick()
	p := r.claim(user)
	require.Equal(r.t, Admitted, p.State)
	return p
}

func (r *rig) seen(signs ...Sign) []Place {
	r.t.Helper()
	list, err := r.rooms.Seen(r.ctx, r.event, "broker-1", signs)
	require.NoError(r.t, err)
	require.Len(r.t, list, len(signs))
	return list
}

func (r *rig) finish(user, jti string, sold bool) (Place, error) {
	return r.rooms.Finish(r.ctx, r.event, user, jti, "session", sold)
}

func (r *rig) leave(user string) Place {
	r.t.Helper()
	p, err := r.rooms.Leave(r.ctx, r.event, user, "left")
	require.NoError(r.t, err)
	return p
}

func TestALeaseIsForOneSessionOfTheShop(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.admitted("u1")
		for range 2 {
			got, err := r.rooms.Verify(r.ctx, r.event, "u1", p.JTI, "session-1")
			require.NoError(t, err)
			require.Equal(t, p.Until, got.Until)
		}
		_, err := r.rooms.Verify(r.ctx, r.event, "u1", p.JTI, "session-2")
		require.ErrorIs(t, err, ErrUsed)
		_, err = r.rooms.Verify(r.ctx, r.event, "u1", "1-other", "session-1")
		require.ErrorIs(t, err, ErrEnded)
		r.control(Change{Verb: Kick, User: "u1"})
		got, err := r.rooms.Verify(r.ctx, r.event, "u1", p.JTI, "session-1")
		require.ErrorIs(t, err, ErrEnded)
		require.Equal(t, Abandoned, got.State)
		require.Equal(t, "kicked", got.Reason)
	})
}

// Whoever else has the token and a credential neither sells nor gives back the seat, before and after
// the end of the lease. An operator still ends it.
func TestOnlyTheSessionOfALeaseFinishesIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 4, func(o *Options) { o.MaxTurn = time.Hour })
		refused := func(user, jti string, want State) {
			t.Helper()
			for _, by := range []string{"", "another"} {
				for _, sold := range []bool{true, false} {
					got, err := r.rooms.Finish(r.ctx, r.event, user, jti, by, sold)
					require.ErrorIs(t, err, ErrUsed)
					require.Equal(t, want, got.State)
				}
			}
		}
		sold, expires, kicked := r.verified("sold", "session"), r.verified("expires", "session"), r.verified("kicked", "session")
		refused("sold", sold.JTI, Admitted)
		require.Equal(t, sold.JTI, r.status("sold").JTI)
		got, err := r.finish("sold", sold.JTI, true)
		require.NoError(t, err)
		require.Equal(t, Sold, got.State)
		refused("sold", sold.JTI, Sold)
		r.control(Change{Verb: Kick, User: "kicked"})
		refused("kicked", kicked.JTI, Abandoned)
		r.pass(5 * time.Minute)
		require.Equal(t, 1, r.tick().Ended[Expired])
		refused("expires", expires.JTI, Expired)
		require.EqualValues(t, 1, r.tick().Table.Sold)
		for user, p := range map[string]Place{"expires": expires, "kicked": kicked} {
			got, err = r.finish(user, p.JTI, true)
			require.NoError(t, err)
			require.Equal(t, "late", got.How)
			refused(user, p.JTI, Sold)
		}
		require.EqualValues(t, 3, r.tick().Table.Sold)
	})
}

// A lease that no session has verified is finished by any one, which it then belongs to.
func TestALeaseThatWasNotVerifiedIsFinishedByAnySession(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		named, unnamed := r.admitted("named"), r.admitted("unnamed")
		for user, jti := range map[string]string{"named": named.JTI, "unnamed": unnamed.JTI} {
			by := map[string]string{"named": "session"}[user]
			for _, how := range []string{"", "again"} {
				got, err := r.rooms.Finish(r.ctx, r.event, user, jti, by, true)
				require.NoError(t, err)
				require.Equal(t, how, got.How)
			}
		}
		_, err := r.rooms.Finish(r.ctx, r.event, "named", named.JTI, "another", true)
		require.ErrorIs(t, err, ErrUsed, "its sale is not the one that is stored")
		got, err := r.rooms.Finish(r.ctx, r.event, "unnamed", unnamed.JTI, "another", true)
		require.NoError(t, err)
		require.Equal(t, "again", got.How)
	})
}

func TestASaleEndsTheLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.admitted("u1")
		r.enter("u2")
		for range 2 {
			got, err := r.finish("u1", p.JTI, true)
			require.NoError(t, err)
			require.Equal(t, Sold, got.State)
		}
		_, err := r.finish("u1", p.JTI, false)
		require.ErrorIs(t, err, ErrConflict)
		got := r.tick()
		require.Zero(t, got.Promoted, "the seat is sold")
		require.EqualValues(t, 1, got.Table.Sold)
		require.Empty(t, r.client.Keys(r.ctx, "ENTRY_TOKEN:{"+r.event+"}:*").Val())
	})
}

func TestALateSaleNeedsAFreeSlot(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.admitted("u1")
		r.pass(5 * time.Minute)
		require.Equal(t, 1, r.tick().Ended[Expired])
		r.enter("u2")
		require.Equal(t, 1, r.tick().Promoted)
		got, err := r.finish("u1", p.JTI, true)
		require.ErrorIs(t, err, ErrConflict)
		require.Equal(t, Expired, got.State)
		r.leave("u2")
		_, err = r.finish("u1", p.JTI, false)
		require.ErrorIs(t, err, ErrConflict)
		for range 2 {
			got, err = r.finish("u1", p.JTI, true)
			require.NoError(t, err)
			require.Equal(t, Sold, got.State)
		}
		require.EqualValues(t, 1, r.tick().Table.Sold)
	})
}

// A seat is free, but there are as many leases as the concurrency allows.
func TestALateSaleRespectsTheConcurrency(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 10)
		r.control(Change{Verb: Set, Concurrency: p(int64(1))})
		late := r.admitted("u1")
		r.pass(5 * time.Minute)
		require.Equal(t, 1, r.tick().Ended[Expired])
		r.enter("u2")
		require.Equal(t, 1, r.tick().Promoted)
		_, err := r.finish("u1", late.JTI, true)
		require.ErrorIs(t, err, ErrConflict)
		r.control(Change{Verb: Set, Mode: p(PassThrough)})
		got, err := r.finish("u1", late.JTI, true)
		require.NoError(t, err, "then only the capacity limits")
		require.Equal(t, "late", got.How)
	})
}

func TestAnUnclaimedLeaseLeavesTheIndexBehind(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		p := r.enter("u1")
		r.enter("u2")
		r.tick()
		r.pass(2 * time.Minute)
		r.seen(Sign{User: "u2"})
		got := r.tick()
		require.Equal(t, 1, got.Ended[Expired])
		require.Equal(t, 1, got.Promoted, "the next one has the slot")
		back := r.seen(Sign{User: "u1", Index: p.Index})[0]
		require.Equal(t, Waiting, back.State)
		require.Equal(t, "restored", back.How)
		require.Equal(t, p.Index, back.Index)
	})
}

// A failover has lost the claim, and the lease has ended as unclaimed. Its broker still has the token.
func TestAnEndedLeaseIsNotRestored(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1)
		index := r.enter("u1").Index
		r.tick()
		lease := r.status("u1")
		require.Equal(t, Ready, lease.State)
		r.pass(2 * time.Minute)
		require.Equal(t, 1, r.tick().Ended[Expired])
		got := r.seen(Sign{User: "u1", Index: index, JTI: lease.JTI, Until: lease.Until + time.Hour.Milliseconds()})[0]
		require.Equal(t, []any{Waiting, index}, []any{got.State, got.Index}, "the place is restored, and not the lease")
		_, err := r.rooms.Verify(r.ctx, r.event, "u1", lease.JTI, "session")
		require.ErrorIs(t, err, ErrEnded)
	})
}

func TestReleaseFreesTheSlotOfADisconnectedUser(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2, func(o *Options) { o.Release = true })
		p, q := r.admitted("u1"), r.admitted("u2")
		r.seen(Sign{User: "u1", Index: p.Index, Gone: true}, Sign{User: "u2", Index: q.Index, Gone: true})
		r.seen(Sign{User: "u2", Index: q.Index}) // another broker has a connection
		r.pass(30 * time.Second)
		require.Equal(t, 1, r.tick().Ended[Abandoned])
		require.Empty(t, r.status("u1").State)
		require.Equal(t, Admitted, r.status("u2").State)
		_, err := r.rooms.Verify(r.ctx, r.event, "u1", p.JTI, "s")
		require.ErrorIs(t, err, ErrEnded)
	})
}

func TestReleaseFreesTheSlotOfAUserPromotedWithoutAConnection(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 4, func(o *Options) { o.Release = true })
		r.enterAll(4)
		require.Equal(t, 4, r.tick().Promoted)
		r.claim("user-1")
		r.enter("user-2")
		r.seen(Sign{User: "user-3"})
		r.pass(30 * time.Second)
		require.Equal(t, 1, r.tick().Ended[Abandoned])
		require.Equal(t, "abandoned", r.status("user-0").Reason)
	})
}

// The user pays in the shop, whose page has replaced that of the waiting room.
func TestALostConnectionEndsNoVerifiedLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2, func(o *Options) { o.Release = true })
		before, after := r.admitted("before"), r.admitted("after")
		gone := func() {
			r.seen(Sign{User: "before", Index: before.Index, JTI: before.JTI, Until: before.Until, Gone: true},
				Sign{User: "after", Index: after.Index, JTI: after.JTI, Until: after.Until, Gone: true})
		}
		verify := func(user, jti string) {
			_, err := r.rooms.Verify(r.ctx, r.event, user, jti, "session")
			require.NoError(t, err)
		}
		verify("before", before.JTI)
		gone()
		verify("after", after.JTI)
		gone()
		r.pass(4 * time.Minute)
		require.Zero(t, r.tick().Ended[Abandoned])
		for user, jti := range map[string]string{"before": before.JTI, "after": after.JTI} {
			require.Equal(t, Admitted, r.status(user).State)
			got, err := r.finish(user, jti, true)
			require.NoError(t, err)
			require.Empty(t, got.How, "no late sale")
		}
		require.EqualValues(t, 2, r.tick().Table.Sold)
	})
}

func TestAUserDoesNotEndAVerifiedLease(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 2)
		sold, kicked := r.admitted("sold"), r.admitted("kicked")
		for user, p := range map[string]Place{"sold": sold, "kicked": kicked} {
			_, err := r.rooms.Verify(r.ctx, r.event, user, p.JTI, "session")
			require.NoError(t, err)
			got, err := r.rooms.Leave(r.ctx, r.event, user, "left")
			require.ErrorIs(t, err, ErrVerified)
			require.Equal(t, []any{Admitted, p.JTI, p.Until}, []any{got.State, got.JTI, got.Until})
		}
		_, err := r.finish("sold", sold.JTI, true)
		require.NoError(t, err)
		require.Equal(t, "left", r.leave("sold").Reason, "the lease has ended")
		r.control(Change{Verb: Kick, User: "kicked"})
		require.Equal(t, "kicked", r.status("kicked").Reason)
	})
}

// A seat that was paid for is sold while one is free, whatever has ended the lease.
func TestASaleAfterAnAbandonedLeaseNeedsAFreeSlot(t *testing.T) {
	ends := map[string]func(r *rig, p Place){
		"the user left": func(r *rig, _ Place) { r.leave("u1") },
		"an operator":   func(r *rig, _ Place) { r.control(Change{Verb: Kick, User: "u1"}) },
		"the shop": func(r *rig, p Place) {
			_, err := r.finish("u1", p.JTI, false)
			require.NoError(r.t, err)
		},
		"a lost connection": func(r *rig, p Place) {
			r.seen(Sign{User: "u1", Index: p.Index, Gone: true})
			r.pass(30 * time.Second)
			require.Equal(r.t, 1, r.tick().Ended[Abandoned])
		},
	}
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for name, end := range ends {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, s, 1, func(o *Options) { o.Release = true })
				p := r.admitted("u1")
				end(r, p)
				r.enter("u2")
				require.Equal(t, 1, r.tick().Promoted)
				got, err := r.finish("u1", p.JTI, true)
				require.ErrorIs(t, err, ErrConflict, "the slot is taken")
				require.Equal(t, Abandoned, got.State)
				r.leave("u2")
				got, err = r.finish("u1", p.JTI, true)
				require.NoError(t, err)
				require.Equal(t, []any{Sold, "late"}, []any{got.State, got.How})
				got, err = r.finish("u1", p.JTI, true)
				require.NoError(t, err)
				require.Equal(t, "again", got.How)
				_, err = r.finish("u1", p.JTI, false)
				require.ErrorIs(t, err, ErrConflict, "a sale is final")
				require.EqualValues(t, 1, r.tick().Table.Sold)
			})
		}
	})
}
