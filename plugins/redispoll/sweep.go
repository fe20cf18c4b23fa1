package redispoll

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
)

// subscriptionsKey is a hash of the subscriptions whose readers claim idle entries by themselves: when each was seen last.
const subscriptionsKey = "millrace:subscriptions"

const (
	markInterval  = time.Minute      // between two marks of a subscription
	sweepInterval = markInterval / 2 // between two sweeps, whichever process does them
	sweepAfter    = time.Hour        // without a mark a subscription was killed
	sweepGrace    = 5 * time.Minute  // for living subscriptions to mark themselves after a time in which none could
	sweepMost     = 100              // subscriptions of one sweep
)

// mark identifies one reader of a subscription.
type mark struct {
	stream, group, consumer string
	own                     bool // the group belongs to the reader alone
}

// field is the mark's name in the hash.
func (m mark) field() string {
	kind := "shared"
	if m.own {
		kind = "own"
	}
	return strings.Join([]string{kind, m.stream, m.group, m.consumer}, "\t")
}

// parseMark reverses field; ok is false for a field of another shape.
func parseMark(field string) (m mark, ok bool) {
	parts := strings.Split(field, "\t")
	if len(parts) != 4 {
		return mark{}, false
	}
	return mark{parts[1], parts[2], parts[3], parts[0] == "own"}, true
}

// sweeper marks subscriptions while they live. It removes what killed subscriptions have left behind: consumers that hold
// nothing, and groups of their own.
type sweeper struct {
	c        redis.UniversalClient
	scripts  scripts
	log      *slog.Logger
	marks    []mark
	key      string        // subscriptionsKey, but in tests
	after    time.Duration // sweepAfter, but in tests
	interval time.Duration // sweepInterval, but in tests
	grace    time.Duration // sweepGrace, but in tests

	quit chan struct{}
	done sync.WaitGroup
}

// startSweeper starts the goroutine of a sweeper, which ends with stop.
func startSweeper(c redis.UniversalClient, log *slog.Logger, marks ...mark) *sweeper {
	s := &sweeper{
		c: c, scripts: newScripts(), log: log, marks: marks, key: subscriptionsKey,
		after: sweepAfter, interval: sweepInterval, grace: sweepGrace, quit: make(chan struct{}),
	}
	s.done.Go(s.run)
	return s
}

// MarkSubscription marks a consumer of another plugin that claims idle entries by itself, as the plugin marks those of its own
// Sources, until stop is called. When the process is killed, its consumer is removed after an hour.
func (p *Plugin) MarkSubscription(stream, group, consumer string) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.client == nil {
		return func() {}
	}
	return startSweeper(p.client, p.env.Logger, mark{stream: stream, group: group, consumer: consumer}).stop
}

func (s *sweeper) run() {
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

// stop ends the sweeper and removes its marks: the subscription has ended in order.
func (s *sweeper) stop() {
	close(s.quit)
	s.done.Wait()
	if len(s.marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), finalFlush)
	defer cancel()
	if err := s.c.HDel(ctx, s.key, s.fields()...).Err(); err != nil {
		s.log.DebugContext(ctx, "marks of a subscription not removed", pipeline.Err(err))
	}
}

// fields returns the names of the own marks.
func (s *sweeper) fields() []string {
	fields := make([]string, len(s.marks))
	for i, m := range s.marks {
		fields[i] = m.field()
	}
	return fields
}

// seen marks subscriptions as seen now. It returns at most this many that were not seen for a long time, when it is time for a
// sweep.
func (s *sweeper) seen(ctx context.Context, most int, fields ...string) (old []string, err error) {
	args := []any{s.after.Milliseconds(), s.interval.Milliseconds(), s.grace.Milliseconds(), most}
	for _, f := range fields {
		args = append(args, f)
	}
	return s.scripts.seen.Run(ctx, s.c, []string{s.key}, args...).StringSlice()
}

// sweep marks the own subscriptions and removes what others have left behind.
func (s *sweeper) sweep(ctx context.Context) error {
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
				s.log.DebugContext(ctx, "left-over of a killed subscription not removed", slog.String(pipeline.LogStream, m.stream), slog.String(pipeline.LogGroup, m.group), pipeline.Err(err))
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
func (s *sweeper) remove(ctx context.Context, m mark) (removed bool, err error) {
	if m.own {
		removed, err = s.scripts.destroy.Run(ctx, s.c, []string{m.stream}, m.group, s.after.Milliseconds()).Bool()
	} else {
		removed, err = s.scripts.removeConsumer(ctx, s.c, m.stream, m.group, m.consumer)
	}
	if isNoGroup(err) || err != nil && (strings.Contains(err.Error(), "no such key") || strings.Contains(err.Error(), "WRONGTYPE")) {
		return true, nil
	}
	if removed {
		s.log.InfoContext(ctx, "left-over of a killed subscription removed", slog.String(pipeline.LogStream, m.stream), slog.String(pipeline.LogGroup, m.group), slog.String("consumer", m.consumer), slog.Bool("with_group", m.own))
	}
	return removed, err
}
