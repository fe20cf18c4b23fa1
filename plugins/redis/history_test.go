package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// What two instances did is added up to the last message, also after they have stopped, and a start under the same
// name begins with nothing.
func TestTheHistoryHasWhatEachInstanceDid(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		d := depot{t, s, db}
		names := []string{"a-" + watermill.NewULID(), "b-" + watermill.NewULID()}
		command, _ := d.command()
		sum := func() (all operate.Handled) {
			steps, err := command.ReadHistory(t.Context())
			require.NoError(t, err)
			for _, routes := range steps {
				all.Done, all.Failed = all.Done+routes["parcels"].Done, all.Failed+routes["parcels"].Failed
			}
			return all
		}
		work := func(round uint64) {
			for _, name := range names {
				p, stop := d.start(name, name)
				for range 3 {
					require.NoError(t, p.Sink(name).Publish(t.Context(), message.NewMessage(watermill.NewULID(), []byte("good")), message.NewMessage(watermill.NewULID(), []byte("bad"))))
				}
				redistest.Eventually(t, "all are handled", func() bool {
					w := p.work()["parcels"]
					return w.Done+w.Failed >= 6 && w.InFlight == 0
				})
				w := p.work()["parcels"]
				require.EqualValues(t, 3, w.Failed)
				stop()
			}
			require.Equal(t, operate.Handled{Done: round * 6, Failed: round * 6}, sum())
		}
		work(1)
		work(2)
	})
}

// A step uses the field of the one that is too old, and adds to its own.
func TestAStepOfTheHistoryReplacesAnOldOne(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		d := depot{t, s, db}
		command, _ := d.command()
		c, done, err := command.connected(t.Context())
		require.NoError(t, err)
		defer done()
		for field := range historyFields {
			require.NoError(t, c.HSet(t.Context(), historyKey, fmt.Sprint(field), fmt.Sprintf(`{"step":%d,"routes":{"old":[1,2]}}`, field)).Err())
		}
		var h, other history
		tell := func(h *history, total, failed uint64) {
			require.NoError(t, h.tell(t.Context(), c, map[string]pipeline.RouteWork{"orders": {Done: total, Failed: failed}, "idle": {}}))
		}
		tell(&h, 1<<40, 1)
		tell(&h, 1<<40+5, 1)
		tell(&other, 2, 2)
		tell(&other, 2, 2)
		steps, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		var sum operate.Handled
		for step, routes := range steps {
			if step < historyFields {
				require.Equal(t, operate.Handled{Done: 1, Failed: 2}, routes["old"])
				continue
			}
			require.InDelta(t, time.Now().Unix()/15, step, 2)
			require.NotContains(t, routes, "idle")
			sum.Done, sum.Failed = sum.Done+routes["orders"].Done, sum.Failed+routes["orders"].Failed
		}
		require.Equal(t, operate.Handled{Done: 1<<40 + 7, Failed: 3}, sum)
		require.Less(t, len(steps), historyFields+1)
		life, err := c.TTL(t.Context(), historyKey).Result()
		require.NoError(t, err)
		require.InDelta(t, 16*time.Minute, life, float64(time.Minute))
	})
}

// What was not told is left out, because it may have arrived.
func TestWhatWasNotToldIsLeftOut(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		command, _ := depot{t, s, db}.command()
		c, done, err := command.connected(t.Context())
		require.NoError(t, err)
		defer done()
		var h history
		ended, end := context.WithCancel(t.Context())
		end()
		require.ErrorIs(t, h.tell(ended, c, map[string]pipeline.RouteWork{"orders": {Done: 100}}), context.Canceled)
		require.NoError(t, h.tell(t.Context(), c, map[string]pipeline.RouteWork{"orders": {Done: 103}}))
		steps, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		require.Len(t, steps, 1)
		for _, routes := range steps {
			require.Equal(t, map[string]operate.Handled{"orders": {Done: 3}}, routes)
		}
	})
}
