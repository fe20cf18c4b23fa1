package room

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The audit of all rooms has what operators and schedules did, and keeps that of a room that is gone.
func TestTheAuditOfAllRooms(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		one, other := newRig(t, s, 2), newRig(t, s, 2)
		for _, r := range []*rig{one, other} {
			_, err := r.rooms.Control(r.ctx, r.event, Change{Verb: Open, By: "ann (api)", Why: "the sale begins"})
			require.NoError(t, err)
			_, err = r.rooms.Control(r.ctx, r.event, Change{Verb: Hold, By: "bob", Why: "the shop is slow"})
			require.NoError(t, err)
		}
		actions := func(f operate.AuditFilter) (list []string) {
			page, err := one.rooms.RecentAudit(one.ctx, f, 50)
			require.NoError(t, err)
			for _, c := range page.Changes {
				if c.Subject == one.event || c.Subject == other.event { // another test has rooms on this server, too
					require.False(t, c.At.IsZero())
					list = append(list, c.Action+" "+c.Subject+" by "+c.Who+": "+c.Why)
				}
			}
			return list
		}
		hold, open := "hold "+one.event+" by bob: the shop is slow", "open "+one.event+" by ann (api): the sale begins"
		require.Equal(t, []string{hold, open}, actions(operate.AuditFilter{Subject: one.event}))
		require.Equal(t, []string{open}, actions(operate.AuditFilter{Subject: one.event, Who: "ANN"}))
		require.Subset(t, actions(operate.AuditFilter{}), []string{hold, open, "hold " + other.event + " by bob: the shop is slow"})

		require.NoError(t, one.client.SRem(one.ctx, roomsKey, one.event).Err())
		require.NotContains(t, actions(operate.AuditFilter{}), hold)
		require.Equal(t, []string{hold, open}, actions(operate.AuditFilter{Subject: one.event}), "the audit stays when the room is gone")
	})
}
