package kafka

import (
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
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
			var status operate.RoutesStatus
			require.EventuallyWithT(t, func(c *assert.CollectT) { // a busy broker may not know its new topics yet
				var out, errs string
				code, out, errs = runShop(t, brokers, prefix, "routes", "--json")
				status = operate.RoutesStatus{}
				require.NoError(c, json.Unmarshal([]byte(out), &status), "%s%s", out, errs)
				require.Empty(c, status.Checks)
			}, 2*time.Minute, 10*time.Millisecond)
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
		topic, ok := ParseOrigin(status.OldestAt)
		require.True(t, ok, status.OldestAt)
		require.Equal(t, orders, topic)
		require.EqualValues(t, 2, *status.Retries)
		require.WithinDuration(t, due, *status.NextDue, 0)
		require.NotContains(t, after, "shop.again", "it is part of the route that retries")

		sub, messages := subscribe(t, p.Source(orders, prefix), pipeline.Flow{})
		for range 5 {
			select {
			case m := <-messages:
				m.Ack()
			case <-time.After(2 * time.Minute):
				require.FailNow(t, "no message")
			}
		}
		require.NoError(t, sub.Close())
		done, err := p.Source(orders, prefix).(operate.Measured).Backlog(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 0, *done.Waiting)
		require.Zero(t, done.Oldest)
		require.Empty(t, done.OldestAt)
	})
	code, out, errs := runShop(t, []string{"127.0.0.1:1"}, "none-", "routes", "--route", "shop.order")
	require.Equal(t, app.ExitUsage, code, errs)
	require.Empty(t, out)
	require.Contains(t, errs, `no route has the name "shop.order"; the routes are shop.orders, shop.again`)
	code, out, errs = runShop(t, []string{"127.0.0.1:1"}, "none-", "routes")
	require.Equal(t, app.ExitUnavailable, code, errs)
	require.Contains(t, errs, `"msg":"waiting for kafka"`)
	require.Contains(t, out, "shop.orders  -  ")
	require.Contains(t, out, "not known: route shop.orders: ")
	require.Contains(t, out, "127.0.0.1:1")
}

// A record that is not due holds back the commit of those behind it, and these are done.
func TestTheBacklogHasNoRecordsThatAreDone(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		topic := topicFor(t, p)
		isRetryTopic(t, p, topic)
		began := time.Now().Add(-time.Minute) // a broker's clock may differ
		due := time.Now().Add(time.Hour).Truncate(time.Millisecond)
		for i := range 6 {
			m := message.NewMessage(watermill.NewULID(), []byte("x"))
			m.Metadata.Set(pipeline.MetaDue, due.Add(time.Duration(i)*time.Minute).Format(time.RFC3339Nano))
			publish(t, p, topic, m)
		}
		backlog := func() operate.Backlog {
			b, err := p.Source(topic, topic).(operate.Measured).Backlog(t.Context())
			require.NoError(t, err)
			return b
		}
		require.EqualValues(t, 6, *backlog().Waiting)
		joinOnce(t, p, topic) // the group exists
		commitWith(t, p, topic, 0, progress{base: 1, done: doneBefore{1, 2, 4, 100}})
		b := backlog()
		require.EqualValues(t, 2, *b.Waiting, "the records 3 and 5")
		require.WithinDuration(t, due.Add(3*time.Minute), b.NextDue, 0)
		require.True(t, b.Oldest.After(began), b.Oldest)
		commitWith(t, p, topic, 0, progress{base: 3, done: doneBefore{3, 4, 5}})
		require.Equal(t, operate.Backlog{Waiting: new(int64)}, backlog())
		commitWith(t, p, topic, 0, progress{base: 5, topic: topicID{1}, done: doneBefore{5}})
		require.EqualValues(t, 6, *backlog().Waiting, "the commit is of a topic that was deleted, so the new one is read from its beginning")
		commitWith(t, p, topic, 0, progress{base: 100})
		require.EqualValues(t, 6, *backlog().Waiting, "the commit is outside the log")
	})
}

// absentRoutes are routes of topics that do not exist.
func absentRoutes(p *Plugin, n int) router {
	var all router
	for i := range n {
		topic := "kafka-test-absent-" + watermill.NewShortUUID()
		all = append(all, pipeline.Route{
			Name: fmt.Sprint("absent.", i), From: p.Source(topic, topic),
			Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
			Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		})
	}
	return all
}

// reportOfAbsent reads the report of n routes whose topics do not exist, without the service.
func reportOfAbsent(t *testing.T, brokers []string, n int) operate.RoutesStatus {
	t.Helper()
	p := New()
	quick(&p.config)
	p.config.Brokers = brokers
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, p, absentRoutes(p, n))
	require.NoError(t, err)
	answer, err := operate.Routes().Read(t.Context(), reg, nil)
	require.NoError(t, err)
	status, ours := answer.Value.(operate.RoutesStatus)
	require.True(t, ours)
	return status
}

func TestAbsentTopicsHaveNothingToDo(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		status := reportOfAbsent(t, brokers, 12)
		require.Empty(t, status.Checks)
		require.Len(t, status.Routes, 12)
		for _, r := range status.Routes {
			require.EqualValues(t, 0, *r.Waiting, r.Route)
		}
	})
}

// A report connects once however many routes there are, and asks once about an absent topic, so that
// it ends within the wait of a command.
func TestAReportConnectsOnceAndAsksOnce(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	var mu sync.Mutex
	var clients int // requests for all topics: a client makes them when it connects
	asked := map[string]int{}
	cluster.ControlKey(int16(kmsg.Metadata), func(r kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		request, ours := r.(*kmsg.MetadataRequest)
		if !ours || len(request.Topics) == 0 {
			clients++
			return nil, nil, false
		}
		for _, topic := range request.Topics {
			asked[*topic.Topic]++
		}
		return nil, nil, false
	})
	reportOfAbsent(t, cluster.ListenAddrs(), 1)
	mu.Lock()
	ofOne := clients
	clear(asked)
	mu.Unlock()
	require.Positive(t, ofOne)
	reportOfAbsent(t, cluster.ListenAddrs(), 5)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, 2*ofOne, clients)
	require.Len(t, asked, 5)
	for topic, n := range asked {
		require.Equal(t, 1, n, topic)
	}
}
