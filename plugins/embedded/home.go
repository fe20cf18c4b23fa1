package embedded

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/alicebob/miniredis/v2"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
)

// Home is a running embedded home. Its methods are safe for concurrent use.
type Home struct {
	kafka      *kfake.Cluster
	kafkaAddrs []string
	redis      *miniredis.Miniredis
	redisAddr  string
	unlock     func()

	stop    sync.Once
	stopped chan struct{} // closed when everything has ended
}

// Start starts both servers and returns when they accept connections. The caller owns the Home and stops
// it after its last client. Records, topics and group offsets in cfg.Dir survive the process, also its
// kill -9; streams and keys of Redis don't: the ledger fills them again.
//
// It fails with ErrDirInUse when another process lives in cfg.Dir. log may be nil.
func Start(ctx context.Context, cfg Config, log *slog.Logger) (*Home, error) {
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
	h := &Home{unlock: func() {}, stopped: make(chan struct{})}
	if err := h.start(cfg, log.With("component", "embedded")); err != nil {
		h.close()
		return nil, fmt.Errorf("embedded: %w", err)
	}
	return h, nil
}

func (h *Home) start(cfg Config, log *slog.Logger) error {
	if cfg.Dir != "" {
		unlock, err := lock(cfg.Dir)
		if err != nil {
			return err
		}
		h.unlock = unlock
	}
	if err := h.startKafka(cfg, log); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	redis := miniredis.NewMiniRedis()
	if err := redis.StartAddr("127.0.0.1:0"); err != nil {
		return fmt.Errorf("redis: %w", err)
	}
	redis.ClockTTL(true) // without it no key ever expires
	h.redis, h.redisAddr = redis, redis.Addr()
	return nil
}

func (h *Home) startKafka(cfg Config, log *slog.Logger) error {
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
	h.kafka = cluster
	for _, topic := range cfg.Topics {
		err := cluster.CreateTopic(topic, int32(cfg.KafkaPartitions), nil) //nolint:gosec // Validate keeps it small
		if err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", topic, err)
		}
	}
	h.kafkaAddrs = cluster.ListenAddrs()
	return nil
}

// KafkaAddrs returns the bootstrap brokers, host:port.
func (h *Home) KafkaAddrs() []string { return slices.Clone(h.kafkaAddrs) }

// RedisAddr returns the address of Redis, host:port.
func (h *Home) RedisAddr() string { return h.redisAddr }

// Overrides returns the settings that lead the plugins into this home, dotted path to value: apply them
// over whatever the profile says.
func (h *Home) Overrides() map[string]any {
	return map[string]any{
		"plugins.kafka.brokers": h.KafkaAddrs(),
		"plugins.redis.addrs":   []string{h.RedisAddr()},
	}
}

// Stop ends both servers and waits for them; what Kafka holds in cfg.Dir is complete then. It is
// idempotent. When ctx ends first it returns ctx.Err() and the servers end on their own a little later.
func (h *Home) Stop(ctx context.Context) error {
	h.stop.Do(func() {
		go func() { // ends with the servers; Stop waits for it
			defer close(h.stopped)
			h.close()
		}()
	})
	select {
	case <-h.stopped:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("embedded: stop: %w", ctx.Err())
	}
}

func (h *Home) close() {
	if h.redis != nil {
		h.redis.Close()
	}
	if h.kafka != nil {
		h.kafka.Close()
	}
	h.unlock()
}

// ErrDirInUse says that another process lives in the folder. Stop it, or choose another folder.
var ErrDirInUse = errors.New("folder is in use by another process")

// kafkaLog writes kfake's log lines at their level, without its debug lines: there is one a request.
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

// makeDir makes the data folder for its owner only. A folder that is there already keeps its rights, because it may be
// any folder; Kafka's part of it is this package's own.
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
