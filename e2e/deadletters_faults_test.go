package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/internal/deadletter/cli"
	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// orders puts n dead letters of a topic of its own into the store.
func (d *storeDeployment) orders(n int) (topic string, ids []string) {
	d.t.Helper()
	topic = "orders-" + strings.ToLower(watermill.NewULID())
	for i := range n {
		l := store.From("", "", topic+"-dead", fmt.Sprintf("%s-%d", topic, i), pipeline.DeadLetter{
			Payload: fmt.Appendf(nil, "order %d", i), Class: "undecodable", Error: "no such article", Handler: "orders.take",
			SourceKind: "kafka", Source: topic, Origin: fmt.Sprintf("%s/0@%d", topic, i), Attempts: 1, FirstFailedAt: time.Now(), FailedAt: time.Now(),
		})
		require.NoError(d.t, d.store.Put(d.t.Context(), l))
		ids = append(ids, l.ID)
	}
	return topic, ids
}

// replays returns how often each replay is in a topic, by its header.
func (d *storeDeployment) replays(topic string) map[string]int {
	d.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(d.fleet.server(d.t, servers.Kafka)), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	require.NoError(d.t, err)
	defer client.Close()
	// A record behind all others ends the reading.
	require.NoError(d.t, client.ProduceSync(d.t.Context(), &kgo.Record{Topic: topic, Value: []byte("end")}).FirstErr())
	times := map[string]int{}
	for {
		ctx, cancel := context.WithTimeout(d.t.Context(), 2*time.Minute)
		fetches := client.PollFetches(ctx)
		cancel()
		require.NoError(d.t, fetches.Err())
		for _, r := range fetches.Records() {
			if string(r.Value) == "end" {
				return times
			}
			for _, h := range r.Headers {
				if h.Key == pipeline.MetaReplay {
					times[string(h.Value)]++
				}
			}
		}
	}
}

// A command is killed in the middle of a replay, before and after the message is in its topic. The next one goes on:
// every message is replayed, and only the one that the command was killed with can be there twice, with the same
// header.
func TestAReplayThatIsKilledGoesOn(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.DeadLetter)
	w := onServers(t, "redis", simulator.Faults{}).set("plugins.kafka.partitions", 1).withStore()
	const n, killed = 5, 2
	for _, point := range failpoint.ReplayPoints() {
		topic, ids := w.orders(n)
		cmd := exec.Command(armedBinary(t), "deadletter", "replay", "--source", topic, "--who", "ann", "--why", "fixed", "--config", w.config(topic, nil))
		cmd.Env = append(os.Environ(), fmt.Sprintf("MILLRACE_FAULT_POINT=%s:%d", point, killed+1))
		var said bytes.Buffer
		cmd.Stdout, cmd.Stderr = &said, &said
		var exit *exec.ExitError
		require.ErrorAs(t, cmd.Run(), &exit, "%s", &said)
		require.Equal(t, -1, exit.ExitCode(), "it was killed: %s", &said)

		of := func(states ...store.State) int {
			count, err := w.store.Count(t.Context(), store.Filter{Source: topic, States: states})
			require.NoError(t, err)
			return int(count)
		}
		require.Equal(t, []int{killed, 1, n - killed - 1}, []int{of(store.Replayed), of(store.Replaying), of(store.Open)}, point)
		r := w.work(0, "replay", "--source", topic, "--who", "bob", "--why", "goes on")
		require.Equal(t, []int{n - killed, n - killed, 1}, []int{r.Selected, r.Replayed, r.Resumed}, "%s: %+v", point, r)

		want := map[string]int{}
		for _, id := range ids {
			want[id+"/1"] = 1
		}
		if point == failpoint.ReplayDone {
			want[ids[killed]+"/1"] = 2
		}
		require.Equal(t, want, w.replays(topic), point)
		require.Zero(t, w.work(0, "replay", "--source", topic, "--why", "again").Selected)
	}
}

// Two persons replay everything at once, and a third one discards: each dead letter is replayed or discarded, once.
func TestTwoOperatorsAtOnce(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	w := onServers(t, "redis", simulator.Faults{}).set("plugins.kafka.partitions", 1).withStore()
	const n = 40
	topic, _ := w.orders(n)
	var group sync.WaitGroup
	reports := make([]cli.Report, 3)
	for i, verb := range []string{"replay", "replay", "discard"} {
		cmd := exec.Command(binary(t), "deadletter", verb, "--source", topic, "--who", fmt.Sprint("operator-", i), "--why", "x", "--json", "--config", w.config(fmt.Sprint("operator-", i), nil))
		group.Go(func() {
			out, err := cmd.Output()
			var exit *exec.ExitError
			if err != nil && !errors.As(err, &exit) {
				t.Error(err)
			}
			if err := json.Unmarshal(out, &reports[i]); err != nil {
				t.Errorf("%s: %s", err, out)
			}
		})
	}
	group.Wait()
	replayed, discarded := reports[0].Replayed+reports[1].Replayed, reports[2].Discarded
	require.Equal(t, n, replayed+discarded, "%+v", reports)
	times := w.replays(topic)
	require.Len(t, times, replayed)
	for header, count := range times {
		require.Equal(t, 1, count, header)
	}
	require.Zero(t, w.count(store.Waiting()...))
	require.Equal(t, discarded, w.count(store.Discarded))
}
