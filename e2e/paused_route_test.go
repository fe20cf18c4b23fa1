package e2e

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// pausable is a plugin with a route from a Kafka topic, whose retries have a topic, and one from a Redis stream. It
// writes each message that it handles into a list.
type pausable struct {
	kafka *kafka.Plugin
	redis *redis.Plugin
	id    string // ends the names of routes, topics and streams
}

func (p pausable) Name() string { return "pausable" }

// routes are the names of the routes, and journal is the list of what they have handled.
func (p pausable) routes() [2]string { return [2]string{"topic-" + p.id, "stream-" + p.id} }
func (p pausable) journal() string   { return "journal-" + p.id }

func (p pausable) Register(r *pipeline.Registry) error {
	policy := pipeline.Policy{DeadLetter: pipeline.Drop}
	retries := policy
	retries.Retry = pipeline.Retry{To: p.kafka.Sink("again-" + p.id), From: p.kafka.Source("again-"+p.id, "again-"+p.id)}
	flow := pipeline.Flow{MaxInFlight: 4}
	r.Route(pipeline.Route{Name: p.routes()[0], From: p.kafka.Source("topic-"+p.id, "group-"+p.id), Handle: p.handle, Policy: retries, Flow: flow})
	r.Route(pipeline.Route{Name: p.routes()[1], From: p.redis.Source("stream-"+p.id, "group"), Handle: p.handle, Policy: policy, Flow: flow})
	return nil
}

var errFirstTime = errors.New("it fails the first time")

// handle takes 40 ms. A payload that ends with 7 fails once, and is handled ten seconds later.
func (p pausable) handle(m *message.Message) ([]*message.Message, error) {
	server := p.redis.Server(nil)
	if payload := string(m.Payload); strings.HasSuffix(payload, "7") && strings.HasPrefix(payload, "topic") {
		call := redis.Command("HSETNX", "failed-"+p.id, payload, 1)
		if err := server.Do(m.Context(), call); err != nil {
			return nil, err
		}
		if first, err := call.Int(); err != nil || first == 1 {
			return nil, pipeline.RetryAfter(cmp.Or(err, errFirstTime), 10*time.Second)
		}
	}
	select {
	case <-m.Context().Done():
		return nil, m.Context().Err()
	case <-time.After(40 * time.Millisecond):
	}
	return nil, server.Do(m.Context(), redis.Command("RPUSH", p.journal(), string(m.Payload)))
}

// pausableID is the variable by which the test binary is an instance.
const pausableID = "MILLRACE_E2E_PAUSABLE"

// pausableMain runs a command of the binary with the plugin.
func pausableMain(ctx context.Context, id string, out, errs *bytes.Buffer, args ...string) int {
	k, r := kafka.New(), redis.New()
	o := app.Options{Name: "pausable", Plugins: []pipeline.Plugin{k, r, pausable{k, r, id}}, Args: args, EnvPrefix: "PAUSABLE"}
	if out != nil {
		o.Stdout, o.Stderr = out, errs
	}
	return app.Main(ctx, o)
}

// It is an instance that can be killed. TestAPausedRoute starts it.
func TestThePausableInstance(t *testing.T) {
	id := os.Getenv(pausableID)
	if id == "" {
		t.Skip("TestAPausedRoute starts it")
	}
	require.Zero(t, pausableMain(t.Context(), id, nil, nil, "run", "--config", os.Getenv("PAUSABLE_SETTINGS")))
}

// pausableFleet is the instances, and what the test reads of them.
type pausableFleet struct {
	pausable
	t        *testing.T
	settings string
	c        goredis.UniversalClient
	brokers  []string
}

type pausableInstance struct {
	cmd  *exec.Cmd
	done chan struct{}
	log  *lockedBuffer
}

// starts starts an instance, and returns when messages flow.
func (f *pausableFleet) starts(name string) pausableInstance {
	f.t.Helper()
	self, err := os.Executable()
	require.NoError(f.t, err)
	i := pausableInstance{cmd: exec.Command(self, "-test.run=^TestThePausableInstance$"), log: &lockedBuffer{}}
	i.cmd.Env = append(os.Environ(), pausableID+"="+f.id, "PAUSABLE_SETTINGS="+f.settings, "PAUSABLE__INSTANCE_ID="+name+"-"+f.id)
	i.cmd.Stdout, i.cmd.Stderr = i.log, i.log
	i.done, err = startBound(i.cmd)
	require.NoError(f.t, err)
	f.t.Cleanup(func() { i.kill() })
	require.Eventually(f.t, func() bool { return strings.Contains(i.log.String(), "running") }, 2*time.Minute, 20*time.Millisecond, "%s", i.log)
	return i
}

func (i pausableInstance) kill() {
	_ = i.cmd.Process.Kill()
	<-i.done
}

// orders pauses or resumes both routes with the command, and returns the objects that it writes.
func (f *pausableFleet) orders(verb string, more ...string) (orders []map[string]any) {
	f.t.Helper()
	for _, route := range f.routes() {
		var out, errs bytes.Buffer
		args := append([]string{"routes", verb, route, "--config", f.settings, "--json"}, more...)
		require.Zero(f.t, pausableMain(f.t.Context(), f.id, &out, &errs, args...), "%s", &errs)
		var one map[string]any
		require.NoError(f.t, json.Unmarshal(out.Bytes(), &one))
		orders = append(orders, one)
	}
	return orders
}

// handled returns the payloads that were handled.
func (f *pausableFleet) handled() []string {
	f.t.Helper()
	list, err := f.c.LRange(f.t.Context(), f.journal(), 0, -1).Result()
	require.NoError(f.t, err)
	return list
}

// members returns the members of the group of the topic, and its state.
func (f *pausableFleet) members() (names []string, state string) {
	f.t.Helper()
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	admin, err := sarama.NewClusterAdmin(f.brokers, config)
	require.NoError(f.t, err)
	defer func() { require.NoError(f.t, admin.Close()) }()
	described, err := admin.DescribeConsumerGroups([]string{"group-" + f.id})
	require.NoError(f.t, err)
	for name := range described[0].Members {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, described[0].State
}

// publish adds messages to the topic and to the stream.
func (f *pausableFleet) publish(from, to int) (payloads []string) {
	f.t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "publisher-" + watermill.NewULID()}, f.kafka, f.redis)
	require.NoError(f.t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{})
	require.NoError(f.t, rt.StartServices(f.t.Context()))
	defer func() { require.NoError(f.t, rt.Stop(context.WithoutCancel(f.t.Context()))) }()
	for name, sink := range map[string]pipeline.Sink{"topic": f.kafka.Sink("topic-" + f.id), "stream": f.redis.Sink("stream-" + f.id)} {
		var msgs []*message.Message
		for n := from; n < to; n++ {
			m := message.NewMessage(watermill.NewUUID(), []byte(name+" "+strconv.Itoa(n)))
			m.Metadata.Set(pipeline.MetaKey, strconv.Itoa(n))
			msgs, payloads = append(msgs, m), append(payloads, string(m.Payload))
		}
		require.NoError(f.t, sink.Publish(f.t.Context(), msgs...))
	}
	return payloads
}

// Two instances share a topic and a stream under load. Once the routes are paused nothing new is handled, while one
// instance is killed and another one starts. Nobody leaves the group before that. After the resume each message
// was handled once.
func TestAPausedRoute(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Pipeline, tier.Kafka, tier.Redis, tier.CLI)
	address := tier.Real(t, "redis")
	database := redistest.Server{Addr: address}.Database(t)
	f := &pausableFleet{t: t, settings: filepath.Join(t.TempDir(), "pausable.yaml"), brokers: []string{tier.Real(t, "kafka")}}
	require.NoError(t, os.WriteFile(f.settings, fmt.Appendf(nil, `
command_wait: 1m
plugins:
  kafka: {brokers: [%q], session_timeout: 7s, heartbeat_interval: 1s, partitions: 4, replication_factor: 1}
  redis: {addrs: [%q], db: %d, min_idle: 7s, reclaim_interval: 1s}
`, f.brokers[0], address, database), 0o600))
	k, r := kafka.New(), redis.New()
	k.Settings().(*kafka.Config).Brokers, k.Settings().(*kafka.Config).Partitions, k.Settings().(*kafka.Config).ReplicationFactor = f.brokers, 4, 1
	r.Settings().(*redis.Config).Addrs, r.Settings().(*redis.Config).DB = []string{address}, database
	f.pausable = pausable{k, r, strings.ToLower(watermill.NewULID())}
	f.c = goredis.NewClient(&goredis.Options{Addr: address, DB: database})
	t.Cleanup(func() { require.NoError(t, f.c.Close()) })

	sent := f.publish(0, 1_500)
	a := f.starts("a")
	f.starts("b")
	require.Eventually(t, func() bool { return len(f.handled()) > 200 }, 2*time.Minute, 20*time.Millisecond, "under load: %s", a.log)

	var out, errs bytes.Buffer
	require.Equal(t, app.ExitUsage, pausableMain(t.Context(), f.id, &out, &errs, "routes", "pause", "absent", "--config", f.settings, "--why", "x"))
	require.Contains(t, errs.String(), `no route has the name "absent"; the routes are topic-`+f.id)
	require.Equal(t, []any{true, false, true}, pick(f.orders("pause", "--dry-run")[0], "dry_run", "paused", "changed"))
	require.Equal(t, []any{nil, true, true, "the shop moves"}, pick(f.orders("pause", "--why", "the shop moves")[0], "dry_run", "paused", "changed", "why"))
	pause(t, redis.PresenceRenewal) // each instance has read the orders
	before := f.handled()
	for quiet := 0; quiet < 20; quiet++ { // and the handlers have returned, later on a machine that stood still
		pause(t, 100*time.Millisecond)
		if now := f.handled(); len(now) > len(before) {
			before, quiet = now, 0
		}
	}
	require.Less(t, len(before), len(sent)-200, "there is work left")
	sent = append(sent, f.publish(1_500, 1_700)...)
	names, state := f.members()
	require.Len(t, names, 2)
	require.Equal(t, "Stable", state)
	pause(t, 8*time.Second) // longer than session_timeout and min_idle
	require.Equal(t, before, f.handled(), "nothing is handled while the routes are paused")
	same, state := f.members()
	require.Equal(t, names, same, "nobody has left the group")
	require.Equal(t, "Stable", state)

	a.kill()
	c := f.starts("c")
	require.Contains(t, c.log.String(), "route paused by an operator")
	require.Eventually(t, func() bool {
		now, state := f.members()
		return len(now) == 2 && state == "Stable" && !slices.Equal(now, names)
	}, 2*time.Minute, 200*time.Millisecond, "the partitions of the killed instance have a new owner")
	pause(t, 5*time.Second)
	require.Equal(t, before, f.handled(), "a start does not resume")

	require.Equal(t, []any{false, true}, pick(f.orders("resume", "--why", "it has moved")[1], "paused", "changed"))
	require.Eventually(t, func() bool { return len(f.handled()) >= len(sent) }, 4*time.Minute, 100*time.Millisecond)
	pause(t, 2*time.Second)
	require.ElementsMatch(t, sent, f.handled(), "each message is handled once")
}

func pick(from map[string]any, names ...string) (values []any) {
	for _, name := range names {
		values = append(values, from[name])
	}
	return values
}
