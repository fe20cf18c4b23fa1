package kafka

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/middleware"
)

// retryTopic is the topic of a bench as the Retry.To of a route.
type retryTopic struct{ comingBack }

func (retryTopic) Describe() pipeline.Endpoint { return pipeline.Endpoint{Kind: Kind, Name: "topic"} }

// The chain writes the due time, and the claim of the retry topic keeps it: for every delay the
// handler is called again no sooner than the delay, and not much later. The attempts count only
// what the handler has seen.
func TestARetryComesNoSoonerThanItsDelay(t *testing.T) {
	random := newRandom(24)
	delays := []time.Duration{0, time.Second, longestHold - time.Second, longestHold, longestHold + time.Second, 25 * time.Hour, 40 * time.Hour, 3*longestHold + time.Millisecond}
	for range 12 {
		delays = append(delays, time.Duration(random.Int64N(int64(6*longestHold))))
	}
	for _, delay := range delays {
		t.Run(delay.String(), func(t *testing.T) {
			onBench(t, pipeline.Flow{Window: 4}, benchOption{comeBack: true}, func(t *testing.T, b *bench) {
				const attempts = 3
				var called []time.Time
				done := make(chan struct{})
				handle := chainOn(t, b, pipeline.Retry{Max: attempts - 1}, func(m *message.Message) ([]*message.Message, error) {
					if called = append(called, time.Now()); len(called) > 1 {
						require.Equal(t, strconv.Itoa(len(called)-1), m.Metadata.Get(pipeline.MetaAttempt), "a move is no attempt")
					}
					if len(called) == attempts {
						close(done)
						return nil, nil
					}
					return nil, pipeline.RetryAfter(errors.New("overloaded"), delay)
				})
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					handle(done)
				}()
				b.write("key")
				<-done
				<-stopped
				require.Len(t, called, attempts)
				for i := range attempts - 1 {
					waited := called[i+1].Sub(called[i])
					require.GreaterOrEqual(t, waited, delay)
					require.Less(t, waited, delay+time.Second)
				}
				b.everyCopyIsYoung(t)
			})
		})
	}
}

// chainOn returns a function that handles what the bench delivers by a chain whose retries come
// back to the bench, until done is closed.
func chainOn(t *testing.T, b *bench, again pipeline.Retry, handle func(*message.Message) ([]*message.Message, error)) func(done <-chan struct{}) {
	t.Helper()
	again.To = retryTopic{comingBack{b.again, b}}
	route := pipeline.Route{
		Name: "toy", From: New().Source("topic", "group"), Handle: handle,
		Policy: pipeline.Policy{Retry: again, DeadLetter: pipeline.Drop},
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{}, router{route})
	require.NoError(t, err)
	wrapped, _ := middleware.New(reg, middleware.Options{}).Wrap(route)
	return func(done <-chan struct{}) {
		for {
			select {
			case <-done:
				return
			case m := <-b.sub.Out:
				if _, err := wrapped(m); err != nil {
					m.Nack()
				} else {
					m.Ack()
				}
			}
		}
	}
}

// everyCopyIsYoung requires that no record was in one place of the topic for much longer than the
// longest hold.
func (b *bench) everyCopyIsYoung(t *testing.T) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, at := range b.written[1:] {
		require.LessOrEqual(t, at.Sub(b.written[i]), longestHold, "record %d", i)
	}
}

// A record that is held for the limit is moved to the end of its topic, with the same due time and
// headers, and again, until it is due. Its offset is then acknowledged, so the commit goes on.
func TestClaimMovesARecordBeforeItIsTooOld(t *testing.T) {
	for _, order := range []pipeline.Order{pipeline.OrderNone, pipeline.OrderKey, pipeline.OrderPartition} {
		t.Run(order.String(), func(t *testing.T) {
			onBench(t, pipeline.Flow{Order: order}, benchOption{comeBack: true}, func(t *testing.T, b *bench) {
				headers := due(2*longestHold + longestHold/2)
				headers[pipeline.MetaAttempt], headers["own"] = "2", "kept"
				b.writeRecord("", headers, "far")
				for n := range 3 {
					synctest.Wait()
					require.Len(t, b.again.Messages(), n)
					require.EqualValues(t, n, b.marked())
					require.Empty(t, b.out())
					if n < 2 {
						time.Sleep(longestHold)
					}
				}
				for _, m := range b.again.Messages() {
					require.Equal(t, message.Metadata(headers), m.Metadata)
					require.Equal(t, "far", string(m.Payload))
				}
				time.Sleep(longestHold/2 - time.Second)
				require.Empty(t, b.out(), "a second too early")
				time.Sleep(time.Second)
				got := b.out()
				require.Equal(t, []int64{2}, offsets(got))
				got[0].Ack()
				synctest.Wait()
				require.EqualValues(t, 3, b.marked())
				b.everyCopyIsYoung(t)
			})
		})
	}
}

// The limit counts from the time of the record, not from the beginning of the claim, so rebalances
// do not prolong it. A wrong clock neither prolongs it nor makes a loop.
func TestTheHoldCountsFromTheTimestamp(t *testing.T) {
	s := &subscription{hold: longestHold}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tt := range map[string]struct{ written, want time.Time }{
		"just written":         {now, now.Add(longestHold)},
		"an hour ago":          {now.Add(-time.Hour), now.Add(longestHold - time.Hour)},
		"a clock that is fast": {now.Add(90 * 24 * time.Hour), now.Add(longestHold)},
		"long ago":             {now.Add(-90 * 24 * time.Hour), now.Add(moveEvery)},
		"no timestamp":         {time.Time{}, now.Add(moveEvery)},
	} {
		require.Equal(t, tt.want, s.moveAt(tt.written, now), name)
	}
}

// A record that can't be moved stays, is not delivered, and is moved when that is possible again.
// The log says it once, not for each attempt and each record.
func TestARecordThatCanNotBeMovedStays(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 8}, benchOption{}, func(t *testing.T, b *bench) {
		b.again.FailWith(errors.New("no broker"))
		for range 4 {
			b.writeRecord("", due(2*longestHold), "far")
		}
		time.Sleep(longestHold + 9*moveEvery)
		require.Empty(t, b.out())
		require.Zero(t, b.marked())
		require.Equal(t, 4, b.claim.status(time.Now()).notDue)
		require.Equal(t, 1, strings.Count(b.log.String(), "moved to the end of its topic; it is tried again"))
		b.again.FailWith(nil)
		time.Sleep(moveEvery)
		synctest.Wait()
		require.Len(t, b.again.Messages(), 4)
		require.EqualValues(t, 4, b.marked())
		require.Empty(t, b.out())
	})
}

// The end of the claim ends the hold. The record is neither delivered, moved nor marked: the next
// owner of the partition reads it.
func TestAHeldRecordIsLeftToTheNextOwner(t *testing.T) {
	onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
		b.writeRecord("", due(2*longestHold), "far")
		time.Sleep(time.Hour)
		b.endSess()
		<-b.ended
		time.Sleep(2 * longestHold)
		require.Empty(t, b.out())
		require.Empty(t, b.again.Messages())
		require.Zero(t, b.marked())
	})
}

// The same on a server, with a shorter limit: the record is published to its topic again and again,
// unchanged, through a change of the owner, and is handled once, when it is due.
func TestARecordThatIsNotDueMovesOn(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		p.longestHold = 500 * time.Millisecond
		topic := topicFor(t, p)
		isRetryTopic(t, p, topic)
		dueAt := time.Now().Add(30 * time.Second) // a busy machine moves it few times
		far := texts("far")[0]
		far.Metadata = message.Metadata{
			pipeline.MetaDue: dueAt.UTC().Format(time.RFC3339Nano), pipeline.MetaAttempt: "3", pipeline.MetaRetryOf: "route", pipeline.MetaKey: "key", "own": "kept",
		}
		publish(t, p, topic, far)
		publish(t, p, topic, texts("now")...)
		moved := func(n float64) {
			t.Helper()
			counter := p.metrics.bySubscription[countMoved].WithLabelValues(topic, topic)
			require.Eventually(t, func() bool { return testutil.ToFloat64(counter) >= n }, 2*time.Minute, time.Millisecond)
		}
		first, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		m := next(t, out)
		require.Equal(t, "now", string(m.Payload), "records behind it go on")
		m.Ack()
		moved(2)
		require.NoError(t, first.Close())
		_, out = subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		moved(4)
		m = next(t, out)
		require.False(t, time.Now().Before(dueAt), "it is never delivered before it is due")
		require.Equal(t, far.Payload, m.Payload)
		require.Equal(t, far.Metadata, m.Metadata)
		require.GreaterOrEqual(t, offsetOf(m), int64(5))
		m.Ack()

		plain := start(t, brokers) // to it the due time has no meaning
		copies := 0
		for _, m := range everything(t, plain, topic, int(offsetOf(m))+1) {
			if string(m.Payload) == "far" {
				copies++
				require.Equal(t, far.Metadata, m.Metadata, "each copy has the same due time and attempts")
			}
		}
		require.GreaterOrEqual(t, copies, 5)
	})
}

// A foreign record of the year 9999 is handled at once, and no copy of it is published.
func TestARecordThatWouldNeverBeDueIsHandled(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		p.longestHold = 10 * time.Millisecond
		topic := topicFor(t, p)
		isRetryTopic(t, p, topic)
		never := texts("never")[0]
		never.Metadata = message.Metadata{pipeline.MetaDue: "9999-12-31T23:59:59Z", "own": "kept"}
		publish(t, p, topic, never)
		status, err := p.Source(topic, topic).(groupSource).Backlog(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, *status.Waiting)
		require.Zero(t, status.NextDue, "it is due")
		_, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{})
		m := next(t, out)
		require.Equal(t, never.Metadata, m.Metadata)
		require.Zero(t, offsetOf(m), "the record itself and no copy")
		m.Ack()
	})
}

// keeping creates a topic that keeps its records for that long.
func keeping(t *testing.T, p *Plugin, topic, retention, policy string) {
	t.Helper()
	live, err := p.connected()
	require.NoError(t, err)
	admin, err := sarama.NewClusterAdminFromClient(live.client)
	require.NoError(t, err)
	require.NoError(t, admin.CreateTopic(topic, &sarama.TopicDetail{
		NumPartitions: 1, ReplicationFactor: 1,
		ConfigEntries: map[string]*string{configRetention: &retention, configCleanupPolicy: &policy},
	}, false))
	t.Cleanup(func() { deleteTopics(t, p, topic) })
	require.Eventually(t, func() bool {
		s := []*topicStatus{{neededTopic: neededTopic{Name: topic}}}
		return live.readSettings(s) == nil && s[0].Settings[configRetention] == retention
	}, 2*time.Minute, 10*time.Millisecond)
}

// A delay that is longer than the retry topic keeps its records is refused at the start, and the
// error names both. The command topics says the same.
func TestADelayBeyondTheRetentionIsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		for name, tt := range map[string]struct {
			retention, policy string
			retry             pipeline.Retry
			refused           string // the longest delay; empty: none
		}{
			"longer":                   {"3600000", "delete", pipeline.Retry{Backoff: pipeline.Backoff{First: time.Minute, Max: 2 * time.Hour}}, "2h0m0s"},
			"the last retry is longer": {"3600000", "delete", pipeline.Retry{Max: 3, Backoff: pipeline.Backoff{First: 20 * time.Minute, Max: 20 * time.Hour}}, "1h20m0s"},
			"never reached":            {"3600000", "delete", pipeline.Retry{Max: 2, Backoff: pipeline.Backoff{First: 20 * time.Minute, Max: 20 * time.Hour}}, ""},
			"equal":                    {"3600000", "delete", pipeline.Retry{Backoff: pipeline.Backoff{First: time.Minute, Max: time.Hour}}, ""},
			"without a limit":          {"-1", "delete", pipeline.Retry{Backoff: pipeline.Backoff{First: time.Minute, Max: 20 * time.Hour}}, ""},
			"compacted":                {"3600000", "compact", pipeline.Retry{Backoff: pipeline.Backoff{First: time.Minute, Max: 20 * time.Hour}}, ""},
		} {
			topic := topicFor(t, admin)
			keeping(t, admin, topic, tt.retention, tt.policy)
			p := New()
			quick(&p.config)
			p.config.Brokers = brokers
			tt.retry.To = p.Sink(topic)
			_, err := pipeline.NewRegistry(pipeline.Env{}, p, router{{
				Name: "orders", From: p.Source(topic, topic), Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
				Policy: pipeline.Policy{Retry: tt.retry, DeadLetter: pipeline.Drop},
			}})
			require.NoError(t, err)
			err = routesService{service{p}}.Start(t.Context())
			if tt.refused == "" {
				require.NoError(t, err, name)
				require.NoError(t, service{p}.Stop(t.Context()))
				continue
			}
			require.ErrorContains(t, err, fmt.Sprintf("topic %s (source of orders; retry of orders): retention.ms is 3600000 (1h0m0s), and the retry delay of route orders is up to %s", topic, tt.refused), name)
			require.NotErrorIs(t, err, pipeline.ErrUnavailable)
			_, err = p.connected()
			require.ErrorIs(t, err, errNotStarted, "the service is closed again")

			require.NoError(t, service{p}.Start(t.Context()))
			_, err = p.Source(topic, topic).Open(t.Context(), pipeline.Flow{})
			require.ErrorContains(t, err, "the retry delay of route orders is up to "+tt.refused, "also where the topic is made after the start")
			require.NoError(t, service{p}.Stop(t.Context()))
		}

		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		keeping(t, admin, prefix+"retry", "10000", "delete") // a shop retries after up to 30 seconds
		code, out, errs := runShop(t, brokers, prefix, "topics")
		require.Equal(t, app.ExitBad, code, errs)
		require.Contains(t, out, "retention.ms is 10000 (10s), and the retry delay of route shop.orders is up to 30s: retention may remove a record before it is due")
	})
}

// Where the retention of the retry topic is known, a record is moved when half of it is over.
func TestTheHoldIsShorterThanTheRetention(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		for retention, hold := range map[string]time.Duration{"7200000": time.Hour, "604800000": longestHold, "-1": longestHold} {
			topic := topicFor(t, p)
			keeping(t, p, topic, retention, "delete")
			isRetryTopic(t, p, topic)
			s, err := p.Source(topic, topic).Open(t.Context(), pipeline.Flow{})
			require.NoError(t, err)
			require.Equal(t, hold, s.(*subscription).hold)
			require.NoError(t, s.Close())
		}
	})
}
