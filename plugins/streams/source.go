package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// source is all active streams of a kind as one pipeline.Source.
type source struct{ m *Manager }

// Describe works offline.
func (s source) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "elastic-streams", Name: s.m.kind.StreamPrefix + "<id>", Group: s.m.kind.GroupPrefix + "<id>"}
}

// Open begins to run what is active. Streams have no order to keep, since every slot and every
// instance takes what comes next: any Order but OrderNone is refused. A Window bounds the slots of
// each stream.
func (s source) Open(_ context.Context, f pipeline.Flow) (pipeline.Subscription, error) {
	m := s.m
	if f.Order != pipeline.OrderNone {
		return nil, fmt.Errorf("streams: elastic streams can't keep the order %q", f.Order)
	}
	if err := m.config().Validate(); err != nil {
		return nil, fmt.Errorf("streams: %w", err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.sub != nil {
		return nil, errors.New("streams: the source is open already")
	}
	life, end := context.WithCancel(context.Background())
	work, endWork := context.WithCancel(context.Background())
	sub := &subscription{
		m: m, flow: f, life: life, end: end, work: work, endWork: endWork,
		entries:  make(chan *message.Message),
		kept:     make(chan struct{}),
		closed:   make(chan struct{}),
		quit:     make(chan struct{}),
		starts:   make(chan struct{}, parallelStarts),
		running:  map[int64]*running{},
		cleanups: map[int64]struct{}{},
		foreign:  map[int64]struct{}{},
		locks:    keyedMutex{m: map[int64]*keyLock{}},
	}
	sub.out = sub.entries
	if f.MaxInFlight > 0 {
		sub.bound(f.MaxInFlight)
	}
	m.sub = sub
	go sub.controlLoop()
	m.Refresh()
	return sub, nil
}

// parallelStarts is how many streams start at once; each costs a few commands.
const parallelStarts = 16

// subscription is the opened source: the readers of all streams that run here, and the control loop
// that starts and stops them.
type subscription struct {
	m       *Manager
	flow    pipeline.Flow
	life    context.Context // ends when draining begins
	end     context.CancelFunc
	work    context.Context // of started operations; ends when the time for draining is over
	endWork context.CancelFunc

	entries chan *message.Message // where readers put messages
	out     chan *message.Message // what Subscribe returned: entries, or bounded by MaxInFlight
	flowing sync.WaitGroup        // the goroutines of bound
	quit    chan struct{}         // closed when the readers have ended

	kept   chan struct{}  // closed when the control loop has ended
	ops    sync.WaitGroup // the operations of the control loop; only it adds
	starts chan struct{}

	locks keyedMutex // one holder per id: starts and stops of one stream never overlap

	mu         sync.Mutex
	running    map[int64]*running
	cleanups   map[int64]struct{} // stopped, but the clean-up script could not be run: tried again
	foreign    map[int64]struct{} // active here, but of another deployment
	draining   bool
	subscribed bool
	drain      sync.Once
	closed     chan struct{} // closed when drained, after which drainErr is fixed
	drainErr   error
}

// Subscribe returns the channel of all messages. The topic is ignored.
func (s *subscription) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.subscribed {
		return nil, errors.New("streams: subscribed already")
	}
	s.subscribed = true
	// Watermill's contract: the channel is closed when ctx ends.
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s.out, nil
}

// Close drains within Config.StopTimeout.
func (s *subscription) Close() error { return s.Drain(context.Background()) }

// Drain stops the control loop and all readers, within Config.StopTimeout together. Entries that no
// handler has started are released. Entries in flight are finished and acked. This instance's
// readers are removed where they hold nothing. Streams, groups and other instances' readers stay.
func (s *subscription) Drain(ctx context.Context) error {
	s.drain.Do(func() { go s.shut() })
	select {
	case <-s.closed:
		return s.drainErr
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *subscription) shut() {
	defer close(s.closed)
	ctx, cancel := context.WithTimeout(context.Background(), s.m.config().StopTimeout)
	defer cancel()
	context.AfterFunc(ctx, s.endWork)
	s.end()
	<-s.kept
	s.mu.Lock()
	s.draining = true // what is being started meanwhile is not
	s.mu.Unlock()

	readers := s.list()
	errs := make([]error, len(readers))
	var all sync.WaitGroup
	for i, r := range readers {
		all.Go(func() { errs[i] = s.stop(ctx, r.id, stopDrained) })
	}
	all.Wait()
	s.ops.Wait()
	s.drainErr = errors.Join(errs...)
	// A reader that ran out of time is over in a moment too; until then it may be at the channel.
	for _, r := range readers {
		<-r.reader.Done()
	}

	s.m.mu.Lock()
	s.m.sub = nil
	s.m.mu.Unlock()
	close(s.quit)
	close(s.entries)
	s.flowing.Wait()
	s.m.log.Info("elastic streams drained", slog.Int("streams", len(readers)))
}

// bound puts a bound on the messages in flight between the readers and the channel.
func (s *subscription) bound(most int) {
	slots := make(chan struct{}, most)
	s.out = make(chan *message.Message)
	s.flowing.Go(func() {
		defer close(s.out)
		for {
			select {
			case slots <- struct{}{}:
			case <-s.quit:
				return
			}
			msg, ok := <-s.entries
			if !ok {
				return
			}
			select {
			case s.out <- msg:
			case <-s.quit:
				return
			}
			s.flowing.Go(func() {
				select {
				case <-msg.Acked():
				case <-msg.Nacked():
				case <-s.quit:
				}
				<-slots
			})
		}
	})
}

// gate says whether readers may read.
func (s *subscription) gate() bool {
	return s.m.gate() && (s.flow.Gate == nil || s.flow.Gate())
}

func (s *subscription) ids() []int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([]int64, 0, len(s.running))
	for id := range s.running {
		ids = append(ids, id)
	}
	return ids
}

func (s *subscription) get(id int64) *running {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.running[id]
}

var (
	_ pipeline.Source       = source{}
	_ pipeline.Subscription = (*subscription)(nil)
)
