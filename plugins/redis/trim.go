package redis

import (
	"context"
	_ "embed" // the script
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/setting"
)

//go:embed lua/trim.lua
var trimSource string

// TrimConfig says what is removed from the streams that routes read. Elastic streams have settings
// of their own.
type TrimConfig struct {
	// Trim removes entries that all groups that count have acknowledged. These are the groups that
	// read the stream in this process, that of its domain, and RequiredGroups.
	Trim bool `yaml:"trim"`
	// TrimExcept are streams, and prefixes of domains, from which nothing is removed.
	TrimExcept []string `yaml:"trim_except"`
	// ForeignGroupGrace is how long any other group may delay trimming. After that the group is
	// ignored until it has caught up. Zero: it is ignored at once.
	ForeignGroupGrace time.Duration `yaml:"foreign_group_grace"`
	// RequiredGroups are consumer groups that delay trimming without a limit, on each stream where
	// they exist.
	RequiredGroups []string `yaml:"required_groups"`
}

// Validate reports all errors at once.
func (c TrimConfig) Validate() error {
	var p setting.Problems
	p.Check(c.ForeignGroupGrace >= 0, "foreign_group_grace", "must be >= 0, got %s", c.ForeignGroupGrace)
	p.Groups("required_groups", c.RequiredGroups)
	for i, s := range c.TrimExcept {
		p.Check(s != "", fmt.Sprintf("trim_except[%d]", i), "must be a stream or the prefix of a domain")
	}
	return p.Err()
}

const (
	commandTimeout = 10 * time.Second // of one command with the client's own retries

	trimInterval = 5 * time.Second // between two rounds
	warnEvery    = time.Minute     // the least time between two warnings with the same text
)

// trimmer removes acknowledged entries from the streams that are read here, and measures the shards
// of domains. Each instance does it.
type trimmer struct {
	cfg     *Config
	metrics trimMetrics
	script  *goredis.Script
	sampler *logs.Throttle
	every   time.Duration
	limit   time.Duration // of one measurement

	mu      sync.Mutex
	streams map[string]*trimmedStream

	loops *loop.Group // nil: not started
}

type trimmedStream struct {
	client  func() goredis.UniversalClient // nil: the shared one
	groups  []string                       // that have read it since the start: none is foreign
	reading map[*trimReading]struct{}      // now
	acked   int64                          // by readers here, at the last visit
	left    bool                           // by the last visit, or there was none
}

type trimReading struct {
	group string
	acked func() int64
}

func newTrimmer(cfg *Config) *trimmer {
	return &trimmer{
		cfg: cfg, metrics: newTrimMetrics(), script: goredis.NewScript(groupsSource + trimSource), every: trimInterval, limit: commandTimeout,
		sampler: logs.NewThrottle(warnEvery), streams: map[string]*trimmedStream{},
	}
}

// add has a stream trimmed while group reads it, until stop is called. acked counts the
// acknowledged entries here and may be nil. Without a group nothing is trimmed.
func (t *trimmer) add(stream, group string, acked func() int64) (stop func()) {
	if group == "" {
		return func() {}
	}
	_, stop = t.track(nil, stream, group, acked)
	return stop
}

// addOn is add for a stream that may be on another server, and of which nothing is kept after stop.
func (t *trimmer) addOn(client func() goredis.UniversalClient, stream, group string, acked func() int64) (stop func()) {
	s, end := t.track(client, stream, group, acked)
	return func() {
		end()
		t.mu.Lock()
		defer t.mu.Unlock()
		if len(s.reading) == 0 {
			delete(t.streams, stream)
		}
	}
}

// track counts a reader of a stream until stop is called.
func (t *trimmer) track(client func() goredis.UniversalClient, stream, group string, acked func() int64) (s *trimmedStream, stop func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s = t.streams[stream]
	if s == nil {
		s = &trimmedStream{client: client, reading: map[*trimReading]struct{}{}}
		t.streams[stream] = s
	}
	if !slices.Contains(s.groups, group) {
		s.groups = append(s.groups, group)
	}
	reading := &trimReading{group, acked}
	s.reading[reading] = struct{}{}
	s.left = true
	return s, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(s.reading, reading)
	}
}

func (t *trimmer) start(ctx context.Context, c goredis.UniversalClient, log *slog.Logger) {
	var loops []func(context.Context)
	add := func(round func(context.Context, goredis.UniversalClient, *slog.Logger)) {
		loops = append(loops, func(ctx context.Context) {
			loop.Every(ctx, t.every, func(ctx context.Context) { round(ctx, c, log) })
		})
	}
	if t.cfg.Trim {
		add(t.round)
	}
	if len(t.cfg.Domains) > 0 {
		add(t.measure)
	}
	if len(loops) > 0 {
		t.loops = &loop.Group{}
		_ = t.loops.Start(ctx, loops...) // the first Start of a Group returns no error
	}
}

func (t *trimmer) stop(ctx context.Context) {
	if t.loops != nil {
		_ = t.loops.Stop(ctx) // the next command fails: the client is closed
	}
}

type visit struct {
	of      *trimmedStream
	stream  string
	reading []string // groups that read it here now: nothing is removed while one is missing
	count   []string // more groups that count
	keep    time.Duration
	acked   int64
}

// due returns the streams in which an entry was acknowledged here since the last visit, or in which
// that visit left entries.
func (t *trimmer) due(except []string) []visit {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []visit
	for name, s := range t.streams {
		if len(s.reading) == 0 || slices.ContainsFunc(except, func(e string) bool { return e == name || isShard(e, name) }) {
			continue
		}
		v := visit{of: s, stream: name, count: append(slices.Clone(s.groups), t.cfg.RequiredGroups...)}
		known := true
		for r := range s.reading {
			v.reading = append(v.reading, r.group)
			if known = known && r.acked != nil; known {
				v.acked += r.acked()
			}
		}
		if known && !s.left && v.acked == s.acked {
			continue
		}
		if d, ok := domainOf(t.cfg.Domains, name); ok { // its route may be disabled here
			v.count, v.keep = append(v.count, d.Group), d.Keep
		}
		all = append(all, v)
	}
	return all
}

// round visits each stream that is due. A server, or a node of a Cluster, that does not answer is
// left out of it.
func (t *trimmer) round(ctx context.Context, shared goredis.UniversalClient, log *slog.Logger) {
	var delays Delays
	silent := map[goredis.UniversalClient]bool{}
	for _, v := range t.due(t.cfg.TrimExcept) {
		c := shared
		if v.of.client != nil {
			c = v.of.client()
		}
		server := c
		if node := nodeOf(ctx, c, v.stream); node != nil {
			server = node
		}
		if silent[server] {
			continue
		}
		got, err := t.trim(ctx, c, v)
		if ctx.Err() != nil {
			return
		}
		t.mu.Lock()
		v.of.acked, v.of.left = v.acked, err != nil || got.left > 0
		t.mu.Unlock()
		if err != nil {
			t.metrics.failures.Inc()
			t.sampler.Warn(log, "a stream was not trimmed, tried again", slog.String(logs.Stream, v.stream), logs.Err(err))
			silent[server] = !poll.IsReply(err)
			continue
		}
		t.metrics.trimmed.Add(float64(got.trimmed))
		delays.Note(v.stream, got.delaying, t.cfg.ForeignGroupGrace)
		if got.losers > 0 {
			t.metrics.unreadRemoved.Add(float64(got.losers))
			log.ErrorContext(ctx, "entries were removed from a stream before they were read", slog.String(logs.Stream, v.stream))
		}
	}
	t.metrics.delaying.Reset()
	for group, n := range delays.ByGroup() {
		t.metrics.delaying.WithLabelValues(group).Set(float64(n))
	}
	if delays.Streams > 0 {
		t.sampler.Warn(log, "a foreign consumer group delays the trimming of a stream",
			slog.String(logs.Stream, delays.Stream), slog.String(logs.Group, delays.Worst.Group), slog.Duration("for", delays.Worst.For),
			slog.Bool("ignored", delays.Worst.Ignored), slog.Duration("foreign_group_grace", t.cfg.ForeignGroupGrace), slog.Int("streams", delays.Streams))
	}
}

// trimReply is the reply of trim.lua.
type trimReply struct {
	trimmed, left int64
	delaying      []DelayingGroup
	losers        int64 // groups that lost an entry that they had not read
}

func (t *trimmer) trim(ctx context.Context, c goredis.UniversalClient, v visit) (trimReply, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	reply, err := t.script.Run(ctx, c, []string{v.stream, MetaKey(v.stream)},
		strings.Join(v.reading, "\n"), t.cfg.ForeignGroupGrace.Milliseconds(), strings.Join(slices.Concat(v.reading, v.count), "\n"), v.keep.Milliseconds()).Slice()
	if err != nil {
		return trimReply{}, fmt.Errorf("trim.lua: %w", err)
	}
	if len(reply) == 4 {
		gone, ok1 := reply[0].(int64)
		left, ok2 := reply[1].(int64)
		delaying, err := ParseDelaying(reply[2])
		losers, ok3 := reply[3].(int64)
		if ok1 && ok2 && err == nil && ok3 {
			return trimReply{gone, left, delaying, losers}, nil
		}
	}
	return trimReply{}, fmt.Errorf("trim.lua: unexpected reply %v", reply)
}
