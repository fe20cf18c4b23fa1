package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
)

// redisInfo returns the number that follows prefix in a section of INFO; 0 when it isn't there.
func (w *world) redisInfo(section, prefix string) int64 {
	w.t.Helper()
	info, err := w.redis.Info(w.t.Context(), section).Result()
	require.NoError(w.t, err)
	for line := range strings.Lines(info) {
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			digits, _, _ := strings.Cut(strings.TrimSpace(rest), ",")
			n, err := strconv.ParseInt(digits, 10, 64)
			require.NoError(w.t, err)
			return n
		}
	}
	return 0
}

// send publishes raw records, as a producer that knows nothing of Millrace.
func (w *world) send(topic string, payloads ...string) {
	w.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Producer.Return.Successes = true
	cfg.Producer.MaxMessageBytes = 4 << 20
	p, err := sarama.NewSyncProducer([]string{server(w.t, servers.Kafka)}, cfg)
	require.NoError(w.t, err)
	defer func() { _ = p.Close() }()
	for _, payload := range payloads {
		_, _, err := p.SendMessage(&sarama.ProducerMessage{Topic: topic, Key: sarama.StringEncoder("1"), Value: sarama.StringEncoder(payload)})
		require.NoError(w.t, err)
	}
}

// letters reads n dead letters from a topic and returns their classes, counted.
func (w *world) letters(topic string, n int) map[string]int {
	w.t.Helper()
	cfg := sarama.NewConfig()
	cfg.Version = sarama.V2_8_0_0
	cfg.Consumer.Fetch.Default = 4 << 20
	c, err := sarama.NewConsumer([]string{server(w.t, servers.Kafka)}, cfg)
	require.NoError(w.t, err)
	defer func() { _ = c.Close() }()
	partitions, err := c.Partitions(topic)
	require.NoError(w.t, err)
	got := make(chan *sarama.ConsumerMessage)
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	var open []sarama.PartitionConsumer
	defer func() {
		for _, pc := range open {
			_ = pc.Close()
		}
	}()
	for _, p := range partitions {
		var pc sarama.PartitionConsumer
		require.Eventually(w.t, func() bool { // a topic that is that new has no leader yet
			pc, err = c.ConsumePartition(topic, p, sarama.OffsetOldest)
			return err == nil
		}, 30*time.Second, 100*time.Millisecond, "consume %s/%d: %v", topic, p, err)
		open = append(open, pc)
		go func() {
			for m := range pc.Messages() {
				select {
				case got <- m:
				case <-ctx.Done():
					return
				}
			}
		}()
	}
	classes := map[string]int{}
	for range n {
		select {
		case m := <-got:
			headers := map[string]string{}
			for _, h := range m.Headers {
				headers[string(h.Key)] = string(h.Value)
			}
			for _, name := range []string{"millrace-dead-error", "millrace-dead-handler", "millrace-dead-origin", "millrace-dead-attempts", "millrace-dead-first-failed-at", "millrace-dead-failed-at"} {
				require.NotEmpty(w.t, headers[name], "%s of a dead letter", name)
			}
			classes[headers["millrace-dead-class"]]++
		case <-ctx.Done():
			require.FailNow(w.t, "not enough dead letters", "got %v, want %d", classes, n)
		}
	}
	return classes
}

func point(promotion int64, target int, amount string) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"amount":%s}`, promotion, target, amount)
}

// Promise 5: bad records become dead letters; their neighbours on the same partition are paid.
func TestPoisonIsIsolated(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{})
		in := w.start()
		w.send("campaign-promotion-point-publish",
			point(w.promotion, 1, "100"),
			`{"promotionId":`,
			point(w.promotion, 2, "-5"),
			point(w.promotion, 3, "0.5"),
			`{"promotionId":1,"x":"`+strings.Repeat("x", 1<<20)+`"}`,
			point(w.promotion, 1, "100"), // a duplicate
			point(w.promotion, 1, "999"), // the same target, another amount: the first wins
			point(w.promotion, 4, "400"))
		w.awaitSettled("POINT", 2, time.Minute)
		require.Equal(t, map[string]int{"undecodable": 3, "too_large": 1, "conflict": 1}, w.letters("campaign-promotion-point-dead", 5))
		w.send("campaign-promotion-started",
			`{"promotionId":1,"promotionType":"CASH","totalCount":5}`,
			`not JSON`,
			fmt.Sprintf(`{"promotionId":%d,"promotionType":"POINT","totalCount":0}`, w.promotion),
			fmt.Sprintf(`{"promotionId":%d,"promotionType":"POINT","totalCount":99999999}`, w.promotion))
		require.Equal(t, map[string]int{"undecodable": 1, "unknown_type": 1}, w.letters("campaign-promotion-started-dead", 2))

		// Entries and a retry record that no record announced, one on another promotion's stream, one without a message,
		// and one that is not JSON.
		w.send("campaign-promotion-point-retry", point(w.promotion, 6, "600"))
		for _, fields := range []any{
			[]string{"message", point(w.promotion, 5, "500")},
			[]string{"message", point(w.promotion, 5, "500")}, // the same again
			[]string{"message", point(w.promotion+1, 5, "500")},
			[]string{"key", "5"},
			[]string{"key", "5", "message", "not JSON"},
		} {
			require.NoError(t, w.redis.XAdd(t.Context(), &redis.XAddArgs{Stream: w.stream("POINT"), NoMkStream: true, Values: fields}).Err())
		}
		require.Equal(t, map[string]int{"undecodable": 4, "too_large": 1, "conflict": 1, "missing_message": 1, "unannounced": 2, "wrong_stream": 1},
			w.letters("campaign-promotion-point-dead", 10))
		w.assertBooks("POINT", 2)
		require.Equal(t, 2, w.api.Summary().Charged, "nothing of another promotion either")
		c := w.counts("POINT")
		require.EqualValues(t, 1, c.Conflict)
		require.False(t, in.ended())
	})
}

// A server that is absent at the start is waited for with a clear message, then the exit code is 3.
func TestAnAbsentServerIsNamed(t *testing.T) {
	nobody, err := freePort()
	require.NoError(t, err)
	for _, tt := range []struct{ name, path, waiting string }{
		{"kafka", "plugins.kafka.brokers", "waiting for kafka"},
		{"redis", "plugins.redis.addrs", "waiting for redis"},
		{"postgres", "plugins.promotion.ledger.dsn", `"msg":"waiting for the database","plugin":"promotion","of":"ledger"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := onServers(t, "redis", moneysim.Faults{})
			w.set("start_timeout", "8s") // in which the servers that are there must answer
			if tt.name == "postgres" {
				w.set(tt.path, "postgres://postgres@"+nobody+"/millrace?sslmode=disable")
			} else {
				w.set(tt.path, []string{nobody})
			}
			in := w.launch(nil)
			select {
			case <-in.done:
			case <-time.After(time.Minute):
				require.FailNow(t, "it waits for ever")
			}
			require.Equal(t, 3, in.cmd.ProcessState.ExitCode(), "%s", in.log)
			require.True(t, in.log.has(tt.waiting), "%s", in.log)
			require.True(t, in.log.has(nobody), "the address is named:\n%s", in.log)
		})
	}
}

func TestAPortInUseIsNamed(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		taken, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = taken.Close() }()
		w := onServers(t, "redis", moneysim.Faults{})
		w.set("plugins.telemetry.listen", taken.Addr().String())
		in := w.launch(nil)
		select {
		case <-in.done:
		case <-time.After(time.Minute):
			require.FailNow(t, "it runs without its port")
		}
		require.Equal(t, 2, in.cmd.ProcessState.ExitCode(), "%s", in.log)
		require.True(t, in.log.has(taken.Addr().String()), "%s", in.log)
		require.True(t, in.log.has("plugins.telemetry.listen"), "the setting is named:\n%s", in.log)
	})
}

// Each server is restarted under load; the books balance.
func TestServersAreRestartedUnderLoad(t *testing.T) {
	for _, name := range []string{servers.Redis, servers.Postgres, servers.Kafka} {
		t.Run(name, func(t *testing.T) {
			w := onServers(t, "redis", usual)
			n := targets(t, 4_000)
			a, b := w.start(), w.start()
			w.publish("POINT", n)
			w.awaitPaid("POINT", n/4, 5*time.Minute)
			restart(t, name)
			w.awaitSettled("POINT", n, 10*time.Minute)
			w.assertBooks("POINT", n)
			require.False(t, a.ended() || b.ended(), "an instance gave up")
		})
	}
}

// The flag routes fresh records; the stream side runs on while there is work.
func TestTheFlag(t *testing.T) {
	t.Run("off/real", func(t *testing.T) {
		w := onServers(t, "redis", usual)
		w.set("plugins.promotion.stream.enabled", false)
		w.start()
		w.publish("POINT", 2_000)
		w.awaitSettled("POINT", 2_000, 3*time.Minute)
		w.assertBooks("POINT", 2_000)
	})
	t.Run("switched while a campaign runs/real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{Latency: 20 * time.Millisecond, FailRate: 0.02, Seed: 2})
		in := w.start()
		w.publish("VOUCHER", 3_000)
		w.awaitPaid("VOUCHER", 300, time.Minute)
		for _, next := range []struct {
			enabled bool
			targets int
		}{{false, 4_000}, {true, 5_000}} {
			in.terminate()
			w.set("plugins.promotion.stream.enabled", next.enabled)
			in = w.start()
			w.publish("VOUCHER", next.targets)
		}
		w.awaitSettled("VOUCHER", 5_000, 5*time.Minute)
		w.assertBooks("VOUCHER", 5_000)
	})
}

// Pause, resume and cancel are seen by every instance within 2 s.
func TestAPersonSteers(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{Latency: 20 * time.Millisecond})
		w.start()
		w.start()
		w.publish("POINT", 8_000)
		w.awaitPaid("POINT", 300, time.Minute)
		w.mustCommand(nil, "campaign", "pause", "POINT", strconv.FormatInt(w.promotion, 10))
		pause(t, 2*time.Second)
		before := w.counts("POINT").Paid
		pause(t, 2*time.Second)
		require.Equal(t, before, w.counts("POINT").Paid, "paid after the pause")

		var status []struct {
			Paid      int64
			Instances []struct{ Instance, Stream, Group string }
		}
		w.mustCommand(&status, "campaign", "status", "POINT", strconv.FormatInt(w.promotion, 10))
		require.Len(t, status, 1)
		require.Equal(t, before, status[0].Paid)
		require.Len(t, status[0].Instances, 2)
		require.Equal(t, w.stream("POINT"), status[0].Instances[0].Stream)

		w.mustCommand(nil, "campaign", "resume", "POINT", strconv.FormatInt(w.promotion, 10))
		w.awaitPaid("POINT", int(before)+300, time.Minute)

		var cancelled struct {
			Cancelled int64
			InFlight  int64 `json:"in_flight"`
		}
		w.mustCommand(&cancelled, "campaign", "cancel", "POINT", strconv.FormatInt(w.promotion, 10), "--why", "a test")
		require.Positive(t, cancelled.Cancelled)
		w.awaitSettled("POINT", 8_000, time.Minute)
		c := w.counts("POINT")
		require.EqualValues(t, 8_000, c.Paid+c.Cancelled)
		require.EqualValues(t, c.Paid, w.api.Summary().Charged)
		require.Equal(t, ledger.PromotionCancelled, c.State)
		out, code := w.command("campaign", "resume", "POINT", strconv.FormatInt(w.promotion, 10))
		require.Equal(t, 1, code, "%s", out)
		w.mustCommand(nil, "campaign", "reconcile", "POINT", strconv.FormatInt(w.promotion, 10))
	})
}

// Two processes under one name would steal each other's entries.
func TestALiveDuplicateIsRefused(t *testing.T) {
	t.Run("real", func(t *testing.T) {
		w := onServers(t, "redis", moneysim.Faults{})
		w.start()
		twin := w.launch(map[string]any{"instance_id": "i1"})
		select {
		case <-twin.done:
		case <-time.After(time.Minute):
			require.FailNow(t, "two instances under one name")
		}
		require.NotEqual(t, 0, twin.cmd.ProcessState.ExitCode())
		require.True(t, twin.log.has("i1"), "%s", twin.log)
	})
}

// The embedded home survives kill -9: the ledger and Kafka are files, and Redis is refilled.
func TestTheEmbeddedHomeSurvivesKill(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		dir := t.TempDir()
		demo := func() *exec.Cmd {
			return exec.Command(binary(t), "demo", "--json", "--targets", "1500", "--data", dir, "--latency", "20ms")
		}
		first := demo()
		require.NoError(t, first.Start())
		pause(t, 3*time.Second)
		require.NoError(t, first.Process.Signal(syscall.SIGKILL))
		_ = first.Wait()
		out, err := demo().Output()
		require.NoError(t, err, "%s", out)
		var r struct {
			Paid, Charged int64
			Balanced      bool
		}
		require.NoError(t, json.Unmarshal(out, &r))
		require.True(t, r.Balanced)
		require.EqualValues(t, 3_000, r.Paid)
	})
}
