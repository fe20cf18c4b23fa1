package kafka

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// diagnose returns the checks of the shop's routes. Nothing of the shop is started.
func diagnose(t *testing.T, brokers []string, prefix string, adapt func(*Config)) (map[string][]operate.Check, operate.Diagnosis) {
	t.Helper()
	p := New()
	quick(&p.config)
	p.config.Brokers = brokers
	adapt(&p.config)
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p, shop{p, prefix})
	require.NoError(t, err)
	d := operate.Diagnose(t.Context(), operate.Examinations(reg), 2*time.Minute, nil) // the machine may be busy
	checks := map[string][]operate.Check{}
	for _, c := range d.Checks {
		require.Equal(t, c.Level == operate.OK, c.Remedy == "", c)
		checks[c.Name] = append(checks[c.Name], c)
	}
	return checks, d
}

func TestChecksOfTopicsAndGroups(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		names := []string{prefix + "orders", prefix + "bills", prefix + "retry", prefix + "dead"}
		t.Cleanup(func() { deleteTopics(t, admin, names...) })
		as := func(*Config) {}

		checks, d := diagnose(t, brokers, prefix, as)
		require.Empty(t, d.Away)
		require.Len(t, checks, 6)
		require.Contains(t, checks["kafka clock"][0].Text, "no topic of a route has message.timestamp.type LogAppendTime")
		require.Equal(t, operate.OK, checks["kafka brokers"][0].Level, checks)
		require.Equal(t, []operate.Check{{Name: "kafka topics", Level: operate.OK, Text: "0 are in order, and 4 are created on first use"}}, checks["kafka topics"])
		require.Contains(t, checks["kafka groups"][0].Text, "no instance reads as "+prefix)

		checks, _ = diagnose(t, brokers, prefix, func(c *Config) { c.CreateTopics = false })
		require.Len(t, checks["kafka topics"], 4)
		require.Contains(t, checks["kafka topics"][0].Text, "the topic does not exist")
		require.Equal(t, operate.Fail, checks["kafka topics"][0].Level)

		require.NoError(t, admin.ensureTopics(t.Context(), names...))
		checks, _ = diagnose(t, brokers, prefix, func(c *Config) { c.MaxMessageBytes = 4 << 20 })
		var all string
		for _, c := range checks["kafka topics"] {
			all += c.Text + "\n"
		}
		require.Contains(t, all, "plugins.kafka.max_message_bytes is 4194304, so larger records are refused")
		require.Contains(t, all, "one replica, so the loss of a broker loses the records: "+names[0])

		sub, out := subscribe(t, admin.Source(names[0], prefix), pipeline.Flow{})
		publish(t, admin, names[0], texts("one")...)
		next(t, out).Ack() // it is a member
		require.Eventually(t, func() bool {
			checks, _ = diagnose(t, brokers, prefix, as)
			return checks["kafka groups"][0].Level == operate.OK
		}, 2*time.Minute, 10*time.Millisecond, "%v", checks)
		require.Equal(t, "1 of 1 have members", checks["kafka groups"][0].Text)
		require.NoError(t, sub.Close())
		checks, _ = diagnose(t, brokers, prefix, as)
		require.Equal(t, operate.Warn, checks["kafka groups"][0].Level)
	})
}

// A min.insync.replicas that the replicas can't meet is found by reading, because only an older broker refuses records
// for it.
func TestChecksOfMinInSyncReplicas(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		bills := prefix + "bills"
		t.Cleanup(func() { deleteTopics(t, admin, bills) })
		require.NoError(t, admin.ensureTopics(t.Context(), bills))
		live, err := admin.connected()
		require.NoError(t, err)
		cluster, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		two := "2"
		require.NoError(t, cluster.AlterConfig(sarama.TopicResource, bills, map[string]*string{configMinInSync: &two}, false))
		want := operate.Check{
			Name: "kafka topics", Level: operate.Fail, Text: bills + " (output of shop.orders): min.insync.replicas is 2, and replica count is 1: Kafka before 3.7 takes no record, and newer versions need all replicas",
			Remedy: "set min.insync.replicas of the topic to 1, or give it three replicas", Runbook: topicsPage,
		}
		var checks map[string][]operate.Check
		require.Eventually(t, func() bool { // a broker may learn of the setting later than another one
			checks, _ = diagnose(t, brokers, prefix, func(*Config) {})
			return slices.Contains(checks["kafka topics"], want)
		}, 2*time.Minute, 10*time.Millisecond, "%v", checks)
		conf, err := producerConfig(admin.Config(), nil)
		require.NoError(t, err)
		producer, err := sarama.NewSyncProducer(brokers, conf)
		require.NoError(t, err)
		defer func() { require.NoError(t, producer.Close()) }()
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: bills, Value: sarama.StringEncoder("a bill")})
		require.NoError(t, err, "Kafka 3.7 and newer bounds the setting by the replica count")
	})
}

// Clusters whose topics have as many replicas as brokers.
func TestChecksOfMinInSyncReplicasOfSeveralBrokers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		brokers      int
		setting      string
		level        operate.Level
		text, remedy string
	}{
		"three, and one is enough":    {3, "1", operate.Fail, "must be at least 2: a record that one broker alone has is acknowledged", "set min.insync.replicas of the topic to 2"},
		"three, and two are enough":   {3, "2", operate.OK, "", ""},
		"three, and all are needed":   {3, "3", operate.Warn, "replica count is 3: no record can be published while one broker is away", "set min.insync.replicas of the topic to 2"},
		"three, and four are needed":  {3, "4", operate.Fail, "replica count is 3: Kafka before 3.7 takes no record, and newer versions need all replicas", "set min.insync.replicas of the topic to 2"},
		"two, and one is enough":      {2, "1", operate.Warn, "a record that one broker alone has is acknowledged", "give the topic three replicas and min.insync.replicas 2"},
		"two, and both are needed":    {2, "2", operate.Warn, "replica count is 2: no record can be published while one broker is away", "give the topic three replicas and min.insync.replicas 2"},
		"a broker's default is meant": {3, "", operate.Fail, "must be at least 2", "set min.insync.replicas of the topic to 2"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, err := kfake.NewCluster(kfake.NumBrokers(tc.brokers))
			require.NoError(t, err)
			t.Cleanup(cluster.Close)
			settings := map[string]string{}
			if tc.setting != "" {
				settings[configMinInSync] = tc.setting
			}
			require.NoError(t, cluster.CreateTopic("bills", 4, settings))
			checks, _ := diagnose(t, cluster.ListenAddrs(), "", func(c *Config) { c.MaxMessageBytes = 1 << 20 })
			require.Len(t, checks["kafka topics"], 1, checks)
			c := checks["kafka topics"][0]
			require.Equal(t, tc.level, c.Level, c)
			require.Contains(t, c.Text, tc.text)
			require.Equal(t, tc.remedy, c.Remedy)
		})
	}
}

// A record that waits for longer than half of the retention is near its end.
func TestChecksOfRetention(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		orders := prefix + "orders"
		t.Cleanup(func() { deleteTopics(t, admin, orders) })
		require.NoError(t, admin.ensureTopics(t.Context(), orders))
		limit := func(ms string) {
			t.Helper()
			live, err := admin.connected()
			require.NoError(t, err)
			cluster, err := sarama.NewClusterAdminFromClient(live.client)
			require.NoError(t, err)
			require.NoError(t, cluster.AlterConfig(sarama.TopicResource, orders, map[string]*string{configRetention: &ms}, false))
		}
		conf, err := producerConfig(admin.Config(), nil)
		require.NoError(t, err)
		producer, err := sarama.NewSyncProducer(brokers, conf)
		require.NoError(t, err)
		defer func() { require.NoError(t, producer.Close()) }()
		_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: orders, Value: sarama.StringEncoder("waits"), Timestamp: time.Now().Add(-40 * time.Hour)})
		require.NoError(t, err)
		expect := func(level operate.Level, text string) {
			t.Helper()
			var checks map[string][]operate.Check
			require.Eventually(t, func() bool { // a broker may learn of the limit later than another one
				checks, _ = diagnose(t, brokers, prefix, func(*Config) {})
				return checks["kafka retention"][0].Level == level
			}, 2*time.Minute, 10*time.Millisecond, "%v", checks)
			require.Regexp(t, text, checks["kafka retention"][0].Text)
		}
		limit("360000000") // 100 h
		expect(operate.OK, "no backlog of 1 topics with a limit is near it")
		limit("216000000") // 60 h
		expect(operate.Warn, "the oldest record of "+orders+" that group "+prefix+" has not handled is 40h.* old, and the topic keeps records for 60h")
	})
}

// A retry topic that keeps records for less than a delay has a line of its own, and the start ends with it.
func TestChecksOfDelays(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		retry := prefix + "retry"
		t.Cleanup(func() { deleteTopics(t, admin, retry) })
		expect := func(level operate.Level, text string) (all map[string][]operate.Check) {
			t.Helper()
			require.Eventually(t, func() bool { // a broker may learn of the limit later than another one
				all, _ = diagnose(t, brokers, prefix, func(*Config) {})
				return len(all["kafka delays"]) > 0 && all["kafka delays"][0].Level == level && strings.Contains(all["kafka delays"][0].Text, text)
			}, 2*time.Minute, 10*time.Millisecond, "%v", all)
			return all
		}
		expect(operate.OK, "no retry topic is known")
		require.NoError(t, admin.ensureTopics(t.Context(), retry))
		expect(operate.OK, "1 of 1 retry topics keep records for longer than each delay, of which the longest is 30s")

		live, err := admin.connected()
		require.NoError(t, err)
		cluster, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		short := "10000"
		require.NoError(t, cluster.AlterConfig(sarama.TopicResource, retry, map[string]*string{configRetention: &short}, false))
		all := expect(operate.Fail, retry+": retention.ms is 10000 (10s), and the retry delay of route shop.orders is up to 30s: retention may remove a record before it is due, and no process starts with it")
		require.Len(t, all["kafka delays"], 2, "both routes retry there")
		require.Equal(t, "raise retention.ms of the topic, or shorten the delay of the route", all["kafka delays"][0].Remedy)
		for _, c := range all["kafka topics"] {
			require.NotContains(t, c.Text, "retry delay", "it is said once")
		}
	})
}

// A broker tells its clock by the records that it stamps.
func TestChecksOfTheClock(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		orders := prefix + "orders"
		t.Cleanup(func() { deleteTopics(t, admin, orders) })
		require.NoError(t, admin.ensureTopics(t.Context(), orders))
		live, err := admin.connected()
		require.NoError(t, err)
		cluster, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		stamp := logAppendTime
		require.NoError(t, cluster.AlterConfig(sarama.TopicResource, orders, map[string]*string{configTimestampType: &stamp}, false))
		expect := func(level operate.Level, text string) {
			t.Helper()
			require.Eventually(t, func() bool { // a broker may learn of the setting later than another one
				checks, _ := diagnose(t, brokers, prefix, func(*Config) {})
				return strings.Contains(checks["kafka clock"][0].Text, text) && checks["kafka clock"][0].Level == level
			}, 2*time.Minute, 10*time.Millisecond)
		}
		expect(operate.OK, "the 1 topics with message.timestamp.type LogAppendTime have no record")
		conf, err := producerConfig(admin.Config(), nil)
		require.NoError(t, err)
		producer, err := sarama.NewSyncProducer(brokers, conf)
		require.NoError(t, err)
		defer func() { require.NoError(t, producer.Close()) }()
		for range 2 {
			_, _, err = producer.SendMessage(&sarama.ProducerMessage{Topic: orders, Value: sarama.StringEncoder("now"), Timestamp: time.Now().Add(time.Hour)})
			require.NoError(t, err)
		}
		if strings.HasSuffix(t.Name(), "/kfake") { // it keeps the time of the producer, as if its clock were an hour ahead
			expect(operate.Fail, "because it has stamped a record of "+orders)
			return
		}
		expect(operate.OK, "no broker is ahead by the newest record that one has stamped, in "+orders)
	})
}

func TestChecksOfAbsentBrokers(t *testing.T) {
	t.Parallel()
	checks, d := diagnose(t, []string{"127.0.0.1:1"}, "none-", func(*Config) {})
	require.Equal(t, []string{"kafka"}, d.Away)
	require.Contains(t, checks["kafka"][0].Text, "no broker at 127.0.0.1:1 answered")
	require.Len(t, d.Checks, 1)
}

// States into which a test can't bring a broker that others share.
func TestChecksOfReadings(t *testing.T) {
	t.Parallel()
	now := time.Now()
	backlog := func(age time.Duration) []operate.Check {
		return retentionChecks([]agedBacklog{{groupSource{topic: "orders", group: "shop"}, now.Add(-age), time.Hour}}, now)
	}
	group := func(state string, members int, err sarama.KError) []operate.Check {
		g := &sarama.GroupDescription{GroupId: "shop", State: state, Err: err, Members: map[string]*sarama.GroupMemberDescription{}}
		if members > 0 {
			g.Members["a"] = nil
		}
		return groupChecks([]*sarama.GroupDescription{g})
	}
	clock := func(topics int, ahead time.Duration) []operate.Check {
		return []operate.Check{clockCheck(topics, stampedRecord{"orders", now.Add(ahead)}, now)}
	}
	topic := func(replicas int, problems ...string) []operate.Check {
		t := &topicStatus{neededTopic: neededTopic{Name: "orders"}, Exists: true, Replication: replicas, Problems: problems}
		return topicChecks([]*topicStatus{t}, 1)
	}
	for name, tc := range map[string]struct {
		checks []operate.Check
		level  operate.Level
		text   string
	}{
		"a clock not known":    {clock(0, 0), operate.OK, "not known"},
		"a clock of no record": {[]operate.Check{clockCheck(2, stampedRecord{}, now)}, operate.OK, "the 2 topics"},
		"an old stamp":         {clock(1, -time.Hour), operate.OK, "in orders 1h0m0s ago"},
		"a stamp of now":       {clock(1, time.Millisecond), operate.OK, "in orders 0s ago"},
		"a clock ahead":        {clock(1, 2*time.Second), operate.Warn, "a broker is at least 2s ahead, because it has stamped a record of orders"},
		"a clock far ahead":    {clock(1, time.Minute), operate.Fail, "a broker is at least 1m0s ahead"},
		"brokers answer":       {brokersCheck([]brokerState{{addr: "a"}, {addr: "b"}}), operate.OK, "2 of 2 answer"},
		"a broker is away":     {brokersCheck([]brokerState{{addr: "a", err: errors.New("refused")}, {addr: "b"}}), operate.Fail, "a does not answer: refused"},
		"a broker is old":      {brokersCheck([]brokerState{{addr: "a", old: true}}), operate.Fail, "a is older than Kafka 2.8"},
		"a young backlog":      {backlog(time.Minute), operate.OK, "no backlog of 1 topics"},
		"half of retention":    {backlog(31 * time.Minute), operate.Warn, "is 31m0s old, and the topic keeps records for 1h0m0s"},
		"nearly all of it":     {backlog(55 * time.Minute), operate.Fail, "is 55m0s old"},
		"a group with members": {group("Stable", 1, sarama.ErrNoError), operate.OK, "1 of 1 have members"},
		"a rebalance":          {group("PreparingRebalance", 1, sarama.ErrNoError), operate.Warn, "shop (PreparingRebalance)"},
		"a group of nobody":    {group("Empty", 0, sarama.ErrNoError), operate.Warn, "no instance reads as shop"},
		"a new group":          {group("Dead", 0, sarama.ErrGroupIDNotFound), operate.Warn, "no instance reads as shop"},
		"no right":             {group("", 0, sarama.ErrGroupAuthorizationFailed), operate.Fail, "not described: shop"},
		"replicas":             {topic(3), operate.OK, "1 are in order"},
		"one replica":          {topic(1), operate.Warn, "loses the records: orders"},
		"a problem":            {topic(3, "is too small"), operate.Fail, "is too small"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Len(t, tc.checks, 1)
			require.Equal(t, tc.level, tc.checks[0].Level, tc.checks)
			require.Contains(t, tc.checks[0].Text, tc.text)
			require.Equal(t, tc.level == operate.OK, tc.checks[0].Remedy == "")
		})
	}
}
