package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/alicebob/miniredis/v2/server"
	"github.com/gofrs/flock"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Servers are the running Kafka and Redis. Its methods are safe for concurrent use.
type Servers struct {
	kafka      *kfake.Cluster
	kafkaAddrs []string
	redis      *miniredis.Miniredis
	redisAddr  string
	lock       *flock.Flock // of the data folder; nil without one

	stop    sync.Once
	stopped chan struct{} // closed when everything has ended
}

// Start starts both servers and returns when they accept connections. The caller stops them after
// its last client. Records, topics and group offsets in cfg.Dir survive the process, also kill -9.
// Redis data does not survive; the ledger refills the streams.
//
// It fails with ErrDirInUse when another process uses cfg.Dir. log may be nil.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Servers, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("embedded: %w", err)
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	s := &Servers{stopped: make(chan struct{})}
	if err := s.start(cfg, log.With("component", "embedded")); err != nil {
		s.close()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return s, nil
}

func (s *Servers) start(cfg Config, log *slog.Logger) error {
	if cfg.Dir != "" {
		if err := makeDir(cfg.Dir); err != nil {
			return err
		}
		s.lock = flock.New(filepath.Join(cfg.Dir, "lock"), flock.SetPermissions(0o600))
		locked, err := s.lock.TryLock()
		if err == nil && !locked {
			err = ErrDirInUse
		}
		if err != nil {
			return fmt.Errorf("data folder %s: %w", cfg.Dir, err)
		}
	}
	if err := s.startKafka(cfg, log); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	redis := miniredis.NewMiniRedis()
	if err := redis.StartAddr("127.0.0.1:0"); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	redis.ClockTTL(true) // without it no key ever expires
	redis.Server().SetPreHook(memoryInfo)
	s.redis, s.redisAddr = redis, redis.Addr()
	return nil
}

// memoryInfo answers INFO memory, which miniredis lacks: clients read the eviction policy there.
func memoryInfo(client *server.Peer, command string, args ...string) bool {
	if !strings.EqualFold(command, "info") || len(args) != 1 || !strings.EqualFold(args[0], "memory") {
		return false
	}
	client.WriteBulk("# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n")
	client.Flush()
	return true
}

func (s *Servers) startKafka(cfg Config, log *slog.Logger) error {
	opts := []kfake.Opt{
		kfake.NumBrokers(1),
		kfake.DefaultNumPartitions(cfg.KafkaPartitions),
		kfake.GroupMinSessionTimeout(minSessionTimeout),
		kfake.WithLogger(kafkaLog{log}),
		kfake.BrokerConfigs(map[string]string{
			"message.max.bytes":   maxMessageBytes,
			"log.segment.bytes":   segmentBytes,
			"log.retention.bytes": retentionBytes,
		}),
	}
	if cfg.Dir != "" {
		opts = append(opts, kfake.DataDir(filepath.Join(cfg.Dir, kafkaDir)))
	}
	if cfg.SyncWrites {
		opts = append(opts, kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		return err
	}
	s.kafka = cluster
	for _, topic := range cfg.Topics {
		err := cluster.CreateTopic(topic, int32(cfg.KafkaPartitions), nil) //nolint:gosec // Validate keeps it small
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	s.kafkaAddrs = cluster.ListenAddrs()
	return nil
}

// KafkaAddrs returns the bootstrap brokers, host:port.
func (s *Servers) KafkaAddrs() []string { return slices.Clone(s.kafkaAddrs) }

// RedisAddr returns the address of Redis, host:port.
func (s *Servers) RedisAddr() string { return s.redisAddr }

// Overrides returns the settings that connect the plugins to these servers, dotted path to value.
// They replace the settings of the profile.
func (s *Servers) Overrides() map[string]any {
	return map[string]any{
		"plugins.kafka.brokers": s.KafkaAddrs(),
		"plugins.redis.addrs":   []string{s.RedisAddr()},
	}
}

// Stop ends both servers and waits for them; the files of Kafka in cfg.Dir are then complete. It is
// idempotent. When ctx ends first it returns ctx.Err() and the servers end later.
func (s *Servers) Stop(ctx context.Context) error {
	s.stop.Do(func() {
		go func() { // ends with the servers; Stop waits for it
			defer close(s.stopped)
			s.close()
		}()
	})
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("embedded: stop: %w", ctx.Err())
	}
}

func (s *Servers) close() {
	if s.redis != nil {
		s.redis.Close()
	}
	if s.kafka != nil {
		s.kafka.Close()
	}
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

// ErrDirInUse means that another process lives in the folder. Stop it, or choose another folder.
var ErrDirInUse = errors.New("folder is in use by another process")

// kafkaLog writes kfake's log lines at their level, without its debug lines: there is one per
// request.
type kafkaLog struct{ log *slog.Logger }

func (l kafkaLog) Logf(level kfake.LogLevel, format string, args ...any) {
	switch level {
	case kfake.LogLevelError:
		l.log.Error("kafka broker", "detail", fmt.Sprintf(format, args...))
	case kfake.LogLevelWarn:
		l.log.Warn("kafka broker", "detail", fmt.Sprintf(format, args...))
	default:
	}
}

// makeDir makes the data folder for its owner only. An existing folder keeps its permissions;
// Kafka's subfolder gets those of this package.
func makeDir(dir string) error {
	if err := os.MkdirAll(filepath.Join(dir, kafkaDir), 0o700); err != nil {
		return fmt.Errorf("data folder: %w", err)
	}
	if err := os.Chmod(filepath.Join(dir, kafkaDir), 0o700); err != nil { //nolint:gosec // a folder needs x
		return fmt.Errorf("data folder: %w", err)
	}
	return nil
}

// kafkaDir is the folder of Kafka's files in the data folder.
const kafkaDir = "kafka"
