package embedded_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/plugins/embedded"
)

// childDir makes a second process of this test binary run servers in that folder.
const childDir = "MILLRACE_EMBEDDED_CHILD_DIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		liveUntilKilled(dir)
		return
	}
	goleak.VerifyTestMain(m)
}

func start(t *testing.T, cfg embedded.Config) *embedded.Servers {
	t.Helper()
	servers, err := embedded.Start(t.Context(), cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	return servers
}

func client(t *testing.T, servers *embedded.Servers, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(servers.KafkaAddrs()...))...)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

// take polls until it has n records.
func take(t *testing.T, c *kgo.Client, n int) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var values []string
	for len(values) < n {
		fetches := c.PollFetches(ctx)
		require.NoError(t, fetches.Err())
		fetches.EachRecord(func(r *kgo.Record) { values = append(values, string(r.Value)) })
	}
	return values
}

func TestServers(t *testing.T) {
	t.Run("kfake", func(t *testing.T) {
		t.Run("topics and records", func(t *testing.T) {
			servers := start(t, embedded.Config{KafkaPartitions: 3, Topics: []string{"orders"}})
			topics, err := kadm.NewClient(client(t, servers)).ListTopics(t.Context())
			require.NoError(t, err)
			require.Equal(t, []string{"orders"}, topics.Names())
			require.Len(t, topics["orders"].Partitions, 3)

			c := client(t, servers, kgo.ConsumeTopics("orders"), kgo.DefaultProduceTopic("orders"))
			require.NoError(t, c.ProduceSync(t.Context(), kgo.StringRecord("hello")).FirstErr())
			require.Equal(t, []string{"hello"}, take(t, c, 1))
		})
		t.Run("creates no topic by itself", func(t *testing.T) {
			servers := start(t, embedded.Config{})
			c := client(t, servers, kgo.DefaultProduceTopic("misspelt"), kgo.UnknownTopicRetries(0))
			require.ErrorIs(t, c.ProduceSync(t.Context(), kgo.StringRecord("x")).FirstErr(), kerr.UnknownTopicOrPartition)
		})
		t.Run("takes a record of 1 MiB", func(t *testing.T) {
			servers := start(t, embedded.Config{Topics: []string{"big"}})
			c := client(t, servers, kgo.DefaultProduceTopic("big"), kgo.ProducerBatchMaxBytes(2<<20))
			big := &kgo.Record{Value: make([]byte, 1<<20), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}}}
			require.NoError(t, c.ProduceSync(t.Context(), big).FirstErr())
		})
	})
	t.Run("miniredis", func(t *testing.T) {
		servers := start(t, embedded.Config{})
		rdb := redis.NewClient(&redis.Options{Addr: servers.RedisAddr()})
		defer rdb.Close()
		memory, err := rdb.Info(t.Context(), "memory").Result()
		require.NoError(t, err)
		require.Contains(t, memory, "maxmemory_policy:noeviction\r\n")
		require.NoError(t, rdb.Set(t.Context(), "presence", "here", 2*time.Second).Err())
		require.Equal(t, "here", rdb.Get(t.Context(), "presence").Val())
		require.Eventually(t, func() bool { return rdb.Exists(t.Context(), "presence").Val() == 0 }, 2*time.Minute, 10*time.Millisecond)
	})
}

func TestOverrides(t *testing.T) {
	servers := start(t, embedded.Config{})
	require.Equal(t, map[string]any{
		"plugins.kafka.brokers": servers.KafkaAddrs(),
		"plugins.redis.addrs":   []string{servers.RedisAddr()},
	}, servers.Overrides())
	for _, addr := range append(servers.KafkaAddrs(), servers.RedisAddr()) {
		host, _, err := net.SplitHostPort(addr)
		require.NoError(t, err)
		require.Equal(t, "127.0.0.1", host)
	}
}

func TestStop(t *testing.T) {
	servers, err := embedded.Start(t.Context(), embedded.Config{Dir: t.TempDir()}, nil)
	require.NoError(t, err)
	require.NoError(t, servers.Stop(t.Context()))
	require.NoError(t, servers.Stop(t.Context()), "a second stop is no error")
	for _, addr := range append(servers.KafkaAddrs(), servers.RedisAddr()) {
		_, err := net.Dial("tcp", addr)
		require.Error(t, err, "%s still listens", addr)
	}
}

func TestStartFails(t *testing.T) {
	t.Run("folder in use", func(t *testing.T) {
		dir := t.TempDir()
		servers := start(t, embedded.Config{Dir: dir})
		_, err := embedded.Start(t.Context(), embedded.Config{Dir: dir}, nil)
		require.ErrorIs(t, err, embedded.ErrDirInUse)
		require.ErrorContains(t, err, dir)
		require.NoError(t, servers.Stop(t.Context()))
		start(t, embedded.Config{Dir: dir})
	})
	t.Run("folder is a file", func(t *testing.T) {
		file := t.TempDir() + "/file"
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		_, err := embedded.Start(t.Context(), embedded.Config{Dir: file}, nil)
		require.ErrorContains(t, err, "data folder")
	})
	t.Run("wrong settings, all at once", func(t *testing.T) {
		_, err := embedded.Start(t.Context(), embedded.Config{KafkaPartitions: -1, Topics: []string{""}}, nil)
		require.ErrorContains(t, err, "kafka_partitions: must be from 1 to 1000, got -1")
		require.ErrorContains(t, err, "topics[0]: must not be empty")
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := embedded.Start(ctx, embedded.Config{}, nil)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// TestSurvivesKill kills a process with SIGKILL and starts servers in its folder: records and the
// group's offsets are there, and the group works at once.
func TestSurvivesKill(t *testing.T) {
	dir := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childDir+"="+dir)
	child.Stderr = os.Stderr
	out, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	said := make([]byte, 5)
	_, err = io.ReadFull(out, said)
	require.NoError(t, err)
	require.Equal(t, "ready", string(said))
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait(), "it was killed")

	servers := start(t, embedded.Config{Dir: dir, Topics: []string{"survivors"}, KafkaPartitions: 1})
	began := time.Now()
	c := client(t, servers, kgo.ConsumeTopics("survivors"), kgo.ConsumerGroup("readers"))
	want := make([]string, 0, childRecords-childCommitted)
	for i := childCommitted; i < childRecords; i++ {
		want = append(want, fmt.Sprint("record ", i))
	}
	require.Equal(t, want, take(t, c, len(want)), "the second half, since the first was committed")
	require.Less(t, time.Since(began), 30*time.Second, "no waiting for members that are dead")
}

const childRecords, childCommitted = 200, 100

func liveUntilKilled(dir string) {
	ctx := context.Background()
	servers, err := embedded.Start(ctx, embedded.Config{Dir: dir, Topics: []string{"survivors"}, KafkaPartitions: 1}, nil)
	fail(err)
	c, err := kgo.NewClient(kgo.SeedBrokers(servers.KafkaAddrs()...), kgo.DefaultProduceTopic("survivors"),
		kgo.ConsumeTopics("survivors"), kgo.ConsumerGroup("readers"), kgo.DisableAutoCommit())
	fail(err)
	for i := range childRecords {
		fail(c.ProduceSync(ctx, kgo.StringRecord(fmt.Sprint("record ", i))).FirstErr())
	}
	var first []*kgo.Record
	for len(first) < childCommitted {
		fetches := c.PollRecords(ctx, childCommitted-len(first))
		fail(fetches.Err())
		first = append(first, fetches.Records()...)
	}
	fail(c.CommitRecords(ctx, first...))
	fmt.Print("ready")
	select {}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// TestMemory: what Kafka holds is on disk, so that a campaign of any size fits the process.
func TestMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("writes 100 MB")
	}
	const records, size = 100_000, 1024
	servers := start(t, embedded.Config{Dir: t.TempDir(), Topics: []string{"load"}})
	before := heap()
	c, err := kgo.NewClient(kgo.SeedBrokers(servers.KafkaAddrs()...), kgo.DefaultProduceTopic("load"),
		kgo.ProducerBatchCompression(kgo.NoCompression()))
	require.NoError(t, err)
	value := make([]byte, size)
	for range records {
		c.Produce(t.Context(), &kgo.Record{Value: value}, nil)
	}
	require.NoError(t, c.Flush(t.Context()))
	c.Close()
	grown := heap() - before
	require.Less(t, grown, int64(20<<20), "bytes that stay in memory of %d written", records*size)
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // a second one, for what finalizers and pools let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// BenchmarkKafka measures a record written, acknowledged and read.
func BenchmarkKafka(b *testing.B) {
	for _, sync := range []bool{false, true} {
		b.Run(fmt.Sprintf("sync_writes=%t", sync), func(b *testing.B) {
			servers, err := embedded.Start(b.Context(), embedded.Config{Dir: b.TempDir(), Topics: []string{"load"}, SyncWrites: sync}, nil)
			require.NoError(b, err)
			defer servers.Stop(context.Background())
			c, err := kgo.NewClient(kgo.SeedBrokers(servers.KafkaAddrs()...), kgo.DefaultProduceTopic("load"), kgo.ConsumeTopics("load"))
			require.NoError(b, err)
			defer c.Close()
			value := []byte(strings.Repeat("x", 80))
			b.ReportAllocs()
			b.ResetTimer()
			for range b.N { // not b.Loop: the flush and the reading belong to it
				c.Produce(b.Context(), &kgo.Record{Value: value}, nil)
			}
			require.NoError(b, c.Flush(b.Context()))
			for got := 0; got < b.N; {
				fetches := c.PollFetches(b.Context())
				require.NoError(b, fetches.Err())
				got += fetches.NumRecords()
			}
		})
	}
}
