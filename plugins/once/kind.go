package once

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/ledger"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/reclaim"
)

// Kind describes the effects of one kind: how they are named, requested and looked up. T is what a
// record of its topic, or a call of Enqueue, carries.
type Kind[T any] struct {
	// Name is lower-case letters, digits and -, and begins with a letter. Metrics, commands and the
	// idempotency key contain it, so it can't be changed while the ledger has effects of the kind.
	Name string
	// Repeat has no default, because a wrong one loses or doubles effects.
	Repeat Repeat
	// Key names the effect of a value. Its error makes a record a dead letter of class undecodable.
	Key func(T) (Key, error)
	// Call requests the effect, once per attempt. It returns when no byte of the request can leave any
	// more, and at the latest when ctx ends, and it never retries. A panic counts as Unclear.
	Call func(ctx context.Context, a Attempt[T]) Answer
	// Lookup finds out what became of an effect. It gets no value, so it works when the value can't be
	// decoded any more. It is required with ByLookup, optional with ByKey, and refused otherwise.
	Lookup func(ctx context.Context, l Lookup) Answer
	// Request returns the bytes that every attempt sends. It is called once per value, when the effect
	// is accepted, and the result is stored. Two values with the same key ask for the same effect only
	// if their requests are the same. Nil: the record as it came, or the value as JSON.
	Request func(T) ([]byte, error)
	// Same reports whether two requests with the same key, whose bytes differ, ask for the same effect. One example is a
	// request without a field that a later version of the publisher writes. The stored one is sent. Nil: SameJSON.
	Same func(stored, offered []byte) bool
	// Decode reads a stored record, also one that an earlier version of T wrote. Nil: pipeline.Decode.
	Decode func(payload []byte) (T, error)
	// NotBefore returns the earliest time of the first attempt. It is no part of the request: of two
	// records with the same key the time of the first stands. Nil, or a zero time: at once.
	NotBefore func(T) time.Time
	// Idempotency returns the idempotency key. Nil: the name of the kind, a colon and the key's text.
	// A far side that wants UUIDs gets them from UUID.
	Idempotency func(Key) string
	// Gate says when calls may be sent, so that nothing is claimed, and no attempt spent, while none may. An
	// oncehttp.Client is one. Nil: always.
	Gate Gate
	// Describe returns what people see of a value, such as "12.00 EUR for acme". Nil: the key alone.
	Describe func(T) string
	// Sum returns what a value amounts to, in the smallest unit of the far side's book, such as cents, for once
	// reconcile. ok is false if this one has no sum. Nil: effects have none.
	Sum func(T) (sum int64, ok bool)
	// Result returns the record about the end of an effect, for the topic KindConfig.Results. Nil bytes: there is none. After
	// an error it is asked again later. Nil: the Result as JSON.
	Result func(Result) ([]byte, error)
	// Names replaces names in Redis that are otherwise derived from Name.
	Names Names
}

// Gate says when calls may be sent. Its methods are called often and must be fast.
type Gate interface {
	// Ready reports whether a call would be sent now.
	Ready() bool
	// Take returns how many of n calls may begin now, and counts them as begun. When none may, wait is until one may.
	Take(n int) (may int, wait time.Duration)
}

var kindShape = regexp.MustCompile(`^[a-z][a-z0-9-]{0,30}$`)

const nameRule = "must be a letter, and up to 30 letters, digits or -, all lower-case"

// CheckName returns why a kind can't have the name.
func CheckName(name string) error {
	if !kindShape.MatchString(name) {
		return fmt.Errorf("the name of a kind %s, got %q", nameRule, name)
	}
	return nil
}

// validate reports every mistake of the kind at once.
func (k Kind[T]) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("once: kind %q: "+format, append([]any{k.Name}, args...)...))
		}
	}
	check(CheckName(k.Name) == nil, "its name %s", nameRule)
	check(k.Repeat.Validate() == nil, "Repeat must be ByKey, ByLookup, Never or Always, because it decides what follows an unclear answer")
	check(k.Key != nil, "Key is nil: it must name the effect of a value")
	check(k.Call != nil, "Call is nil: it must request the effect")
	check(k.Lookup != nil || k.Repeat != ByLookup, "Lookup is nil: with ByLookup only a lookup can tell what became of an effect")
	check(k.Lookup == nil || k.Repeat != Never && k.Repeat != Always, "Lookup is set, and Repeat says that the far side has none: set ByKey or ByLookup")
	names := k.Names.Validate()
	check(names == nil, "Names: %w", names)
	return errors.Join(errs...)
}

func (k Kind[T]) decode(payload []byte) (v T, err error) {
	if k.Decode != nil {
		return k.Decode(payload)
	}
	return v, pipeline.Decode(payload, &v)
}

// IdempotencyKey returns the idempotency key of an effect, as the far side is sent it.
func (k Kind[T]) IdempotencyKey(key Key) string {
	if k.Idempotency != nil {
		return k.Idempotency(key)
	}
	return k.Name + ":" + key.String()
}

func (k Kind[T]) request(v T, payload []byte) ([]byte, error) {
	if k.Request == nil {
		return payload, nil
	}
	return k.Request(v)
}

// KindConfig are the settings of a kind, a part of its plugin's section.
type KindConfig struct {
	// Topic is the Kafka topic whose records ask for effects. Topic-dead gets those that never can.
	// Empty: only Enqueue and EnqueueTx do.
	Topic string `yaml:"topic"`
	// Group is the consumer group of Topic.
	Group string `yaml:"group"`
	// Concurrency is how many calls of the kind an instance makes at once.
	Concurrency int `yaml:"concurrency"`
	// CallTimeout bounds one call.
	CallTimeout time.Duration `yaml:"call_timeout"`
	// LeaseMargin is how much longer an effect belongs to its worker than a call may last. The lease is
	// call_timeout plus this.
	LeaseMargin time.Duration `yaml:"lease_margin"`
	// MaxRetries is how many attempts, and as many lookups, may follow the first one.
	MaxRetries int `yaml:"max_retries"`
	// MaxReleased is how many attempts that the far side refused to work on, while it answered about
	// other effects, end an effect.
	MaxReleased int `yaml:"max_released"`
	// Retry is the delay before the next attempt.
	Retry pipeline.Backoff `yaml:"retry"`
	// KeyTTL is how long the far side surely knows an idempotency key. ByKey requires it: leave a margin
	// of a lease and of under_way.
	KeyTTL time.Duration `yaml:"key_ttl"`
	// UnderWay is how long a request may be under way after its last byte was sent. ByLookup requires
	// it, because a lookup proves nothing before.
	UnderWay time.Duration `yaml:"under_way"`
	// PollInterval is how often an idle instance looks for effects that another one has accepted.
	PollInterval time.Duration `yaml:"poll_interval"`
	// Via says how instances find accepted effects: ViaLedger or ViaStreams.
	Via string `yaml:"via"`
	// Grace is how long an effect whose entry is lost waits with ViaStreams.
	Grace time.Duration `yaml:"grace"`
	// Streams are the settings of the streams with ViaStreams.
	Streams StreamsConfig `yaml:"streams"`
	// Results is the topic that gets a record for each effect that has ended, at least once and also for one that failed, is
	// unknown or was cancelled. Empty: none.
	Results string `yaml:"results"`
	// Limits bound the calls of the kind, lookups too, over all instances together. An operator can change
	// them with once limit.
	Limits ledger.Limits `yaml:"limits"`
	// AcceptBatch limits the records of the topic that are accepted in one transaction.
	AcceptBatch pipeline.Batch `yaml:"accept_batch"`
}

// minLeaseMargin is more than a claim takes, also of a slow ledger.
const minLeaseMargin = 500 * time.Millisecond

// DefaultKind returns the defaults of a kind with the topic. key_ttl and under_way have none, because
// they are facts about the far side.
func DefaultKind(topic string) KindConfig {
	return KindConfig{
		Topic: topic, Group: "millrace-" + topic, Concurrency: 16, CallTimeout: 3 * time.Second, LeaseMargin: 5 * time.Second,
		MaxRetries: 5, MaxReleased: 20, Retry: pipeline.Backoff{First: time.Second, Max: 30 * time.Second},
		PollInterval: time.Second, Via: ViaLedger, Grace: 30 * time.Second, Streams: defaultStreams(), AcceptBatch: pipeline.DefaultBatch(),
	}
}

// Needs returns the plugins that a kind of p with the settings requires.
func (c *KindConfig) Needs(p *Plugin) []string {
	needs := []string{pluginName}
	if c.Topic != "" || c.Results != "" {
		needs = append(needs, pipeline.Names(p.topics)...)
	}
	if c.Topic != "" {
		needs = append(needs, pipeline.Names(p.dead)...)
	}
	if c.Via == ViaStreams {
		needs = append(needs, "redis", reclaim.Name)
	}
	return needs
}

// Validate reports every mistake at once. What depends on Repeat is checked when the kind is registered.
func (c *KindConfig) Validate() error {
	var p setting.Problems
	if c.Topic != "" {
		p.Groups("group", []string{c.Group})
	}
	p.Check(c.Concurrency >= 1, "concurrency", "must be >= 1, got %d", c.Concurrency)
	p.Positive("call_timeout", c.CallTimeout)
	p.Check(c.LeaseMargin >= minLeaseMargin, "lease_margin", "must be >= %s, because a claim takes some of it and then nothing would be called, got %s", minLeaseMargin, c.LeaseMargin)
	p.Check(c.MaxRetries >= 0, "max_retries", "must be >= 0, got %d", c.MaxRetries)
	p.Check(c.MaxReleased >= 1, "max_released", "must be >= 1, got %d", c.MaxReleased)
	p.Check(c.Retry.First >= 0, "retry.first", "must be >= 0, got %s", c.Retry.First)
	p.Check(c.Retry.Max >= 0, "retry.max", "must be >= 0, got %s", c.Retry.Max)
	p.Check(c.KeyTTL >= 0, "key_ttl", "must be >= 0, got %s", c.KeyTTL)
	p.Check(c.KeyTTL == 0 || c.KeyTTL > c.lease(), "key_ttl", "must be longer than a lease (call_timeout + lease_margin = %s), got %s", c.lease(), c.KeyTTL)
	p.Check(c.UnderWay >= 0, "under_way", "must be >= 0, got %s", c.UnderWay)
	p.Positive("poll_interval", c.PollInterval)
	p.Check(c.Via == ViaLedger || c.Via == ViaStreams, "via", "must be %s or %s, got %q", ViaLedger, ViaStreams, c.Via)
	p.Positive("grace", c.Grace)
	p.Under("streams", c.Streams.Validate())
	p.Check(c.Results == "" || c.Results != c.Topic, "results", "must be another topic than topic, because its records ask for effects, got %q", c.Results)
	p.Under("limits", c.Limits.Validate())
	p.Under("accept_batch", c.AcceptBatch.Validate())
	return p.Err()
}

func (c *KindConfig) lease() time.Duration { return c.CallTimeout + c.LeaseMargin }

// fits reports the settings that the kind's Repeat requires.
func (c *KindConfig) fits(name string, r Repeat) error {
	switch {
	case r == ByKey && c.KeyTTL == 0:
		return fmt.Errorf("once: kind %q: set key_ttl to the time for which the far side surely knows an idempotency key, less a lease; "+
			"an older request is looked up, or left to an operator, and is never sent again", name)
	case r == ByLookup && c.UnderWay == 0:
		return fmt.Errorf("once: kind %q: set under_way to the longest time that a request may be under way after it was sent; "+
			"a lookup before that finds nothing and proves nothing", name)
	}
	return nil
}

// policy returns the rules of the kind. hasLookup says whether the kind can look effects up.
func (c *KindConfig) policy(r Repeat, hasLookup bool, instance string) rules.Policy {
	p := rules.Policy{
		Repeat: r, MaxAttempts: 1 + c.MaxRetries, MaxReleased: c.MaxReleased, Lease: c.lease(),
		KeyTTL: c.KeyTTL, UnderWay: c.UnderWay, Delay: c.Retry.Delay, Instance: instance,
	}
	if hasLookup {
		p.MaxLookups = 1 + c.MaxRetries
	}
	return p
}

// encodeValue returns a value as the record that Enqueue stores.
func encodeValue(v any) ([]byte, error) {
	payload, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("once: encode %T: %w", v, err)
	}
	return payload, nil
}
