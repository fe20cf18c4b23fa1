package poll

import (
	"cmp"
	"context"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Kind is the kind of the endpoints and origins of streams.
const Kind = "redis-stream"

// Config has the settings of a reader. Zero durations and counts mean the defaults, unless noted.
type Config struct {
	// Concurrency is how many messages are handled at once, when the route sets no limit.
	Concurrency int `yaml:"concurrency"`
	// BatchSize is the smallest COUNT of XREADGROUP. It doubles up to 256 while entries are handled
	// as fast as they are read. Large entries make it smaller: a reader has about 16 MiB in flight
	// at most, and fetches about 4 MiB at once.
	BatchSize int `yaml:"batch_size"`
	// PollInterval is the longest sleep between two reads of an empty stream.
	PollInterval time.Duration `yaml:"poll_interval"`
	// InitialPollInterval is the sleep after the first empty read. It doubles up to PollInterval.
	InitialPollInterval time.Duration `yaml:"initial_poll_interval"`
	// MinIdle is the time after which others may reclaim an entry. It is the same in each instance.
	MinIdle time.Duration `yaml:"min_idle"`
	// LongestHold is how long an entry in flight is kept alive. Zero: no limit.
	LongestHold time.Duration `yaml:"longest_hold"`
	// AckBatchSize is the number of ids in one XACK.
	AckBatchSize int `yaml:"ack_batch_size"`
	// AckFlushInterval is the maximum time that an acknowledgement waits to be batched.
	AckFlushInterval time.Duration `yaml:"ack_flush_interval"`
	// MaxRedeliveries is how often a reader delivers a nacked entry again. Then it stays pending.
	MaxRedeliveries int `yaml:"max_redeliveries"`
	// Redelivery is the delay before each redelivery.
	Redelivery pipeline.Backoff `yaml:"redelivery"`
}

// DefaultConfig returns the documented defaults.
func DefaultConfig() Config {
	return Config{
		Concurrency:         16,
		BatchSize:           10,
		PollInterval:        100 * time.Millisecond,
		InitialPollInterval: 5 * time.Millisecond,
		MinIdle:             5 * time.Minute,
		LongestHold:         30 * time.Minute,
		AckBatchSize:        100,
		AckFlushInterval:    20 * time.Millisecond,
		MaxRedeliveries:     5,
		Redelivery:          pipeline.Backoff{First: 100 * time.Millisecond, Max: 10 * time.Second},
	}
}

// Validate reports all errors at once, as joined *setting.FieldError.
func (c Config) Validate() error {
	var p setting.Problems
	p.Check(c.Concurrency > 0, "concurrency", "must be > 0, got %d", c.Concurrency)
	p.Check(c.BatchSize > 0, "batch_size", "must be > 0, got %d", c.BatchSize)
	p.Positive("poll_interval", c.PollInterval)
	p.Positive("initial_poll_interval", c.InitialPollInterval)
	p.Check(c.MinIdle >= time.Millisecond, "min_idle", "must be >= 1ms, got %s", c.MinIdle)
	p.Check(c.LongestHold >= 0, "longest_hold", "must be >= 0, got %s", c.LongestHold)
	p.Check(c.AckBatchSize > 0 && c.AckBatchSize <= maxIDs, "ack_batch_size", "must be 1..%d, got %d", maxIDs, c.AckBatchSize)
	p.Positive("ack_flush_interval", c.AckFlushInterval)
	p.Check(c.MaxRedeliveries >= 0, "max_redeliveries", "must be >= 0, got %d", c.MaxRedeliveries)
	return p.Err()
}

// Options are the stream of one Reader and its settings.
type Options struct {
	Config
	// Stream, Group and Consumer are required. Live readers of a group have different Consumers.
	Stream, Group, Consumer string

	// LongestHandlerHold is LongestHold from the start of a handler. Zero: LongestHold. Negative: no limit.
	LongestHandlerHold time.Duration
	// ReclaimInterval is the time between two claims of idle entries. Zero or less: no claims.
	ReclaimInterval time.Duration
	// Scheduler sends reads while there are no entries. Readers of one client should share it. Nil:
	// one of its own.
	Scheduler *Scheduler
	// Gate stops the reading of new entries and the delivery of nacked ones while it returns false.
	// A nack in that time does not count towards MaxRedeliveries. After MinIdle, other instances
	// may claim what was nacked, except with Ordered. Gate is called before each read and must be
	// cheap. Nil: open.
	Gate func() bool
	// Ahead > 0: Concurrency does not limit the messages in handlers, but their calls
	// (slots.From). Handlers have half as many messages again, which they can prepare in
	// batches. They have more while they are quick and slots are free, at most 256 and up to twice
	// Ahead. Ahead limits those that are started, if their slots need no more. Even with
	// Concurrency 1, other messages then overtake a nacked one.
	Ahead int
	// Ordered: entries leave the reader in the order of reading at their first delivery, however
	// many are in flight. A nacked entry is overtaken, unless Concurrency is 1. While the gate is
	// closed or the fence is in the future, nothing leaves the reader. Entries nacked in that time
	// take their places again.
	Ordered bool
	// TakeOver: before the first new entry, the reader claims the pending entries of all consumers
	// of the group, in their order. No other consumer may be reading.
	TakeOver bool
	// Fence returns the time since which the server must have confirmed that an entry is this
	// consumer's, before a handler may start. An entry that was confirmed earlier is looked up
	// again first. While the time is in the future, nothing is read or started. Fence is called
	// before each entry and must be cheap. Nil: only MinIdle decides.
	Fence func() time.Time
	// Absent is called when the stream or its group does not exist. True: both were created again,
	// at 0, and the reader continues. False: the reader stops. After an error it is called again,
	// later. Nil: the reader stops.
	Absent func(ctx context.Context) (again bool, err error)
	// Fields: an entry without the field "message" is read as flat fields (entry.DecodeFields).
	Fields bool
	// Base is the parent of the messages' contexts. Nil: context.Background.
	Base context.Context
	// CancelUnfinished makes a drain that runs out of time cancel the contexts of unfinished
	// messages.
	CancelUnfinished bool
}

// gated reports whether the gate is closed.
func (o *Options) gated() bool { return o.Gate != nil && !o.Gate() }

// fenced reports whether nothing may start now.
func (o *Options) fenced() bool { return o.Fence != nil && o.Fence().After(time.Now()) }

// stopped reports whether entries that were read must wait.
func (o *Options) stopped() bool { return o.fenced() || o.Ordered && o.gated() }

// since returns the time since which an entry must have been confirmed: the given time ago, or the
// fence if that is later.
func (o *Options) since(ago time.Duration) time.Time {
	since := time.Now().Add(-ago)
	if o.Fence == nil {
		return since
	}
	if fence := o.Fence(); fence.After(since) {
		return fence
	}
	return since
}

func (o Options) withDefaults() Options {
	d := DefaultConfig()
	o.Concurrency = positive(o.Concurrency, d.Concurrency)
	o.BatchSize = positive(o.BatchSize, d.BatchSize)
	o.PollInterval = positive(o.PollInterval, d.PollInterval)
	o.InitialPollInterval = min(positive(o.InitialPollInterval, d.InitialPollInterval), o.PollInterval)
	o.MinIdle = positive(o.MinIdle, d.MinIdle)
	o.LongestHandlerHold = cmp.Or(o.LongestHandlerHold, o.LongestHold)
	o.AckBatchSize = min(positive(o.AckBatchSize, d.AckBatchSize), maxIDs)
	o.AckFlushInterval = positive(o.AckFlushInterval, d.AckFlushInterval)
	if o.Scheduler == nil {
		o.Scheduler = &Scheduler{}
	}
	if o.Base == nil {
		o.Base = context.Background()
	}
	return o
}

func positive[T int | time.Duration](v, otherwise T) T {
	if v > 0 {
		return v
	}
	return otherwise
}
