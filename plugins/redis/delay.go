package redis

import (
	"context"
	_ "embed" // the scripts
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

var (
	//go:embed lua/delay.lua
	delaySource string
	//go:embed lua/due.lua
	dueSource string
)

const (
	// dueEntries and dueBytes limit the time of one call of due.lua, which blocks the server.
	dueEntries = 100
	dueBytes   = 1 << 20
	// dueElsewhere is the time between two looks for due entries when no route of this process
	// retries into the stream, because another process may do so.
	dueElsewhere = 5 * time.Second
)

// dueBackoff is the wait after the n-th failed look in a row.
var dueBackoff = pipeline.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second} //nolint:gochecknoglobals // a constant, but Go has none of this type

// delayCommands are the commands on a dueKey, in addition to those of all plugins.
func delayCommands() []string { return []string{"zadd", "zcard", "zrange", "zrem"} }

// dueKey returns the sorted set of the entries that wait until they are added to a stream:
// {stream}:due, or stream:due when the stream has a hash tag. Both keys have the same slot of a
// Redis Cluster.
func dueKey(stream string) string { return companion(stream, "due") }

// checkDelays returns why a stream can't be a retry topic: no companion would share its slot.
func checkDelays(stream string) error {
	if hashTag(stream) == "" && strings.Contains(stream, "}") {
		return fmt.Errorf("the braces in the stream's name %q must enclose a hash tag, as in {orders}:retry", stream)
	}
	return nil
}

// Delays implements pipeline.Delayer. Entries that are not due wait in a sorted set, by the clock
// of the server, and the readers of the stream move them.
func (s sink) Delays() error { return checkDelays(s.at.Name) }

// Delays implements pipeline.Delayer.
func (s source) Delays() error { return checkDelays(s.at.Name) }

// delays are the retry topics of a plugin.
type delays struct {
	delay, due *Script
	sampler    *logs.Throttle
	waiting    prometheus.Gauge

	mu     sync.Mutex
	routes *pipeline.Registry // nil before Register
	counts map[string]int64   // entries that wait, by stream
}

func newDelays() *delays {
	return &delays{
		delay: NewScript(delaySource), due: NewScript(dueSource), sampler: logs.NewThrottle(warnEvery), counts: map[string]int64{},
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "redis", Name: "retries_waiting",
			Help: "Retry records that are not due yet, of the streams that routes of this instance read.",
		}),
	}
}

// retries reports whether a stream is the retry topic of a route.
func (d *delays) retries(stream string) bool {
	d.mu.Lock()
	routes := d.routes
	d.mu.Unlock()
	return routes != nil && len(routes.RetriesInto(pipeline.Endpoint{Kind: poll.Kind, Name: stream})) > 0
}

// topics returns the streams that are retry topics.
func (d *delays) topics() (streams []string) {
	d.mu.Lock()
	routes := d.routes
	d.mu.Unlock()
	if routes == nil {
		return nil
	}
	seen := map[string]bool{}
	for _, r := range routes.Routes() {
		to, ok := r.Policy.Retry.To.(sink)
		if ok && !seen[to.at.Name] {
			seen[to.at.Name] = true
			streams = append(streams, to.at.Name)
		}
	}
	return streams
}

// counted sets how many entries of a stream wait; 0 also when it is no longer read here.
func (d *delays) counted(stream string, waiting int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.counts[stream] = waiting; waiting == 0 {
		delete(d.counts, stream)
	}
	sum := int64(0)
	for n := range maps.Values(d.counts) {
		sum += n
	}
	d.waiting.Set(float64(sum))
}

// delayOf returns how many milliseconds a message of a retry topic waits, rounded up. A due time
// that has passed is now.
func delayOf(m *message.Message, now time.Time) (millis int64) {
	due := pipeline.DueTime(m.Metadata, now)
	if !due.After(now) {
		return 0
	}
	wait := due.Sub(now) // at most 292 years
	if millis = wait.Milliseconds(); wait%time.Millisecond > 0 {
		millis++
	}
	return millis
}

// later has the entry added to the stream after a delay in milliseconds.
func (d *delays) later(stream string, e entry.Entry, millis int64) *Call {
	return d.delay.Call([]string{dueKey(stream)}, millis, packed(e))
}

// packed returns the fields and values of an entry, each as <length>:<bytes>.
func packed(e entry.Entry) []byte {
	values := e.Values()
	b := make([]byte, 0, len(e.Message)+256)
	for _, v := range values {
		switch v := v.(type) {
		case []byte:
			b = append(strconv.AppendInt(b, int64(len(v)), 10), ':')
			b = append(b, v...)
		case string:
			b = append(strconv.AppendInt(b, int64(len(v)), 10), ':')
			b = append(b, v...)
		}
	}
	return b
}

// publishDue publishes messages of a retry topic, some of which are due later. The error is that of
// pipeline.PublishError.
func (s sink) publishDue(ctx context.Context, msgs []*message.Message, entries []entry.Entry) error {
	now, errs := time.Now(), make([]error, len(msgs))
	var calls []*Call
	var later, atOnce []int // indexes
	var direct []entry.Entry
	for i, m := range msgs {
		if millis := delayOf(m, now); millis > 0 {
			calls, later = append(calls, s.p.delays.later(s.at.Name, entries[i], millis)), append(later, i)
		} else {
			direct, atOnce = append(direct, entries[i]), append(atOnce, i)
		}
	}
	if len(calls) > 0 {
		_ = s.p.Server(nil).Do(ctx, calls...) // each call has its own error
		for n, i := range later {
			if err := calls[n].Err(); err != nil {
				errs[i] = fmt.Errorf("delay message %s: %w", msgs[i].UUID, err)
			}
		}
	}
	if len(direct) > 0 {
		err := s.p.publish.PublishEntries(ctx, s.at.Name, direct)
		var partial *pipeline.PartialError
		known := errors.As(err, &partial)
		for n, i := range atOnce {
			if known {
				errs[i] = partial.Failed[n]
			} else {
				errs[i] = err
			}
		}
	}
	return pipeline.PublishError(errs)
}

// mover moves the entries of a stream that are due into it, while a route reads the stream.
type mover struct {
	p        *Plugin
	stream   string
	every    time.Duration
	wake     func() // the reader reads at once
	log      *slog.Logger
	ours     bool // a route of this process retries into the stream
	failures int  // in a row
}

// startMover starts the mover of a stream that is being read. It ends with stop.
func (p *Plugin) startMover(stream string, wake func(), log *slog.Logger) (stop func()) {
	m := &mover{p: p, stream: stream, every: p.cfg.PollInterval, wake: wake, log: log, ours: p.delays.retries(stream)}
	if m.every <= 0 {
		m.every = poll.DefaultConfig().PollInterval
	}
	if !m.ours {
		m.every = dueElsewhere
	}
	loops := &loop.Group{}
	// The first Start of a Group returns no error.
	_ = loops.Start(context.Background(), func(ctx context.Context) { loop.Repeat(ctx, 0, m.round) })
	return func() {
		_ = loops.Stop(context.Background()) // bounded: the calls of a round end with its context
		p.delays.counted(stream, 0)
	}
}

// round moves the entries that are due, and returns the wait until the next round. An idle stream
// has one round per interval, and a stream whose next entry is due before that one more.
func (m *mover) round(ctx context.Context) time.Duration {
	call := m.p.delays.due.Call([]string{m.stream, dueKey(m.stream)}, dueEntries, dueBytes)
	_ = m.p.Server(nil).Do(ctx, call) // the call has the error too
	moved, waiting, next, err := dueReply(call)
	if err != nil {
		if ctx.Err() != nil {
			return 0
		}
		m.failures++
		m.warn(err)
		return max(m.every, dueBackoff.Delay(m.failures))
	}
	m.failures = 0
	m.p.delays.counted(m.stream, waiting)
	if moved > 0 {
		m.wake()
	}
	if next >= 0 {
		return min(m.every, next)
	}
	return m.every
}

// warn reports a failed round. The process cannot know whether another one retries into the stream:
// its records would wait without anything that counts them.
func (m *mover) warn(err error) {
	attrs := []slog.Attr{slog.String(logs.Stream, m.stream), slog.String("key", dueKey(m.stream)), logs.Err(err)}
	if m.ours {
		m.p.delays.sampler.Warn(m.log, "retry records that are due were not moved into their stream, tried again", attrs...)
		return
	}
	m.p.delays.sampler.Warn(m.log, "retry records of other processes are not moved into a stream that is read here, tried again", append(attrs,
		slog.String("remedy", "if a process retries into the stream, make the key a sorted set, the stream's key a stream, and grant their rights to the ACL user"))...)
}

// dueReply returns the reply of due.lua. next is negative when no entry waits.
func dueReply(c *Call) (moved, waiting int64, next time.Duration, err error) {
	list, err := c.List()
	if err != nil {
		return 0, 0, 0, err
	}
	if len(list) == 3 {
		moved, ok1 := list[0].(int64)
		waiting, ok2 := list[1].(int64)
		millis, ok3 := list[2].(int64)
		if ok1 && ok2 && ok3 {
			return moved, waiting, time.Duration(millis) * time.Millisecond, nil
		}
	}
	return 0, 0, 0, c.unexpected("that of due.lua")
}

var (
	_ pipeline.Delayer = sink{}
	_ pipeline.Delayer = source{}
)
