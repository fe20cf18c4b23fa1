// Package leftover removes the remains of killed processes in Redis: consumers without pending
// entries, and groups that a subscription created for itself. A live subscription renews a mark,
// and the subscription of an old mark is removed.
package leftover

import (
	"context"
	_ "embed" // the scripts
	"log/slog"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

var (
	//go:embed lua/seen.lua
	seenSource string
	//go:embed lua/destroy.lua
	destroySource string
)

// subscriptionsKey is a hash of the subscriptions whose readers claim idle entries by themselves,
// with the time of their last mark.
const subscriptionsKey = "millrace:subscriptions"

const (
	commandTimeout = 10 * time.Second // of one round
	stopTimeout    = time.Second      // of the removal of the marks

	markInterval   = time.Minute      // between two marks
	removeInterval = markInterval / 2 // between two rounds, over all processes
	removeAfter    = time.Hour        // without a mark, a subscription was killed
	removeGrace    = 5 * time.Minute  // to renew marks after a time in which no process could
	removeMost     = 100              // subscriptions of one round
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

// Remover marks live subscriptions and removes the remains of killed ones.
type Remover struct {
	c        goredis.UniversalClient
	seenLua  *goredis.Script
	destroy  *goredis.Script
	log      *slog.Logger
	marks    []Mark
	key      string        // subscriptionsKey, but in tests
	after    time.Duration // removeAfter, but in tests
	interval time.Duration // removeInterval, but in tests
	grace    time.Duration // removeGrace, but in tests

	loops loop.Group
}

// Start starts a Remover, which ends with Stop. Without marks it only removes remains.
func Start(c goredis.UniversalClient, log *slog.Logger, marks ...Mark) *Remover {
	s := &Remover{
		c: c, seenLua: goredis.NewScript(seenSource), destroy: goredis.NewScript(destroySource), log: log, marks: marks, key: subscriptionsKey,
		after: removeAfter, interval: removeInterval, grace: removeGrace,
	}
	// The first Start of a Group returns no error.
	_ = s.loops.Start(context.Background(), func(ctx context.Context) {
		loop.Repeat(ctx, 0, func(ctx context.Context) time.Duration {
			if err := s.round(ctx); err != nil && ctx.Err() == nil {
				s.log.DebugContext(ctx, "the remains of killed processes were not looked for, which is tried again", logs.Err(err))
			}
			return markInterval
		})
	})
	return s
}

// Stop ends the Remover and removes its marks.
func (s *Remover) Stop() {
	_ = s.loops.Stop(context.Background()) // bounded: each command of a round ends with its context
	if len(s.marks) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := s.c.HDel(ctx, s.key, s.fields()...).Err(); err != nil {
		s.log.DebugContext(ctx, "marks of a subscription not removed", logs.Err(err))
	}
}

// fields returns the names of the own marks.
func (s *Remover) fields() []string {
	fields := make([]string, len(s.marks))
	for i, m := range s.marks {
		fields[i] = m.field()
	}
	return fields
}

// seen marks subscriptions. When a round is due, it returns at most this many that were not marked
// for a long time.
func (s *Remover) seen(ctx context.Context, limit int, fields ...string) (old []string, err error) {
	args := []any{s.after.Milliseconds(), s.interval.Milliseconds(), s.grace.Milliseconds(), limit}
	for _, f := range fields {
		args = append(args, f)
	}
	return s.seenLua.Run(ctx, s.c, []string{s.key}, args...).StringSlice()
}

// round marks the own subscriptions and removes the remains of others.
func (s *Remover) round(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	old, err := s.seen(ctx, removeMost, s.fields()...)
	if err != nil {
		return err
	}
	for _, field := range old {
		m, ok := parseMark(field)
		removed := !ok
		if ok {
			if removed, err = s.remove(ctx, m); err != nil {
				s.log.DebugContext(ctx, "left-over of a killed subscription not removed", slog.String(logs.Stream, m.Stream), slog.String(logs.Group, m.Group), logs.Err(err))
			}
		}
		if removed {
			err = s.c.HDel(ctx, s.key, field).Err()
		} else { // tried again after all others
			_, err = s.seen(ctx, 0, field)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// remove removes the reader's own group, or its consumer when nothing is pending to it. removed is
// also true when neither exists.
func (s *Remover) remove(ctx context.Context, m Mark) (removed bool, err error) {
	if m.OwnGroup {
		removed, err = s.destroy.Run(ctx, s.c, []string{m.Stream}, m.Group, s.after.Milliseconds()).Bool()
	} else {
		removed, err = poll.Consumer{Client: s.c, Stream: m.Stream, Group: m.Group, Name: m.Consumer}.Remove(ctx)
	}
	if poll.IsNoGroup(err) || poll.IsNoKey(err) || err != nil && strings.Contains(err.Error(), "WRONGTYPE") {
		return true, nil
	}
	if removed {
		s.log.InfoContext(ctx, "left-over of a killed subscription removed", slog.String(logs.Stream, m.Stream), slog.String(logs.Group, m.Group), slog.String("consumer", m.Consumer), slog.Bool("with_group", m.OwnGroup))
	}
	return removed, err
}
