package redis

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// FamilyOptions describe the streams of a Family.
type FamilyOptions struct {
	Name   string  // describes the streams, as ENTRY:{<event>}
	Group  string  // consumer group of all streams
	Server *Server // has the streams; nil: the shared server
	// Fields: entries without the field "message" are flat fields, as with DomainConfig.Fields.
	Fields bool
	// List returns the streams to read. Those that do not exist are skipped.
	List func(ctx context.Context) ([]string, error)
	// ListInterval is the time between two calls of List. Zero: 1s.
	ListInterval time.Duration
	// PollInterval is that of the readers. Zero: the setting of plugins.redis.
	PollInterval time.Duration
}

// Family is streams that come and go, with a group each. A stream that exists and is in the list is
// read by each instance that has opened the source. Its group is created at 0, and the stream
// never. Build it with Plugin.Family. It is safe for concurrent use.
type Family struct {
	p    *Plugin
	opts FamilyOptions

	found *Found

	mu  sync.Mutex
	sub *familySubscription // the last one that was opened
}

// Family returns a family. Only plugins/reclaim claims entries of other instances: add
// reclaim.Shards(family).
func (p *Plugin) Family(o FamilyOptions) *Family {
	o.ListInterval = cmp.Or(o.ListInterval, time.Second)
	if o.Server == nil {
		o.Server = p.Server(nil)
	}
	return &Family{p: p, opts: o, found: NewFound(o.Name)}
}

// Name labels metrics and logs: the text before the first colon of FamilyOptions.Name.
func (f *Family) Name() string { return nameOf(f.opts.Name) }

// Client is the client of the server; nil before its start.
func (f *Family) Client() goredis.UniversalClient { return f.opts.Server.Client() }

// MinIdle is the setting min_idle, within which readers renew their entries.
func (f *Family) MinIdle() time.Duration { return f.p.cfg.MinIdle }

// Reading returns the streams that are being read here and may receive more. While the gate of the
// route is closed, there are none. All have the index 0.
func (f *Family) Reading() []Shard {
	sub := f.opened()
	if sub == nil || sub.options.Gate != nil && !sub.options.Gate() {
		return nil
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	shards := make([]Shard, 0, len(sub.readers))
	for _, r := range sub.readers {
		if isOpen(r.Stopping()) {
			stream, group, consumer := r.Names()
			shards = append(shards, Shard{Stream: stream, Group: group, Consumer: consumer, Reader: r.Reader})
		}
	}
	return shards
}

// Wake makes a stream be read now, or the list if the stream is not read yet. The caller expects a
// new entry in the stream.
func (f *Family) Wake(stream string) {
	sub := f.opened()
	if sub == nil {
		return
	}
	sub.mu.Lock()
	defer sub.mu.Unlock()
	if r := sub.readers[stream]; r != nil {
		r.Wake()
		return
	}
	select {
	case sub.wake <- struct{}{}:
	default: // it is due already
	}
}

func (f *Family) opened() *familySubscription {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sub
}

// Source reads the streams of the list for the group. Missing groups are created at 0. Window
// applies to each stream, and MaxInFlight is refused. Any order means one message per stream at a
// time.
func (f *Family) Source() pipeline.Source { return familySource{f} }

type familySource struct{ f *Family }

// Describe works offline.
func (s familySource) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: poll.Kind, Name: s.f.opts.Name, Group: s.f.opts.Group}
}

// Client implements elsewhere.
func (s familySource) Client() goredis.UniversalClient { return s.f.Client() }

// Open begins to read. A stream that can not be read is logged and tried again. It delays no other.
func (s familySource) Open(_ context.Context, flow pipeline.Flow) (pipeline.Subscription, error) {
	f := s.f
	if flow.MaxInFlight > 0 {
		return nil, errors.New("redis: a family can't divide MaxInFlight among its streams")
	}
	o := []poll.Options{{Config: f.p.cfg.Config, Fields: f.opts.Fields, Scheduler: &poll.Scheduler{}}}
	o[0].Concurrency = concurrencyOf(flow, o[0].Concurrency)
	o[0].PollInterval = cmp.Or(f.opts.PollInterval, o[0].PollInterval)
	_, log, err := f.p.complete(s.Describe(), flow, o)
	if err != nil {
		return nil, err
	}
	if f.Client() == nil {
		return nil, errNotStarted
	}
	sub := &familySubscription{
		f: f, options: o[0], log: log, sampled: logs.NewThrottle(warnEvery), wake: make(chan struct{}, 1), readers: map[string]*familyReader{},
	}
	sub.Life = pipeline.NewLife(f.p.cfg.CloseTimeout, sub.run)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sub = sub
	return sub, nil
}

// familyTimeout limits the calls of one round, so that a node that does not answer delays no stream
// of another one for long.
const familyTimeout = 2 * time.Second

// familySubscription is an opened Family.
type familySubscription struct {
	*pipeline.Life
	f       *Family
	options poll.Options // of each reader, without its stream
	log     *slog.Logger
	sampled *logs.Throttle
	wake    chan struct{}
	drains  sync.WaitGroup

	mu      sync.Mutex
	readers map[string]*familyReader // by stream
	drain   context.Context          // of the last Drain; nil before
}

type familyReader struct {
	*poll.Reader
	untrim   func()
	draining bool
}

// run reads until Reading ends, and then drains all readers.
func (s *familySubscription) run(context.Context) error {
	for s.Reading.Err() == nil {
		s.round()
		select {
		case <-s.Reading.Done():
		case <-s.wake:
		case <-time.After(s.f.opts.ListInterval):
		}
	}
	s.mu.Lock()
	ctx := s.drain
	if ctx == nil {
		ctx = s.Abandoned
	}
	var errs []error
	for _, r := range s.readers {
		s.drains.Go(func() {
			err := r.Drain(ctx)
			<-r.Done()
			r.untrim()
			s.mu.Lock()
			defer s.mu.Unlock()
			errs = append(errs, err)
		})
	}
	s.mu.Unlock()
	s.drains.Wait()
	return errors.Join(errs...)
}

// Drain drains the readers within ctx.
func (s *familySubscription) Drain(ctx context.Context) error {
	s.mu.Lock()
	s.drain = ctx
	s.mu.Unlock()
	return s.Life.Drain(ctx)
}

// round starts readers of streams that are new in the list, and drains those of streams that are no
// longer in it. Without a list it changes nothing.
func (s *familySubscription) round() {
	ctx, cancel := context.WithTimeout(s.Reading, familyTimeout)
	defer cancel()
	list, err := s.f.opts.List(ctx)
	if err != nil {
		if s.Reading.Err() == nil {
			s.sampled.Warn(s.log, "streams of a family not listed, trying again", slog.String(logs.Domain, s.f.Name()), logs.Err(err))
		}
		return
	}
	var calls []*Call
	listed := map[string]bool{}
	s.mu.Lock()
	for stream, r := range s.readers {
		if !isOpen(r.Done()) {
			r.untrim()
			delete(s.readers, stream)
		}
	}
	for _, stream := range list {
		if s.readers[stream] == nil && !listed[stream] {
			calls = append(calls, s.createGroup(stream))
		}
		listed[stream] = true
	}
	for stream, r := range s.readers {
		if !listed[stream] && !r.draining {
			r.draining = true
			s.drains.Go(func() { _ = r.Drain(s.Abandoned) }) // what it leaves pending is reclaimed
		}
	}
	s.mu.Unlock()
	_ = s.f.opts.Server.Do(ctx, calls...) // each call has its own error
	for _, c := range calls {
		switch err := c.Err(); {
		case isNoStream(err):
		case groupExists(err), poll.IsFull(err): // a full server also refuses an existing group
			s.read(c.key)
		case s.Reading.Err() == nil:
			s.sampled.Warn(s.log, "stream of a family not read, trying again", slog.String(logs.Stream, c.key), logs.Err(err))
		}
	}
}

// read starts the reader of a stream.
func (s *familySubscription) read(stream string) {
	o := s.options
	o.Stream = stream
	o.Absent = func(ctx context.Context) (again bool, err error) {
		c := s.createGroup(stream)
		err = s.f.opts.Server.Do(ctx, c)
		switch {
		case isNoStream(err):
			return false, nil
		case groupExists(err):
			return true, nil
		}
		return false, err
	}
	r := &familyReader{Reader: poll.NewReader(s.f.Client(), o, s.Out, s.log, s.f.p.readers)}
	r.untrim = s.f.p.trim.addOn(s.f.Client, stream, o.Group, func() int64 { return r.Stats().Acked })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.readers[stream] = r
	r.Start()
}

// createGroup creates the group of a stream that exists.
func (s *familySubscription) createGroup(stream string) *Call {
	return commandKey(2, "XGROUP", "CREATE", stream, s.options.Group, "0")
}

func groupExists(err error) bool { return err == nil || strings.Contains(err.Error(), "BUSYGROUP") }

func isNoStream(err error) bool {
	return err != nil && strings.Contains(err.Error(), "requires the key to exist")
}

func isOpen(done <-chan struct{}) bool {
	select {
	case <-done:
		return false
	default:
		return true
	}
}
