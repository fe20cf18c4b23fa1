package room

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

func maxTurn(d time.Duration) func(*Options) { return func(o *Options) { o.MaxTurn = d } }

// extend asks for an end that is some time after another one.
func (r *rig) extend(p Place, user, by string, after time.Duration) (Place, error) {
	return r.rooms.Extend(r.ctx, r.event, user, p.JTI, by, p.Until+after.Milliseconds())
}

func (r *rig) verified(user, by string) Place {
	r.t.Helper()
	p, err := r.rooms.Verify(r.ctx, r.event, user, r.admitted(user).JTI, by)
	require.NoError(r.t, err)
	return p
}

func TestAShopExtendsATurnUpToTheLimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, maxTurn(15*time.Minute))
		p := r.verified("u1", "session")
		extends := func(asked, want time.Duration) {
			t.Helper()
			for range 2 { // a repeated request changes nothing
				got, err := r.extend(p, "u1", "session", asked)
				require.NoError(t, err)
				require.Equal(t, []any{Admitted, p.JTI, p.Until + want.Milliseconds()}, []any{got.State, got.JTI, got.Until})
				require.Equal(t, got.Until, r.status("u1").Until)
			}
		}
		extends(-time.Minute, 0)
		extends(4*time.Minute, 4*time.Minute)
		extends(time.Minute, 4*time.Minute)
		r.enter("u2")
		alive := func(d time.Duration) Tick {
			r.pass(d)
			r.seen(Sign{User: "u2"})
			return r.tick()
		}
		got := alive(6 * time.Minute)
		require.Empty(t, got.Ended[Expired], "the former end has passed")
		require.Zero(t, got.Promoted, "the slot is taken")
		extends(time.Hour, 10*time.Minute)
		require.Empty(t, alive(8 * time.Minute).Ended[Expired])
		got = alive(time.Minute)
		require.Equal(t, 1, got.Ended[Expired])
		require.Equal(t, 1, got.Promoted, "the slot is free")
		over, err := r.extend(p, "u1", "session", time.Hour)
		require.ErrorIs(t, err, ErrEnded)
		require.Equal(t, []any{Expired, "lease_over"}, []any{over.State, over.Reason})
	})
}

func TestOnlyTheSessionOfATurnExtendsIt(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 3, maxTurn(15*time.Minute))
		p := r.admitted("u1")
		refused := func(want error, jti, by string) {
			t.Helper()
			_, err := r.rooms.Extend(r.ctx, r.event, "u1", jti, by, p.Until+60_000)
			require.ErrorIs(t, err, want)
			require.Equal(t, p.Until, r.status("u1").Until)
		}
		refused(ErrUnverified, p.JTI, "session")
		_, err := r.rooms.Verify(r.ctx, r.event, "u1", p.JTI, "session")
		require.NoError(t, err)
		refused(ErrUsed, p.JTI, "another")
		refused(ErrEnded, "1-other", "session")
		for name, end := range map[string]func(user string, p Place){
			"sold":      func(user string, p Place) { _, err = r.finish(user, p.JTI, true) },
			"abandoned": func(user string, p Place) { _, err = r.finish(user, p.JTI, false) },
			"kicked":    func(user string, _ Place) { r.control(Change{Verb: Kick, User: user}) },
		} {
			over := r.verified(name, "session")
			end(name, over)
			require.NoError(t, err)
			got, err := r.extend(over, name, "session", time.Minute)
			require.ErrorIs(t, err, ErrEnded)
			require.Equal(t, name, got.Reason)
		}
	})
}

// A limit that is not longer than the turn allows no extension, and shortens no turn.
func TestWithoutALimitNoTurnIsExtended(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for _, limit := range []time.Duration{0, time.Minute, 5 * time.Minute} {
			r := newRig(t, s, 1, maxTurn(limit))
			p := r.verified("u1", "session")
			got, err := r.extend(p, "u1", "session", time.Hour)
			require.NoError(t, err)
			require.Equal(t, p.Until, got.Until)
		}
	})
}

// An outage makes the end later, and with it the limit. A request from before it changes nothing.
func TestAnOutageMovesTheEndOfAnExtendedTurn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1, maxTurn(15*time.Minute))
		p := r.verified("u1", "session")
		_, err := r.extend(p, "u1", "session", 4*time.Minute)
		require.NoError(t, err)
		r.outage(10 * time.Minute)
		gap := r.tick().Gap
		require.Greater(t, gap, 10*time.Minute)
		got, err := r.extend(p, "u1", "session", 4*time.Minute)
		require.NoError(t, err)
		require.Equal(t, p.Until+(4*time.Minute+gap).Milliseconds(), got.Until)
		got, err = r.extend(p, "u1", "session", 24*time.Hour)
		require.NoError(t, err)
		require.Equal(t, p.Until+(10*time.Minute+gap).Milliseconds(), got.Until)
	})
}

// The slot becomes free later, and the user who waits for it is told so.
func TestTheExpectedWaitFollowsAnExtendedTurn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s, 1000, maxTurn(30*time.Minute))
		r.control(Change{Verb: Set, Concurrency: p(int64(1))})
		lease := r.verified("u1", "session")
		r.enter("u2")
		before := r.tick().Table
		require.LessOrEqual(t, before.WaitSeconds(0)[1], int64(5*60+15))
		_, err := r.extend(lease, "u1", "session", 20*time.Minute)
		require.NoError(t, err)
		after := r.tick().Table
		require.Equal(t, before.Ends[0]+(20*time.Minute).Milliseconds()-1000, after.Ends[0])
		require.Equal(t, []int64{1, 0}, []int64{after.Admitted, after.Free})
		require.Greater(t, after.WaitSeconds(0)[1], int64(20*60))
	})
}
