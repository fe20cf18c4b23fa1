package kafka

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

func balancedBy(names ...string) func(*Config) {
	return func(c *Config) {
		c.Balance = names
		c.RebalanceTimeout, c.DrainTimeout = time.Minute, 40*time.Second // a test answers before
	}
}

// member is a subscription of a test whose messages are answered one by one.
type member struct {
	*subscription
	out      <-chan *message.Message
	inFlight map[int32]*message.Message
}

// join adds a member that has at most one record of a partition in flight.
func join(t *testing.T, p *Plugin, topic string) *member {
	t.Helper()
	sub, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{Window: 1})
	s, ours := sub.(*subscription)
	require.True(t, ours)
	m := &member{subscription: s, out: out, inFlight: map[int32]*message.Message{}}
	t.Cleanup(m.answer)
	return m
}

// take receives one message and keeps it unanswered.
func (m *member) take(t *testing.T) *message.Message {
	t.Helper()
	got := next(t, m.out)
	m.inFlight[partitionOf(got)] = got
	return got
}

// answer acknowledges everything in flight.
func (m *member) answer() {
	for p, msg := range m.inFlight {
		msg.Ack()
		delete(m.inFlight, p)
	}
}

// claimed returns the live claims per partition, without those that are ending.
func (m *member) claimed() map[int32]*claim {
	claims := map[int32]*claim{}
	for _, c := range m.live() {
		if c.ctx.Err() == nil {
			claims[c.partition] = c
		}
	}
	return claims
}

func (m *member) waitForClaims(t *testing.T, n int) map[int32]*claim {
	t.Helper()
	require.Eventually(t, func() bool { return len(m.claimed()) == n }, 2*time.Minute, 10*time.Millisecond, "%d claims", n)
	return m.claimed()
}

// spread publishes records of many keys, so that every partition gets some.
func spread(t *testing.T, p *Plugin, topic, text string) {
	t.Helper()
	msgs := texts(slices.Repeat([]string{text}, 100)...)
	for i, m := range msgs {
		m.Metadata.Set(pipeline.MetaKey, strconv.Itoa(i))
	}
	publish(t, p, topic, msgs...)
}

// In a cooperative group a member that joins stops only the partitions that move. That holds while
// these wait for a handler, and while the group waits for a member that has not joined again.
func TestCooperativeRebalanceStopsOnlyWhatMoves(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, balancedBy(balanceCooperative), func(c *Config) { c.Partitions = 8 })
		topic := topicFor(t, p)
		spread(t, p, topic, "before")
		a := join(t, p, topic)
		before := a.waitForClaims(t, 8)
		for range before {
			a.take(t)
		}
		b := join(t, p, topic)
		kept := a.waitForClaims(t, 4)
		for partition, c := range kept {
			require.Same(t, before[partition], c, "it goes on as if nothing had happened")
		}
		require.Len(t, a.live(), 8, "the others wait for their handlers")
		reads(t, p, topic, a, kept, "while the partitions move")
		a.answer()
		b.waitForClaims(t, 4)
		for range 4 {
			b.take(t)
		}

		for range 4 {
			a.take(t)
		}
		b.answer()
		// With one more member each owner loses one. The first waits for its handler, so the join
		// of the second waits, too.
		join(t, p, topic)
		reading := b.waitForClaims(t, 3)
		a.waitForClaims(t, 3)
		require.Eventually(t, func() bool { return stateOf(t, p, topic) == "PreparingRebalance" }, 2*time.Minute, 10*time.Millisecond)
		for range 20 {
			for range reading {
				b.take(t)
			}
			reads(t, p, topic, b, reading, watermill.NewShortUUID())
			b.answer()
		}
		require.Len(t, a.live(), 4, "still not let go")
		a.answer()
	})
}

// A handler that outlives the drain may still run when its member gets the partition back. Its
// records are not delivered twice, and its answers count for the new claim.
func TestAClaimWaitsForTheHandlersOfAnEarlierOne(t *testing.T) {
	t.Parallel()
	for _, balance := range []string{balanceRange, balanceCooperative} {
		t.Run(balance, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, brokers []string) {
				p := start(t, brokers, balancedBy(balance), func(c *Config) { c.Partitions, c.DrainTimeout = 2, 100*time.Millisecond })
				topic := topicFor(t, p)
				spread(t, p, topic, "x")
				sub, out := subscribe(t, p.Source(topic, topic), pipeline.Flow{Window: 2})
				s, ours := sub.(*subscription)
				require.True(t, ours)
				a := &member{subscription: s, out: out}
				before := a.waitForClaims(t, 2)
				flying := map[int32][]*message.Message{}
				for range 4 {
					m := next(t, out)
					partition := partitionOf(m)
					flying[partition] = append(flying[partition], m)
				}

				b := join(t, p, topic)
				var moved int32
				for moved = range b.waitForClaims(t, 1) {
					b.take(t) // it runs a second time, in another member
				}
				require.Error(t, contextDone(b.subscription.Drain), "it leaves without an answer")
				require.NoError(t, b.Close())
				require.Eventually(t, func() bool {
					again := a.claimed()
					return len(again) == 2 && again[moved] != before[moved]
				}, 2*time.Minute, 10*time.Millisecond)

				flying[moved][0].Ack()
				flying[moved][1].Nack()
				for _, want := range []int64{2, 1} {
					m := next(t, out)
					partition, offset := placeOf(m)
					require.Equal(t, moved, partition)
					require.Equal(t, want, offset)
					m.Ack()
				}
				for _, m := range flying[1-moved] {
					m.Ack()
				}
				left := 100 - 3 - 2
				for range left {
					m := next(t, out)
					require.Greater(t, offsetOf(m), int64(1))
					m.Ack()
				}
			})
		})
	}
}

// contextDone calls wait with a context that has ended.
func contextDone(wait func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return wait(ctx)
}

// reads publishes text and acknowledges what m has of the claims' partitions until it reads that
// text from each.
func reads(t *testing.T, p *Plugin, topic string, m *member, claims map[int32]*claim, text string) {
	t.Helper()
	spread(t, p, topic, text)
	left := maps.Clone(claims)
	for partition := range left {
		m.inFlight[partition].Ack()
	}
	for len(left) > 0 {
		got := m.take(t)
		partition := partitionOf(got)
		require.Contains(t, claims, partition, "nothing is handed out of a partition that moves")
		if string(got.Payload) == text {
			delete(left, partition)
			continue
		}
		got.Ack()
	}
}

// stateOf returns the state of a topic's group.
func stateOf(t *testing.T, p *Plugin, topic string) string { return describe(t, p, topic).State }

func describe(t *testing.T, p *Plugin, topic string) *sarama.GroupDescription {
	t.Helper()
	live, err := p.connected()
	require.NoError(t, err)
	admin, err := sarama.NewClusterAdminFromClient(live.client)
	require.NoError(t, err)
	groups, err := admin.DescribeConsumerGroups([]string{topic})
	require.NoError(t, err)
	require.Len(t, groups, 1)
	return groups[0]
}

// A stop does not wait for the join of other members.
func TestCloseEndsAPendingJoin(t *testing.T) {
	t.Parallel()
	for _, balance := range []string{balanceRange, balanceCooperative} {
		t.Run(balance, func(t *testing.T) {
			t.Parallel()
			onEach(t, func(t *testing.T, brokers []string) {
				p := start(t, brokers, balancedBy(balance))
				topic := topicFor(t, p)
				spread(t, p, topic, "x")
				busy := join(t, p, topic)
				for range busy.waitForClaims(t, 4) {
					busy.take(t)
				}
				joins := join(t, p, topic)
				if balance == balanceCooperative { // the first two join without a wait
					busy.waitForClaims(t, 2)
					joins = join(t, p, topic)
				}
				require.Eventually(t, func() bool { return stateOf(t, p, topic) == "PreparingRebalance" }, 2*time.Minute, 10*time.Millisecond)
				require.NoError(t, joins.Close())
				require.Len(t, busy.live(), 4, "its handlers have not answered")
				busy.answer()
			})
		})
	}
}

// A stop while a cooperative member's join is pending commits what the member has acknowledged
// meanwhile, and leaves the group.
func TestCloseInAPendingJoinCommits(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, balancedBy(balanceCooperative), func(c *Config) { c.Partitions = 8 })
		topic := topicFor(t, p)
		spread(t, p, topic, "x")
		busy := join(t, p, topic)
		busy.waitForClaims(t, 8)
		closes := join(t, p, topic)
		closes.waitForClaims(t, 4)
		for range busy.waitForClaims(t, 4) {
			busy.take(t)
		}
		// With one more member each owner loses a partition. The first waits for its handler, so
		// the join of the second waits, too.
		third := join(t, p, topic)
		reading := closes.waitForClaims(t, 3)
		busy.waitForClaims(t, 3)
		require.Eventually(t, func() bool { return stateOf(t, p, topic) == "PreparingRebalance" }, 2*time.Minute, 10*time.Millisecond)
		for range reading {
			closes.take(t)
		}
		for partition := range reading {
			closes.inFlight[partition].Ack()
		}
		for range reading {
			closes.take(t)
		}
		clear(closes.inFlight) // its second records have no answer
		require.NoError(t, closes.Close())
		live, err := p.connected()
		require.NoError(t, err)
		commits := committed{live.client, topic, topic, p.log}
		for partition := range reading {
			commit, exists, err := commits.of(partition)
			require.NoError(t, err)
			require.True(t, exists)
			require.EqualValues(t, 1, commit.base, partition)
		}
		require.Len(t, busy.live(), 4, "its handlers have not answered")
		busy.answer()
		third.waitForClaims(t, 4)
	})
}

// The way from one balance to another is two rolling restarts.
func TestChangeOverToCooperative(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		plugins := map[string]*Plugin{}
		for name, balance := range map[string][]string{
			"old": {balanceRange}, "both": {balanceCooperative, balanceRange}, "new": {balanceCooperative},
		} {
			plugins[name] = start(t, brokers, balancedBy(balance...))
		}
		topic := topicFor(t, plugins["old"])
		w := newWork()
		begin := func(name string) pipeline.Subscription {
			sub, out := subscribe(t, plugins[name].Source(topic, topic), pipeline.Flow{Window: 16})
			w.on(out, time.Millisecond)
			return sub
		}
		members := []pipeline.Subscription{begin("old"), begin("old")}
		published := 0
		goesOn := func() {
			t.Helper()
			all := numbered(published + 200)
			publish(t, plugins["old"], topic, texts(all[published:]...)...)
			published = len(all)
			w.waitFor(t, published)
		}
		goesOn()
		for _, name := range []string{"both", "new"} {
			for i := range members {
				require.NoError(t, members[i].Drain(t.Context()))
				members[i] = begin(name)
				goesOn()
			}
		}
		require.Eventually(t, func() bool { return describe(t, plugins["old"], topic).Protocol == balanceCooperative }, 2*time.Minute, 10*time.Millisecond)
		require.Empty(t, w.twice())

		// A member of the first kind has nothing in common with the group any more: no waiting
		// helps, so it fails.
		stranger, _ := subscribe(t, plugins["old"].Source(topic, topic), pipeline.Flow{})
		failer, ours := stranger.(pipeline.Failer)
		require.True(t, ours)
		select {
		case err := <-failer.Failed():
			require.ErrorIs(t, err, sarama.ErrInconsistentGroupProtocol)
		case <-time.After(2 * time.Minute):
			require.Fail(t, "no failure")
		}
	})
}

// A static member that is back within the session timeout has its partitions again, and the others
// notice nothing.
func TestStaticMemberReturnsWithoutARebalance(t *testing.T) {
	t.Parallel()
	for _, balance := range []string{balanceRange, balanceSticky, balanceCooperative} {
		t.Run(balance, func(t *testing.T) {
			t.Parallel()
			// Not on kfake, which rebalances when an assignor's data in a join has changed.
			t.Run("kafka", func(t *testing.T) {
				t.Parallel()
				brokers := realServer().brokers(t)
				static := func(c *Config) { c.StaticMembership, c.SessionTimeout = true, time.Minute }
				one := startAs(t, "one", brokers, balancedBy(balance), static)
				two := startAs(t, "two", brokers, balancedBy(balance), static)
				topic := topicFor(t, one)
				spread(t, one, topic, "x")
				a := join(t, one, topic)
				a.waitForClaims(t, 4)
				b := join(t, two, topic)
				before, others := a.waitForClaims(t, 2), b.waitForClaims(t, 2)
				sessions := testutil.ToFloat64(two.metrics.bySubscription[countSessions].WithLabelValues(topic, topic))

				for range before {
					a.take(t)
				}
				a.answer()
				require.NoError(t, a.Close())
				spread(t, one, topic, "while away")
				a = join(t, one, topic)
				after := a.waitForClaims(t, 2)
				require.ElementsMatch(t, slices.Collect(maps.Keys(before)), slices.Collect(maps.Keys(after)))
				for range after {
					require.Positive(t, offsetOf(a.take(t)), "from the commit")
				}
				for partition, c := range b.claimed() {
					require.Same(t, others[partition], c)
				}
				require.InDelta(t, sessions, testutil.ToFloat64(two.metrics.bySubscription[countSessions].WithLabelValues(topic, topic)), 0)
			})
		})
	}
}

// Two processes with one instance_id would take each other's partitions again and again: the one
// that is not the last ends.
func TestAFencedMemberFails(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		static := func(c *Config) { c.StaticMembership = true }
		one, again := startAs(t, "one", brokers, static), startAs(t, "one", brokers, static)
		topic := topicFor(t, one)
		a := join(t, one, topic)
		a.waitForClaims(t, 4)
		b := join(t, again, topic)
		b.waitForClaims(t, 4)
		select {
		case err := <-a.Failed():
			require.ErrorIs(t, err, sarama.ErrFencedInstancedId)
		case <-time.After(2 * time.Minute):
			require.Fail(t, "no failure")
		}
	})
}

func TestStaticMembersNeedANameThatLasts(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		env  pipeline.Env
		want string
	}{
		"configured":    {env: pipeline.Env{Instance: "pod-1", InstanceConfigured: true}},
		"made up":       {env: pipeline.Env{Instance: "host-123"}, want: "static_membership: needs instance_id: without it"},
		"not for Kafka": {env: pipeline.Env{Instance: "pod/1", InstanceConfigured: true}, want: `static_membership: needs an instance_id of letters, digits, dot, hyphen and underscore, got "pod/1"`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := New()
			_, err := pipeline.NewRegistry(tt.env, p)
			require.NoError(t, err)
			c := defaultConfig()
			require.NoError(t, p.checkStatic(c), "dynamic members need none")
			require.Empty(t, p.memberName(c, "topic", "group"))
			c.StaticMembership = true
			if tt.want != "" {
				require.ErrorContains(t, p.checkStatic(c), tt.want)
				return
			}
			require.NoError(t, p.checkStatic(c))
			for _, want := range []string{"pod-1.topic", "pod-1.topic.2", "pod-1.topic.3"} {
				got := p.memberName(c, "topic", "group")
				require.Equal(t, want, got)
				p.metrics.add(&subscription{group: "group", instance: got})
			}
			require.Equal(t, "pod-1.topic", p.memberName(c, "topic", "another"))
		})
	}
}
