// Package sweep removes what killed processes left in Redis: consumers that hold nothing, and groups
// that a subscription had made for itself. A live subscription renews a mark, and what has an old
// mark is removed.
package sweep

import (
	"context"
	_ "embed" // the scripts
	"log/slog"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/poll"
)

var (
	//go:embed lua/seen.lua
	seenSource string
	//go:embed lua/destroy.lua
	destroySource string
)

// subscriptionsKey is a hash of the subscriptions whose readers claim idle entries by themselves: when each was seen last.
const subscriptionsKey = "millrace:subscriptions"

const (
	commandTimeout = 10 * time.Second // of one sweep
	stopTimeout    = time.Second      // of the removal of the marks

	markInterval  = time.Minute      // between two marks of a subscription
	sweepInterval = markInterval / 2 // between two sweeps, whichever process does them
	sweepAfter    = time.Hour        // without a mark a subscription was killed
	sweepGrace    = 5 * time.Minute  // for living subscriptions to mark themselves after a time in which none could
	sweepMost     = 100              // subscriptions of one sweep
)

// Mark identifies one reader of a subscription.
type Mark struct {
	Stream, Group, Consumer string
	OwnGroup                bool // the group belongs to the reader alone
}

// field is the mark's name in the hash.
func (m Mark) field() string {
	kind := "shared"
	if m.OwnGroup {
		kind = "own"
	}
	return strings.Join([]string{kind, m.Stream, m.Group, m.Consumer}, "\t")
}

// parseMark reverses field; ok is false for a field of another shape.
func parseMark(field string) (m Mark, ok bool) {
	parts := strings.Split(field, "\t")
	if len(parts) != 4 {
		return Mark{}, false
	}
	return Mark{parts[1], parts[2], parts[3], parts[0] == "own"}, true
}

// Sweeper marks subscriptions while they live. It removes what killed subscriptions have left behind: consumers that hold
// nothing, and groups of their own.
type Sweeper struct {
	c        goredis.UniversalClient
	seenLua  *goredis.Script
	destroy  *goredis.Script
	log      *slog.Logger
	marks    []Mark
	key      string        // subscriptionsKey, but in tests
	after    time.Duration // sweepAfter, but in tests
	interval time.Duration // sweepInterval, but in tests
	grace    time.Duration // sweepGrace, but in tests

	quit chan struct{}
	done sync.WaitGroup
}

// Start starts a sweeper, which ends with Stop. Without marks it only removes what others have left behind.
func Start(c goredis.UniversalClient, log *slog.Logger, marks ...Mark) *Sweeper {
	s := &Sweeper{
		c: c, seenLua: goredis.NewScript(seenSource), destroy: goredis.NewScript(destroySource), log: log, marks: marks, key: subscriptionsKey,
		after: sweepAfter, interval: sweepInterval, grace: sweepGrace, quit: make(chan struct{}),
	}
	s.done.Go(s.run)
	return s
}

func (s *Sweeper) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.done.Go(func() { <-s.quit; cancel() })
	tick := time.NewTicker(markInterval)
	defer tick.Stop()
	for {
		if err := s.sweep(ctx); err != nil && ctx.Err() == nil {
			s.log.DebugContext(ctx, "subscriptions not swept", pipeline.Err(err))
		}
		select {
		case <-tick.C:
		case <-s.quit:
			return
		}
	}
}

// Stop ends the sweeper and removes its marks: the subscription has ended in order.
func (s *Sweeper) Stop() {
	close(s.quit)
	s.done.Wait()
	if len(s.marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := s.c.HDel(ctx, s.key, s.fields()...).Err(); err != nil {
		s.log.DebugContext(ctx, "marks of a subscription not removed", pipeline.Err(err))
	}
}

// fields returns the names of the own marks.
func (s *Sweeper) fields() []string {
	fields := make([]string, len(s.marks))
	for i, m := range s.marks {
		fields[i] = m.field()
	}
	return fields
}

// seen marks subscriptions as seen now. It returns at most this many that were not seen for a long time, when it is time for a
// sweep.
func (s *Sweeper) seen(ctx context.Context, most int, fields ...string) (old []string, err error) {
	args := []any{s.after.Milliseconds(), s.interval.Milliseconds(), s.grace.Milliseconds(), most}
	for _, f := range fields {
		args = append(args, f)
	}
	return s.seenLua.Run(ctx, s.c, []string{s.key}, args...).StringSlice()
}

// sweep marks the own subscriptions and removes what others have left behind.
func (s *Sweeper) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	old, err := s.seen(ctx, sweepMost, s.fields()...)
	if err != nil {
		return err
	}
	for _, field := range old {
		m, ok := parseMark(field)
		removed := !ok
		if ok {
			if removed, err = s.remove(ctx, m); err != nil {
				s.log.DebugContext(ctx, "left-over of a killed subscription not removed", slog.String(pipeline.LogStream, m.Stream), slog.String(pipeline.LogGroup, m.Group), pipeline.Err(err))
			}
		}
		if removed {
			err = s.c.HDel(ctx, s.key, field).Err()
		} else { // its turn comes again after all others
			_, err = s.seen(ctx, 0, field)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes the reader's own group, or its consumer when it holds nothing. removed is also true when there is nothing
// to remove any more.
func (s *Sweeper) remove(ctx context.Context, m Mark) (removed bool, err error) {
	if m.OwnGroup {
		removed, err = s.destroy.Run(ctx, s.c, []string{m.Stream}, m.Group, s.after.Milliseconds()).Bool()
	} else {
		removed, err = poll.Consumer{Client: s.c, Stream: m.Stream, Group: m.Group, Name: m.Consumer}.Remove(ctx)
	}
	if poll.IsNoGroup(err) || err != nil && (strings.Contains(err.Error(), "no such key") || strings.Contains(err.Error(), "WRONGTYPE")) {
		return true, nil
	}
	if removed {
		s.log.InfoContext(ctx, "left-over of a killed subscription removed", slog.String(pipeline.LogStream, m.Stream), slog.String(pipeline.LogGroup, m.Group), slog.String("consumer", m.Consumer), slog.Bool("with_group", m.OwnGroup))
	}
	return removed, err
}
