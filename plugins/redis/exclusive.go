package redis

import (
	"context"
	_ "embed" // the script
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/leftover"
	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis/pubsub"
)

//go:embed lua/shard.lua
var shardSource string

const (
	leaseTime    = 5 * time.Second        // of the lease of a shard
	leaseRound   = 500 * time.Millisecond // between two calls for a shard
	leaseTimeout = 2 * time.Second        // of one call
)

// OwnedFor limits an effect that depends on Owned.
const OwnedFor = 2 * time.Second

// Owned reports whether a message may have an effect that another instance must not repeat. On an
// exclusive domain, it is true while the lease of the shard lasts for OwnedFor, and only at the
// first delivery of the message. It is true for messages of other sources.
func Owned(ctx context.Context) bool {
	l, exclusive := ctx.Value(leaseKey{}).(*lease)
	return !exclusive || l.lasts(OwnedFor) && pipeline.DeliveryFrom(ctx).Delivered <= 1
}

type leaseKey struct{}

// lease is the right of this process to read a shard.
type lease struct {
	epoch int64

	mu      sync.Mutex
	renewed moment // before the last renewal that succeeded was sent
	lost    bool   // another instance has the shard
}

// moment is a time by both clocks: the monotonic one may stop while the machine sleeps, and the other
// one may be set.
type moment struct{ monotonic, wall time.Time }

func momentOf(t time.Time) moment { return moment{t, t.Round(0)} }

// ago returns the time that has passed since, by the clock that says more.
func (m moment) ago() time.Duration {
	now := momentOf(time.Now())
	return max(now.monotonic.Sub(m.monotonic), now.wall.Sub(m.wall))
}

// held reports whether the lease lasts.
func (l *lease) held() bool { return l.lasts(0) }

// lasts reports whether more than d of the lease remains, by both clocks.
func (l *lease) lasts(d time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.lost && l.renewed.ago() < leaseTime-d
}

// fence is poll.Options.Fence by the lease.
func (l *lease) fence() time.Time {
	if l.held() {
		return time.Time{}
	}
	return time.Now().Add(time.Hour)
}

func (l *lease) set(renewed time.Time, lost bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.renewed, l.lost = momentOf(renewed), lost
}

// exclusiveSubscription reads those shards of a domain whose leases this process has. Its readers
// come and go.
type exclusiveSubscription struct {
	*pipeline.Life
	p         *Plugin
	c         goredis.UniversalClient
	domain    string
	token     string
	log       *slog.Logger
	sampler   *logs.Throttle
	hold      time.Duration
	script    *goredis.Script
	scheduler *poll.Scheduler
	shards    []*exclusiveShard

	mu      sync.Mutex
	drain   context.Context // of the last Drain; nil before
	owned   int             // leases
	asking  int             // calls that may get one
	release *exclusiveShard // drains, because this process has too many
	eased   time.Time       // when the last one was released for that
	closed  bool
}

// exclusiveShard is one shard. Its fields belong to its goroutine, except for reader.
type exclusiveShard struct {
	*exclusiveSubscription
	options poll.Options
	reader  *poll.Reader // exclusiveSubscription.mu guards it; nil: not read here
	lease   *lease       // of the reader
	drained chan error   // the reader is draining; nil: it is not
	ended   func()       // ends what belongs to the reader

	abandoned bool // handlers of the last reader go on, and its lease may last
}

// openExclusive returns the subscription of a domain with DomainConfig.Exclusive.
func (p *Plugin) openExclusive(d *Domain, at pipeline.Endpoint, f pipeline.Flow, readers []poll.Options) (*exclusiveSubscription, error) {
	c, log, err := p.complete(at, f, readers)
	if err != nil {
		return nil, err
	}
	s := &exclusiveSubscription{
		p: p, c: c, domain: d.Name(), token: watermill.NewULID(), log: log.With(slog.String(logs.Domain, d.Name())), hold: f.LongestHold,
		script: goredis.NewScript(shardSource), sampler: logs.NewThrottle(warnEvery), scheduler: &poll.Scheduler{},
	}
	for _, o := range readers {
		o.Ordered, o.TakeOver, o.Scheduler = true, true, s.scheduler
		o.Absent = func(ctx context.Context) (bool, error) { return true, pubsub.CreateGroup(ctx, c, o.Stream, o.Group) }
		s.shards = append(s.shards, &exclusiveShard{exclusiveSubscription: s, options: o})
	}
	s.Life = pipeline.NewLife(p.cfg.CloseTimeout, s.run)
	p.shards.owned.WithLabelValues(s.domain).Set(0)
	p.shards.losses.WithLabelValues(s.domain)
	return s, nil
}

// run reads until the shards have drained. Each shard has its own goroutine: one that hangs delays
// no other.
func (s *exclusiveSubscription) run(context.Context) error {
	var running sync.WaitGroup
	for _, shard := range s.shards {
		running.Go(func() {
			loop.Repeat(s.Reading, 0, shard.round)
			shard.leave()
		})
	}
	running.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

// Drain drains the readers and then releases the leases, so that the next owners go on at once.
func (s *exclusiveSubscription) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.drain = ctx
	s.mu.Unlock()
	return s.Life.Drain(ctx)
}

// IsClosed reports whether the subscription has ended.
func (s *exclusiveSubscription) IsClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Readers returns the reader of each shard. It is nil for a shard that is not read here.
func (s *exclusiveSubscription) Readers() []*poll.Reader {
	s.mu.Lock()
	defer s.mu.Unlock()
	readers := make([]*poll.Reader, len(s.shards))
	for i, shard := range s.shards {
		if shard.reader != nil && shard.lease.held() {
			readers[i] = shard.reader
		}
	}
	return readers
}

// round makes one call for the shard, and returns the wait before the next one.
func (s *exclusiveShard) round(ctx context.Context) time.Duration {
	start := time.Now()
	s.abandoned = false
	if s.drained != nil {
		select {
		case err := <-s.drained:
			s.stopped(context.WithoutCancel(ctx), err)
		default:
		}
	}
	if s.abandoned { // a call would renew the lease; when it has expired, another instance takes the shard before this one asks
		return leaseTime + 2*leaseRound
	}
	if s.drained == nil || s.lease.held() {
		surplus, err := s.call(ctx)
		if err != nil && ctx.Err() == nil {
			s.sampler.Warn(s.log, "lease of a shard not renewed, trying again", slog.String(logs.Stream, s.options.Stream), logs.Err(err))
		}
		if surplus && s.drained == nil && s.mayRelease() {
			s.startDrain(s.Abandoned)
		}
	}
	return max(0, leaseRound-rand.N(leaseRound/10)-time.Since(start))
}

// call renews the lease of the shard, or takes it if it is free and this process may have one more.
func (s *exclusiveShard) call(ctx context.Context) (surplus bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	s.mu.Lock()
	has, ahead, epoch := s.owned, s.owned+s.asking, int64(0)
	if s.reader == nil {
		s.asking++
	} else if epoch = s.lease.epoch; !s.lease.held() {
		epoch = -1 // the lease is only renewed if it is still this process's
	}
	s.mu.Unlock()
	sent := time.Now()
	reply, err := s.script.Run(ctx, s.c, []string{MetaKey(s.options.Stream), s.options.Stream},
		s.token, leaseTime.Milliseconds(), s.options.Group, len(s.shards), has, ahead, epoch).Int64Slice()
	if err == nil && len(reply) != 3 {
		err = fmt.Errorf("unexpected reply %v", reply)
	}
	mine := err == nil && reply[0] > 0
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == nil {
		s.asking--
		if mine {
			s.read(sent, reply[1])
		}
	}
	switch {
	case err != nil:
		return false, fmt.Errorf("shard.lua: %w", err)
	case s.reader == nil:
		return false, nil
	case !mine || reply[1] != s.lease.epoch || reply[0] == 2 && !s.lease.held():
		s.lose()
		return false, nil
	}
	s.lease.set(sent, false)
	return reply[2] == 1, nil
}

// read starts the reader of a shard whose lease was taken. It first claims what former owners left.
// The mutex is held.
func (s *exclusiveShard) read(renewed time.Time, epoch int64) {
	s.lease = &lease{epoch: epoch, renewed: momentOf(renewed)}
	o := s.options
	o.Fence = s.lease.fence
	o.Base = context.WithValue(context.Background(), leaseKey{}, s.lease)
	r := poll.NewReader(s.c, o, s.Out, s.log, s.p.readers)
	s.reader = r
	untrim := s.p.trim.add(o.Stream, o.Group, func() int64 { return r.Stats().Acked })
	var remover *leftover.Remover
	if o.ReclaimInterval > 0 {
		remover = leftover.Start(s.c, s.log, leftover.Mark{Stream: o.Stream, Group: o.Group, Consumer: o.Consumer})
	}
	s.ended = func() {
		untrim()
		if remover != nil {
			remover.Stop()
		}
	}
	s.count(1)
	s.log.Info("reading a shard", slog.String(logs.Stream, o.Stream), slog.Int64("epoch", epoch))
	r.Start()
}

// count changes the number of leases. The mutex is held.
func (s *exclusiveShard) count(by int) {
	s.owned += by
	s.p.shards.owned.WithLabelValues(s.domain).Set(float64(s.owned))
}

// lose ends the reading of a shard that another instance has. The mutex is held.
func (s *exclusiveShard) lose() {
	if s.lease.set(time.Time{}, true); s.drained == nil {
		s.p.shards.losses.WithLabelValues(s.domain).Inc()
		s.log.Warn("another instance has the lease of a shard that was read here", slog.String(logs.Stream, s.options.Stream))
		s.startDrain(s.Abandoned)
	}
}

// mayRelease reports whether this shard is the one to be released. One is released at a time, and
// the next when all instances have seen the result.
func (s *exclusiveShard) mayRelease() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.release != nil || time.Since(s.eased) < 2*leaseRound {
		return false
	}
	s.release = s
	return true
}

// startDrain drains the reader, within the longest hold of a handler. A route without that limit
// waits for its handlers, and this shard is not read meanwhile.
func (s *exclusiveShard) startDrain(ctx context.Context) {
	cancel := func() {}
	if s.hold > 0 {
		ctx, cancel = context.WithTimeout(ctx, s.hold)
	}
	r, drained := s.reader, make(chan error, 1)
	s.drained = drained
	go func() { // stopped waits for it
		defer cancel()
		err := r.Drain(ctx)
		<-r.Done()
		drained <- err
	}()
}

// stopped removes the reader, which has ended, and releases the lease. A reader that was abandoned keeps
// its lease until it expires: its handlers go on.
func (s *exclusiveShard) stopped(ctx context.Context, err error) {
	s.remove(err)
	if s.abandoned = err != nil; !s.abandoned {
		s.free(ctx)
	}
}

func (s *exclusiveShard) remove(err error) {
	if err != nil {
		s.log.Warn("a shard was left with messages in flight", slog.String(logs.Stream, s.options.Stream), logs.Err(err))
	}
	s.ended()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.release == s {
		s.release, s.eased = nil, time.Now()
	}
	s.count(-1)
	s.reader, s.drained, s.lease = nil, nil, nil
}

// free releases the lease, if it is still this process's, and ends the part in the domain.
func (s *exclusiveShard) free(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	err := s.script.Run(ctx, s.c, []string{MetaKey(s.options.Stream), s.options.Stream}, s.token, 0, s.options.Group, len(s.shards), 0, 0, 0).Err()
	if err != nil {
		s.log.WarnContext(ctx, "lease of a shard not released, it expires", slog.String(logs.Stream, s.options.Stream), logs.Err(err))
	}
}

// leave drains the reader, renews the lease while it does, and then releases it. After a reader that was abandoned the lease
// expires: its handlers go on.
func (s *exclusiveShard) leave() {
	s.mu.Lock()
	ctx := s.drain
	s.mu.Unlock()
	if ctx == nil {
		ctx = s.Abandoned
	}
	switch {
	case s.reader != nil:
		if s.drained == nil {
			s.startDrain(ctx)
		}
		s.stopped(context.Background(), s.awaitDrained())
	case !s.abandoned:
		s.free(context.Background())
	}
}

func (s *exclusiveShard) awaitDrained() error {
	for {
		select {
		case err := <-s.drained:
			return err
		case <-time.After(leaseRound):
			if s.lease.held() {
				_, _ = s.call(s.Abandoned) // the lease may expire, then the fence holds
			}
		}
	}
}
