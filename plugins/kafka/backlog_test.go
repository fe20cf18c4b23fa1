package kafka

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// What a group has not done is counted from its commits, also by a process that reads nothing.
func TestBacklog(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		orders, retry := prefix+"orders", prefix+"retry"
		t.Cleanup(func() { deleteTopics(t, p, orders, retry) })
		routes := func() (code int, byName map[string]operate.RouteStatus) {
			code, out, errs := runShop(t, brokers, prefix, "routes", "--json")
			var status operate.RoutesStatus
			require.NoError(t, json.Unmarshal([]byte(out), &status), "%s%s", out, errs)
			require.Empty(t, status.Checks)
			byName = map[string]operate.RouteStatus{}
			for _, r := range status.Routes {
				byName[r.Route] = r
			}
			return code, byName
		}
		code, before := routes()
		require.Equal(t, app.ExitOK, code)
		require.EqualValues(t, 0, *before["shop.orders"].Waiting, "the topic does not exist")

		began := time.Now().Add(-time.Minute) // a broker's clock may differ
		require.NoError(t, p.ensureTopics(t.Context(), orders, retry))
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		for i := range 5 {
			publish(t, p, orders, message.NewMessage(watermill.NewULID(), []byte("x")))
			if i < 2 {
				m := message.NewMessage(watermill.NewULID(), []byte("x"))
				m.Metadata.Set(pipeline.MetaDue, due.Add(time.Duration(i)*time.Minute).Format(time.RFC3339Nano))
				publish(t, p, retry, m)
			}
		}
		_, after := routes()
		status := after["shop.orders"]
		require.EqualValues(t, 5, *status.Waiting)
		require.Nil(t, status.InFlight, "Kafka does not tell")
		require.True(t, status.Oldest.After(began), status.Oldest)
		require.EqualValues(t, 2, *status.Retries)
		require.WithinDuration(t, due, *status.NextDue, 0)
		require.NotContains(t, after, "shop.again", "it is part of the route that retries")

		sub, messages := subscribe(t, p.Source(orders, prefix), pipeline.Flow{})
		for range 5 {
			select {
			case m := <-messages:
				m.Ack()
			case <-time.After(30 * time.Second):
				require.FailNow(t, "no message")
			}
		}
		require.NoError(t, sub.Close())
		done, err := p.Source(orders, prefix).(operate.Measured).Backlog(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 0, *done.Waiting)
		require.Zero(t, done.Oldest)
	})
	code, out, errs := runShop(t, []string{"127.0.0.1:1"}, "none-", "routes")
	require.Equal(t, app.ExitUnavailable, code, errs)
	require.Contains(t, errs, `"msg":"waiting for kafka"`)
	require.Contains(t, out, "shop.orders  -  ")
	require.Contains(t, out, "not known: route shop.orders: ")
	require.Contains(t, out, "127.0.0.1:1")
}
