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
	sweepInterval = time.Minute // between two marks of a subscription, and between two sweeps
	sweepAfter    = time.Hour   // without a mark a subscription was killed
	sweepMost     = 100         // subscriptions of one sweep
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
	c       redis.UniversalClient
	scripts scripts
	log     *slog.Logger
	marks   []mark
	key     string        // subscriptionsKey, but in tests
	after   time.Duration // sweepAfter, but in tests

	quit chan struct{}
	done sync.WaitGroup
}

// startSweeper starts the goroutine of a sweeper, which ends with stop.
func startSweeper(c redis.UniversalClient, log *slog.Logger, marks ...mark) *sweeper {
	s := &sweeper{c: c, scripts: newScripts(), log: log, marks: marks, key: subscriptionsKey, after: sweepAfter, quit: make(chan struct{})}
	s.done.Go(s.run)
	return s
}

func (s *sweeper) run() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	s.done.Go(func() { <-s.quit; cancel() })
	tick := time.NewTicker(sweepInterval)
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
	fields := make([]string, len(s.marks))
	for i, m := range s.marks {
		fields[i] = m.field()
	}
	if err := s.c.HDel(ctx, s.key, fields...).Err(); err != nil {
		s.log.DebugContext(ctx, "marks of a subscription not removed", pipeline.Err(err))
	}
}

// sweep marks the own subscriptions and removes what others have left behind.
func (s *sweeper) sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	args := []any{s.after.Milliseconds(), sweepMost}
	for _, m := range s.marks {
		args = append(args, m.field())
	}
	old, err := s.scripts.seen.Run(ctx, s.c, []string{s.key}, args...).StringSlice()
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
			err = s.scripts.seen.Run(ctx, s.c, []string{s.key}, s.after.Milliseconds(), 0, field).Err()
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
