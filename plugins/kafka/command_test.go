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

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
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

// runShop runs a command of a binary with the routes of a shop. The plugins of one binary are used once.
func runShop(t *testing.T, brokers []string, prefix string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := New()
	quick(&p.config)
	var out, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // a run that does not end by itself
	defer cancel()
	code = app.Main(ctx, app.Options{
		Name: "shop", Plugins: []pipeline.Plugin{p, shop{p, prefix}}, Args: args, Stdout: &out, Stderr: &errs,
		Environ: []string{
			"SHOP__PLUGINS__KAFKA__CREATE_TOPICS=false", "SHOP__PLUGINS__KAFKA__PARTITIONS=2",
			fmt.Sprintf("SHOP__PLUGINS__KAFKA__BROKERS=%s", strings.Join(brokers, ",")),
		},
	})
	return code, out.String(), errs.String()
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
		require.Equal(t, []topicUse{{roleRetry, "shop.orders"}, {roleSource, "shop.again"}, {roleRetry, "shop.again"}}, r.Topics[2].Uses)

		code, r = list("create", "--dry-run")
		require.Equal(t, app.ExitOK, code)
		require.Len(t, r.Created, 4)
		code, _ = list()
		require.Equal(t, app.ExitBad, code, "a dry run creates nothing")

		code, r = list("create")
		require.Equal(t, app.ExitOK, code, problems(r))
		require.Len(t, r.Created, 4)
		code, r = list()
		require.Equal(t, app.ExitOK, code)
		require.Empty(t, problems(r))
		for i, limit := range map[int]int{0: 2 << 20, 2: 2<<20 + headroom, 3: 2<<20 + headroom} {
			require.Equal(t, 2, r.Topics[i].Partitions)
			require.Equal(t, fmt.Sprint(limit), r.Topics[i].Settings[configMaxMessageBytes], r.Topics[i].Name)
		}
		code, out, _ := runShop(t, brokers, prefix, "topics", "create")
		require.Equal(t, app.ExitOK, code)
		require.NotContains(t, out, "Created")
		require.Regexp(t, `orders +source +yes +2 +1 +2097152 +delete`, out)
	})
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
		require.NoError(t, p.EnsureTopics(t.Context(), names...)) // the broker knows all of them

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

// TestAMissingTopicEndsTheStart, where topics are not created: the error says which topic of which route.
func TestAMissingTopicEndsTheStart(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers)
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		names := []string{prefix + "orders", prefix + "retry", prefix + "dead"}
		t.Cleanup(func() { deleteTopics(t, p, names...) })
		require.NoError(t, p.EnsureTopics(t.Context(), names...))

		code, _, errs := runShop(t, brokers, prefix, "run")
		require.Equal(t, app.ExitUnavailable, code, errs)
		require.Contains(t, errs, prefix+"bills (output of shop.orders); plugins.kafka.create_topics is off: the command \"topics create\" creates the topics of all routes\n")
		require.NotContains(t, errs, prefix+"orders")

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		alone := New()
		quick(&alone.config)
		alone.config.Brokers, alone.config.CreateTopics = brokers, false
		_, err := pipeline.NewRegistry(pipeline.Env{}, alone, shop{alone, prefix})
		require.NoError(t, err)
		require.NoError(t, service{alone}.Start(t.Context()))
		require.ErrorIs(t, alone.checkTopics(ctx), ErrUnavailable, "it ends with its context")
		require.NoError(t, service{alone}.Stop(t.Context()))
	})
}
