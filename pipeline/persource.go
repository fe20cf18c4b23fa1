package pipeline

import (
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/internal/envelope"
)

// sources are the queues of a collector with Batch.PerSource.
type sources struct {
	*collector
	out     chan<- *message.Message
	running sync.WaitGroup

	mu     sync.Mutex
	queues map[string]*sourceQueue
}

// sourceQueue has the messages of a source that wait for a batch. It has a goroutine until all
// messages of the source were handled.
type sourceQueue struct {
	waiting []envelope.Message
	added   chan struct{}
}

// collectPerSource ends when in is closed and all messages were handled, or with the life of the
// runtime. It then nacks the messages that wait.
func (c *collector) collectPerSource(in <-chan *message.Message, out chan<- *message.Message) {
	s := &sources{collector: c, out: out, queues: map[string]*sourceQueue{}}
	defer close(out)
	defer s.running.Wait()
	for {
		select {
		case m := <-in:
			if m == nil {
				return
			}
			if r, ok := c.accept(m); ok {
				s.add(DeliveryFrom(m.Context()).Source, r)
			}
		case <-c.runtime.life.Done():
			return
		}
	}
}

func (s *sources) add(source string, r envelope.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := s.queues[source]
	if q == nil {
		q = &sourceQueue{added: make(chan struct{}, 1)}
		s.queues[source] = q
		s.running.Go(func() { s.run(source, q) })
	}
	q.waiting = append(q.waiting, r)
	select {
	case q.added <- struct{}{}:
	default:
	}
}

// run handles the batches of one source, each after the end of the one before.
func (s *sources) run(source string, q *sourceQueue) {
	life := s.runtime.life
	for {
		s.linger(q)
		batch := s.take(source, q)
		if batch == nil {
			return
		}
		if life.Err() != nil { // an earlier batch of the source may not have ended
			s.abandon(source, q, batch)
			return
		}
		returned := make(chan struct{})
		select {
		case s.out <- s.envelope(batch, func() {}, sync.OnceFunc(func() { close(returned) })):
			select {
			case <-returned:
				continue
			case <-life.Done():
				batch = nil // the chain acks or nacks it
			}
		case <-life.Done():
		}
		s.abandon(source, q, batch)
		return
	}
}

// abandon removes the queue of a source, and nacks a batch and all that wait.
func (s *sources) abandon(source string, q *sourceQueue, batch []envelope.Message) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.queues, source)
	for _, m := range append(batch, q.waiting...) {
		m.Nack()
	}
}

// linger waits until the next batch of a source is full, or for Batch.Linger.
func (s *sources) linger(q *sourceQueue) {
	if s.limits.Linger == 0 {
		return
	}
	timer := time.NewTimer(s.limits.Linger)
	defer timer.Stop()
	for {
		s.mu.Lock()
		_, full := s.next(q)
		empty := len(q.waiting) == 0
		s.mu.Unlock()
		if full || empty {
			return
		}
		select {
		case <-q.added:
		case <-timer.C:
			return
		case <-s.runtime.draining: // which waits for these messages
			return
		}
	}
}

// take removes the next batch from the queue of a source. It removes an empty queue, and returns
// nil.
func (s *sources) take(source string, q *sourceQueue) []envelope.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(q.waiting) == 0 {
		delete(s.queues, source)
		return nil
	}
	n, _ := s.next(q)
	batch := slices.Clip(q.waiting[:n])
	q.waiting = q.waiting[n:]
	return batch
}

// next returns how many waiting messages are in the next batch of a source, and whether it takes no
// more.
func (s *sources) next(q *sourceQueue) (n int, full bool) {
	bytes := 0
	for n < len(q.waiting) {
		bytes += len(q.waiting[n].Payload)
		if n > 0 && bytes > s.limits.MaxBytes {
			return n, true
		}
		n++
		if n == s.limits.MaxRecords || bytes >= s.limits.MaxBytes {
			return n, true
		}
	}
	return n, false
}
