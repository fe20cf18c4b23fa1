package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// source is all active streams of a kind as one pipeline.Source.
type source struct{ m *Manager }

// Describe works offline.
func (s source) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "elastic-streams", Name: s.m.opts.Kind.StreamPrefix + "<id>", Group: s.m.opts.Kind.GroupPrefix + "<id>"}
}

// Client returns the client of the server that has the streams, for the console's pages.
func (s source) Client() goredis.UniversalClient { return s.m.opts.Client() }

// Backlog implements operate.Measured: all streams of the kind that exist, together and one by one. A foreign
// deployment's streams of the same kind are among them. The active ones count at once, others when they are found.
func (s source) Backlog(ctx context.Context) (operate.Backlog, error) {
	o := s.m.opts
	c := o.Client()
	if o.Connect != nil {
		connected, closeIt, err := o.Connect(ctx)
		if err != nil {
			return operate.Backlog{}, err
		}
		defer closeIt()
		c = connected
	}
	if c == nil {
		return operate.Backlog{}, fmt.Errorf("%w: streams: the client of %s was not started", pipeline.ErrUnavailable, s.Describe())
	}
	active := s.m.active.last()
	known := make([]string, len(active))
	for i, a := range active {
		known[i] = o.Kind.Stream(a.ID)
	}
	return o.Found.Backlog(ctx, c, func(stream string) (string, bool) {
		id, ok := o.Kind.id(stream)
		return o.Kind.Group(id), ok
	}, known...)
}

// Open begins to run what is active. Streams have no order to keep, since every slot and every
// instance takes what comes next: any Order but OrderNone is refused. A Window bounds the slots of
// each stream.
func (s source) Open(_ context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	m := s.m
	if f.Order != pipeline.OrderNone {
		return nil, fmt.Errorf("streams: elastic streams can't keep the order %q", f.Order)
	}
	if err := m.opts.Config().Validate(); err != nil {
		return nil, fmt.Errorf("streams: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sub != nil {
		return nil, errors.New("streams: the source is open already")
	}
	sub := &subscription{
		m: m, flow: f,
		starts:   make(chan struct{}, parallelStarts),
		running:  map[string]*running{},
		cleanups: map[string]struct{}{},
		foreign:  map[string]struct{}{},
		locks:    mutexes{m: map[string]*keyLock{}},
	}
	sub.Life = pipeline.NewLife(m.opts.Config().StopTimeout, sub.run)
	sub.work, sub.endWork = context.WithCancel(context.Background())
	sub.entries = sub.Out
	if f.MaxInFlight > 0 {
		sub.entries = make(chan *message.Message)
	}
	m.sub = sub
	m.Refresh()
	return sub, nil
}

// parallelStarts is how many streams start at once; each costs a few commands.
const parallelStarts = 16

// subscription is the opened source: the readers of all streams that run here, and the control loop
// that starts and stops them.
type subscription struct {
	*pipeline.Life
	m       *Manager
	flow    pipeline.Flow
	work    context.Context // of started operations; ends when the time for draining is over
	endWork context.CancelFunc
	entries chan *message.Message // where readers put messages: Out, or bounded by MaxInFlight

	ops    sync.WaitGroup // the operations of the control loop; only it adds
	starts chan struct{}

	polls poll.Scheduler
	locks mutexes // one holder per id: starts and stops of one stream never overlap

	mu       sync.Mutex
	running  map[string]*running
	cleanups map[string]struct{} // stopped, but the clean-up script could not be run: tried again
	foreign  map[string]struct{} // active here, but of another deployment
}

// run runs the control loop, then stops all readers until Abandoned ends. Entries that no
// handler has started are released. Entries in flight are finished and acked. This instance's
// readers are removed where they hold nothing. Streams, groups and other instances' readers stay.
func (s *subscription) run(context.Context) error {
	var bounded sync.WaitGroup
	if s.flow.MaxInFlight > 0 {
		bounded.Go(s.bound)
	}
	bounded.Go(func() { s.listen(s.Reading) })
	s.controlLoop()
	ctx := s.Abandoned // the process says how long a call that runs is waited for
	context.AfterFunc(ctx, s.endWork)

	readers := s.list() // no other can start, because Reading has ended
	errs := make([]error, len(readers))
	var all sync.WaitGroup
	for i, r := range readers {
		all.Go(func() { errs[i] = s.stop(ctx, r.id, stopDrained) })
	}
	all.Wait()
	s.ops.Wait()
	// A reader that ran out of time is over in a moment too; until then it may be at the channel.
	for _, r := range readers {
		<-r.reader.Done()
	}

	s.m.mu.Lock()
	s.m.sub = nil
	s.m.mu.Unlock()
	s.endWork()
	bounded.Wait()
	s.m.log.Info("elastic streams drained", slog.Int("streams", len(readers)))
	return errors.Join(errs...)
}

// bound passes messages from the readers to the channel, at most MaxInFlight at a time.
func (s *subscription) bound() {
	slots := make(chan struct{}, s.flow.MaxInFlight)
	var inFlight sync.WaitGroup
	defer inFlight.Wait()
	for {
		select {
		case slots <- struct{}{}:
		case <-s.work.Done():
			return
		}
		var msg *message.Message
		select {
		case msg = <-s.entries:
		case <-s.work.Done():
			return
		}
		select {
		case s.Out <- msg:
		case <-s.work.Done():
			return
		}
		inFlight.Go(func() {
			select {
			case <-msg.Acked():
			case <-msg.Nacked():
			case <-s.work.Done():
			}
			<-slots
		})
	}
}

// gate says whether readers may read.
func (s *subscription) gate() bool {
	return s.m.opts.Gate() && (s.flow.Gate == nil || s.flow.Gate())
}

func (s *subscription) get(id string) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[id]
}

var (
	_ pipeline.Source       = source{}
	_ operate.Measured      = source{}
	_ pipeline.Subscription = (*subscription)(nil)
)
