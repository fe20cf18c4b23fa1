package redis

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// handled returns what all steps have of a route.
func handled(t *testing.T, of *Plugin, route string) (sum operate.Handled) {
	t.Helper()
	steps, _, err := of.ReadHistory(t.Context())
	require.NoError(t, err)
	for _, routes := range steps {
		sum.Done, sum.Failed = sum.Done+routes[route].Done, sum.Failed+routes[route].Failed
	}
	return sum
}

// What two instances did is added up to the last message, also after they have stopped, and a start under the same
// name begins with nothing. Nothing ever counts twice, and some of it is left out only while the machine stands still.
func TestTheHistoryHasWhatEachInstanceDid(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		d := depot{t, s, db}
		command, _ := d.command()
		round := func(name string) bool {
			p, stop := d.start(name, name)
			before := handled(t, command, "parcels")
			for range 3 {
				require.NoError(t, p.Sink(name).Publish(t.Context(), message.NewMessage(watermill.NewULID(), []byte("good")), message.NewMessage(watermill.NewULID(), []byte("bad"))))
			}
			redistest.Eventually(t, "all are handled", func() bool {
				w := p.work()["parcels"]
				return w.Done+w.Failed >= 6 && w.InFlight == 0
			})
			stop()
			after := handled(t, command, "parcels")
			done, failed := after.Done-before.Done, after.Failed-before.Failed
			require.LessOrEqual(t, done, uint64(3))
			require.LessOrEqual(t, failed, uint64(3))
			return done == 3 && failed == 3
		}
		for _, name := range []string{"a-" + watermill.NewULID(), "b-" + watermill.NewULID()} {
			whole := 0
			for n := 0; whole < 2; n++ {
				require.Less(t, n, 20, "what an instance did is never told as a whole")
				if round(name) {
					whole++
				}
			}
		}
	})
}

// teller is an instance whose counters a test sets.
type teller struct {
	history
	t  *testing.T
	c  goredis.UniversalClient
	at time.Time
}

// tell tells the counters of the route orders after some time.
func (s *teller) tell(ctx context.Context, after time.Duration, done, failed uint64) error {
	s.at = s.at.Add(after)
	return s.history.tell(ctx, s.c, s.at, func() map[string]pipeline.RouteWork {
		return map[string]pipeline.RouteWork{"orders": {Done: done, Failed: failed}, "idle": {}}
	})
}

func (s *teller) tells(after time.Duration, done, failed uint64) {
	s.t.Helper()
	require.NoError(s.t, s.tell(s.t.Context(), after, done, failed))
}

// eachHistory runs a test with a command that reads the history of a database, and with instances that tell.
func eachHistory(t *testing.T, test func(t *testing.T, command *Plugin, c goredis.UniversalClient, instance func() *teller)) {
	t.Helper()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		command, _ := depot{t, s, db}.command()
		c, done, err := command.connected(t.Context())
		require.NoError(t, err)
		defer done()
		test(t, command, c, func() *teller { return &teller{t: t, c: c, at: time.Now()} })
	})
}

// A step uses the field of one that is too old or can't be read, and adds to its own.
func TestAStepOfTheHistoryReplacesAnOldOne(t *testing.T) {
	t.Parallel()
	eachHistory(t, func(t *testing.T, command *Plugin, c goredis.UniversalClient, instance func() *teller) {
		clock, err := c.Time(t.Context()).Result()
		require.NoError(t, err)
		now := clock.Unix() / 15
		bad := []string{"x", "5", "[]", "null", `{"step":%d}`, `{"step":%d,"routes":7}`, `{"step":%d,"routes":[]}`, `{"step":"a","routes":{"orders":[1,2]}}`, `{"step":%d,"routes":{"orders":null}}`, `{"step":%d,"routes":{"orders":["a"]}}`}
		for field := range historyFields {
			text := fmt.Sprintf(`{"step":%d,"routes":{"orders":[1,2]}}`, field)
			if field%2 == 0 {
				text = strings.ReplaceAll(bad[field/2%len(bad)], "%d", fmt.Sprint(now+int64(field)-now%historyFields))
			}
			require.NoError(t, c.HSet(t.Context(), historyKey, fmt.Sprint(field), text).Err())
		}
		before := handled(t, command, "orders")
		a, b := instance(), instance()
		a.tells(0, 0, 0)
		a.tells(time.Second, 1<<40, 1)
		a.tells(time.Second, 1<<40+5, 1)
		b.tells(0, 2, 2)
		b.tells(time.Second, 2, 2)
		steps, at, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		require.InDelta(t, now, at, 2)
		var told []int64
		for step, routes := range steps {
			require.NotContains(t, routes, "idle")
			if step >= now {
				told = append(told, step)
			}
		}
		require.NotEmpty(t, told)
		after := handled(t, command, "orders")
		gone := uint64(0) // at most two steps were replaced, whose fields had 1 and 2
		for gone < 2 && after.Done+gone != before.Done+1<<40+7 {
			gone++
		}
		require.Equal(t, before.Done+1<<40+7, after.Done+gone)
		require.Equal(t, before.Failed+3, after.Failed+2*gone)
		life, err := c.PTTL(t.Context(), historyKey).Result()
		require.NoError(t, err)
		require.InDelta(t, 16*time.Minute, life, float64(time.Minute))
	})
}

// An instance that does nothing says so, and one without routes says nothing.
func TestAStepInWhichNothingWasDone(t *testing.T) {
	t.Parallel()
	eachHistory(t, func(t *testing.T, command *Plugin, c goredis.UniversalClient, instance func() *teller) {
		none := instance()
		require.NoError(t, none.history.tell(t.Context(), c, none.at, func() map[string]pipeline.RouteWork { return nil }))
		steps, _, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		require.Empty(t, steps)
		idle := instance()
		idle.tells(0, 0, 0)
		idle.tells(time.Second, 0, 0)
		steps, now, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		require.NotEmpty(t, steps)
		for step, routes := range steps {
			require.InDelta(t, now, step, 1)
			require.Empty(t, routes)
		}
	})
}

// What was not told is left out: it may have arrived, and what was done in a long outage belongs to no step.
func TestWhatWasNotToldIsLeftOut(t *testing.T) {
	t.Parallel()
	eachHistory(t, func(t *testing.T, command *Plugin, _ goredis.UniversalClient, instance func() *teller) {
		ended, end := context.WithCancel(t.Context())
		end()
		a := instance()
		require.ErrorIs(t, a.tell(ended, 0, 100, 0), context.Canceled)
		a.tells(5*time.Second, 103, 0)
		require.Equal(t, operate.Handled{Done: 3}, handled(t, command, "orders"))
		before, _, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		a.tells(10*time.Minute, 5000, 70)
		after, _, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		require.Equal(t, before, after, "not even that nothing was done")
		a.tells(5*time.Second, 5004, 71)
		require.Equal(t, operate.Handled{Done: 7, Failed: 1}, handled(t, command, "orders"))
	})
}

// What was done before an instance could tell anything belongs to no step either.
func TestAnOutageAtTheStartIsLeftOut(t *testing.T) {
	t.Parallel()
	eachHistory(t, func(t *testing.T, command *Plugin, _ goredis.UniversalClient, instance func() *teller) {
		a := instance()
		a.begin(a.at)
		a.tells(10*time.Minute, 5000, 70)
		steps, _, err := command.ReadHistory(t.Context())
		require.NoError(t, err)
		require.Empty(t, steps)
		a.tells(5*time.Second, 5001, 70)
		require.Equal(t, operate.Handled{Done: 1}, handled(t, command, "orders"))
	})
}

// A full server has charts, too, because somebody looks at them then.
func TestAFullServerTakesTheHistory(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		command, _ := depot{t, s.Server, 0}.command()
		c, done, err := command.connected(t.Context())
		require.NoError(t, err)
		defer done()
		require.NoError(t, c.ConfigSet(t.Context(), "maxmemory", "1").Err())
		require.ErrorContains(t, c.Set(t.Context(), "k", "v", 0).Err(), "OOM")
		a := &teller{t: t, c: c, at: time.Now()}
		a.tells(0, 7, 0)
		require.Equal(t, operate.Handled{Done: 7}, handled(t, command, "orders"))
	})
}
