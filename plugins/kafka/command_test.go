package kafka

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// shop is a plugin with two routes, one with a retry topic.
type shop struct {
	kafka  *Plugin
	prefix string
}

func (shop) Name() string { return "shop" }

func (s shop) Register(r *pipeline.Registry) error {
	nothing := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	for _, route := range []pipeline.Route{
		{Name: "shop.orders", From: s.kafka.Source(s.prefix+"orders", s.prefix), To: s.kafka.Sink(s.prefix + "bills")},
		{Name: "shop.again", From: s.kafka.Source(s.prefix+"retry", s.prefix)},
	} {
		route.Handle = nothing
		route.Policy = pipeline.Policy{Retry: pipeline.Retry{To: s.kafka.Sink(s.prefix + "retry")}, DeadLetter: s.kafka.Sink(s.prefix + "dead")}
		r.Route(route)
	}
	r.Service("shop", unavailable{})
	return nil
}

// unavailable is a service of a server that does not answer.
type unavailable struct{}

func (unavailable) Start(context.Context) error { return errors.New("the commands must not start it") }
func (unavailable) Stop(context.Context) error  { return nil }

// runShop runs a command of a binary with the routes of a shop. The plugins of one binary are used
// once.
func runShop(t *testing.T, brokers []string, prefix string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	return runShopWith(t, brokers, prefix, func(*Config) {}, args...)
}

// runShopWith is runShop with other settings.
func runShopWith(t *testing.T, brokers []string, prefix string, adapt func(*Config), args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := New()
	quick(&p.config)
	p.config.CreateTopics = false
	adapt(&p.config)
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the run does not end by itself
	defer cancel()
	code = app.Main(ctx, app.Options{
		Name: "shop", Plugins: []pipeline.Plugin{p, shop{p, prefix}}, Args: args, Stdout: &out, Stderr: &errs,
		Environ: []string{
			"SHOP__PLUGINS__KAFKA__PARTITIONS=2",
			fmt.Sprintf("SHOP__PLUGINS__KAFKA__BROKERS=%s", strings.Join(brokers, ",")),
		},
	})
	if args[0] != "run" {
		require.NoError(t, ctx.Err(), "the command must end by itself")
	}
	return code, out.String(), errs.String()
}

// The help names the rights that the brokers check, and no role, because nothing here checks one.
func TestHelpOfTopicsCreateNamesTheRights(t *testing.T) {
	t.Parallel()
	code, help, errs := runShop(t, []string{"127.0.0.1:1"}, "none-", "topics", "create", "--help")
	require.Equal(t, app.ExitOK, code, errs)
	require.Contains(t, strings.Join(strings.Fields(help), " "), "needs Create and DescribeConfigs for these topics.")
	require.Contains(t, help, "It is safe: it can be repeated.")
	require.NotContains(t, help, "role")
}

func TestTopicsByCommand(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		names := []string{prefix + "orders", prefix + "bills", prefix + "retry", prefix + "dead"}
		t.Cleanup(func() { deleteTopics(t, admin, names...) })
		list := func(args ...string) (int, topicsReport) {
			code, out, errs := runShop(t, brokers, prefix, append(append([]string{"topics"}, args...), "--json")...)
			var r topicsReport
			require.NoError(t, json.Unmarshal([]byte(out), &r), "%s%s", out, errs)
			return code, r
		}
		problems := func(r topicsReport) map[string][]string {
			all := map[string][]string{}
			for _, topic := range r.Topics {
				if len(topic.Problems) > 0 {
					all[strings.TrimPrefix(topic.Name, prefix)] = topic.Problems
				}
			}
			return all
		}

		code, r := list()
		require.Equal(t, app.ExitBad, code)
		absent := []string{"the topic does not exist"}
		require.Equal(t, map[string][]string{"orders": absent, "bills": absent, "retry": absent, "dead": absent}, problems(r))
		require.Equal(t, []topicUse{{Role: roleRetry, Route: "shop.orders"}, {Role: roleSource, Route: "shop.again"}, {Role: roleRetry, Route: "shop.again"}}, r.Topics[2].Uses)

		code, table, errs := runShopWith(t, brokers, prefix, func(c *Config) { c.CreateTopics = true }, "topics")
		require.Equal(t, app.ExitOK, code, errs)
		require.Contains(t, table, "The topics that do not exist are created on first use (plugins.kafka.create_topics).\n")

		code, r = list("create", "--dry-run")
		require.Equal(t, app.ExitOK, code)
		require.Len(t, r.Created, 4)
		code, _ = list()
		require.Equal(t, app.ExitBad, code, "a dry run creates nothing")

		code, _, errs = runShop(t, brokers, prefix, "topics", "create")
		require.Equal(t, app.ExitUsage, code, errs)
		require.Contains(t, errs, "--why REASON required, for the audit")
		code, r = list("create", "--why", "a new shop")
		require.Equal(t, app.ExitOK, code, problems(r))
		require.Len(t, r.Created, 4)
		code, r = list()
		require.Equal(t, app.ExitOK, code)
		require.Empty(t, problems(r))
		for i, limit := range map[int]int{0: 2 << 20, 2: 2<<20 + headerAllowance, 3: 2<<20 + headerAllowance} {
			require.Equal(t, 2, r.Topics[i].Partitions)
			require.Equal(t, fmt.Sprint(limit), r.Topics[i].Settings[configMaxMessageBytes], r.Topics[i].Name)
		}
		code, out, _ := runShop(t, brokers, prefix, "topics", "create", "--why", "again")
		require.Equal(t, app.ExitOK, code)
		require.NotContains(t, out, "Created")
		require.NotContains(t, out, "audit", "nothing was done")
		require.Regexp(t, `orders +source +yes +2 +1 +2097152 +delete`, out)
	})
}

// TestOneReplicaAloneIsNotEnough: a topic with three replicas is created so that two must have a
// record before it is acknowledged. An existing one that is not so is reported.
func TestOneReplicaAloneIsNotEnough(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	require.NoError(t, cluster.CreateTopic("bills", 2, map[string]string{configMinInSync: "1"}))

	code, out, errs := runShopWith(t, cluster.ListenAddrs(), "", func(c *Config) { c.ReplicationFactor = 3 }, "topics", "create", "--why", "a new shop")
	require.Equal(t, app.ExitBad, code, errs)
	require.Contains(t, out, "No plugin of this binary keeps an audit of topics, so who did it and why is in the log of this process alone.\n")
	require.Contains(t, out, "Created orders: 2 partitions, replication factor 3, max.message.bytes 2097152, min.insync.replicas 2\n")
	require.Contains(t, out, "bills (output of shop.orders): min.insync.replicas is 1, and must be at least 2: ")
	require.Equal(t, 1, strings.Count(out, "must be at least"), "and nothing else: %s", out)
}

// A cluster of one broker can't have the three replicas of the profile production.
func TestATopicWithMoreReplicasThanBrokers(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	code, out, errs := runShopWith(t, cluster.ListenAddrs(), "", func(c *Config) { c.ReplicationFactor = 3 }, "topics", "create", "--dry-run")
	require.Equal(t, app.ExitBad, code, errs)
	require.Contains(t, out, "orders: not created: create: ")
	require.Contains(t, out, "(plugins.kafka.replication_factor is 3)\n")
}

// TestARefusedTopicDoesNotStopTheOthers: neither one that the user may not see, nor one that the
// user may not create.
func TestARefusedTopicDoesNotStopTheOthers(t *testing.T) {
	t.Parallel()
	may := func(topic string, operation kmsg.ACLOperation) kfake.ACL {
		return kfake.ACL{Resource: kmsg.ACLResourceTypeTopic, Name: topic, Pattern: kmsg.ACLResourcePatternTypeLiteral, Operation: operation, Allow: true}
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.EnableACLs(), kfake.User("PLAIN", "u", "p",
		may("bills", kmsg.ACLOperationWrite), may("retry", kmsg.ACLOperationAll), may("dead", kmsg.ACLOperationAll)))
	require.NoError(t, err)
	t.Cleanup(cluster.Close)
	for _, dryRun := range []bool{true, false} {
		args := []string{"topics", "create", "--json", "--why", "a new shop", fmt.Sprintf("--dry-run=%t", dryRun)}
		code, out, errs := runShopWith(t, cluster.ListenAddrs(), "", func(c *Config) {
			c.SASL = SASL{Mechanism: sarama.SASLTypePlaintext, User: "u", Password: setting.NewSecret("p")}
		}, args...)
		require.Equal(t, app.ExitBad, code, errs)
		var r topicsReport
		require.NoError(t, json.Unmarshal([]byte(out), &r), "%s%s", out, errs)
		require.Equal(t, []string{"retry", "dead"}, []string{r.Created[0].Name, r.Created[1].Name})
		require.Len(t, r.Created, 2)
		require.Equal(t, []string{"orders", "bills"}, []string{r.Failed[0].Name, r.Failed[1].Name})
		require.Len(t, r.Failed, 2)
		require.Contains(t, r.Topics[0].Problems[0], "the cluster does not describe it: ")
		require.Equal(t, !dryRun, r.Topics[2].Exists)
	}
}

// TestTopicsOfAnAdministrator are reported when they are less than the routes need.
func TestTopicsOfAnAdministrator(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		names := []string{prefix + "orders", prefix + "bills", prefix + "retry", prefix + "dead"}
		t.Cleanup(func() { deleteTopics(t, p, names...) })
		admin, err := sarama.NewClusterAdminFromClient(p.live.client)
		require.NoError(t, err)
		for name, settings := range map[string]map[string]string{
			"orders": {configMaxMessageBytes: "1000000"},
			"bills":  {},
			"retry":  {configMaxMessageBytes: "1065536", configCleanupPolicy: "compact"},
			"dead":   {configMaxMessageBytes: "1000000"},
		} {
			detail := &sarama.TopicDetail{NumPartitions: 1, ReplicationFactor: 1, ConfigEntries: map[string]*string{}}
			for key, value := range settings {
				detail.ConfigEntries[key] = &value
			}
			require.NoError(t, admin.CreateTopic(prefix+name, detail, false))
		}
		require.NoError(t, p.ensureTopics(t.Context(), names...)) // the broker has all of them

		code, out, errs := runShop(t, brokers, prefix, "topics")
		require.Equal(t, app.ExitBad, code, errs)
		few := "partition count is 1, plugins.kafka.partitions is 2\n"
		for _, line := range []string{
			"orders (source of shop.orders): " + few,
			"retry (retry of shop.orders, shop.again; source of shop.again): " + few,
			"source of shop.again): cleanup.policy is compact: a record replaces the earlier ones with its key\n",
			"dead (dead letter of shop.orders, shop.again): max.message.bytes is 1000000, and must be at least 1065536: ",
		} {
			require.Contains(t, out, line)
		}
		require.Equal(t, 4, strings.Count(out, "): "), "and nothing else: %s", out)
	})
}

// TestAMissingTopicEndsTheStart, where topics are not created: the error says which topic of which
// route.
func TestAMissingTopicEndsTheStart(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		names := []string{prefix + "orders", prefix + "retry", prefix + "dead"}
		t.Cleanup(func() { deleteTopics(t, p, names...) })
		require.NoError(t, p.ensureTopics(t.Context(), names...))

		code, _, errs := runShop(t, brokers, prefix, "run")
		require.Equal(t, app.ExitUnavailable, code, errs)
		require.NotContains(t, errs, "unavailable", "the brokers answer")
		require.Contains(t, errs, prefix+"bills (output of shop.orders); plugins.kafka.create_topics is off: the command \"topics create\" creates the topics of all routes and plugins\n")
		require.NotContains(t, errs, prefix+"orders")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		alone := New()
		quick(&alone.config)
		alone.config.Brokers, alone.config.CreateTopics = brokers, false
		_, err := pipeline.NewRegistry(pipeline.Env{}, alone, shop{alone, prefix})
		require.NoError(t, err)
		require.NoError(t, service{alone}.Start(t.Context()))
		require.ErrorIs(t, alone.checkTopics(ctx), errUnavailable, "it ends with its context")
		require.NoError(t, service{alone}.Stop(t.Context()))
	})
}
