package kafka

import (
	"context"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// claim is one partition while this member owns it: from a ConsumeClaim to its return.
//
// Its reader (the ConsumeClaim goroutine) takes records in offset order and starts a deliverer for
// each. A deliverer is one goroutine. It waits until its record is due, delivers it, and waits for
// the ack or nack. After a nack it delivers the record again. It ends with the claim, unless its
// record is in flight.
type claim struct {
	sub       *subscription
	partition int32
	topic     topicID                             // whose log is read, as its leader said before the claim began
	mark      func(offset int64, metadata string) // marks; may go back only to add metadata
	metadata  string                              // of a mark that has no acknowledged record beyond it
	crashes   *crashes                            // nil: they are not counted
	highWater func() int64
	done      doneBefore
	restart   func(first int64) // nil, or called with the first offset read

	// ctx ends with the claim: nothing is delivered any more.
	ctx    context.Context
	cancel context.CancelFunc
	room   chan struct{} // a token when the window may have become not full

	mu         sync.Mutex
	win        window
	keys       map[string][]*record // OrderKey: per key with a deliverer: records that wait for it
	deliverers int
	drained    chan struct{} // closed when the claim has ended and no deliverer is left
	ended      bool          // the partition may be another's: acks no longer count
	outdated   bool          // the topic has another log now
	inFlight   int
	held       map[*record]struct{} // records that are not due
	moves      moves
	earlier    map[int64]delivery // what earlier claims of the partition left unanswered, by offset
	next       int64              // the offset after the last one marked, or where the claim began
	last       int64              // the last offset read
	warned     int64              // the offset last named as head of line

	end         partitionEnd
	warnedStays time.Time // when the log last named a record that can't be moved
}

// newClaim returns a claim that begins at initial. known is the topic's id, and what former owners
// have done from initial on.
func newClaim(ctx context.Context, sub *subscription, partition int32, initial int64, known progress,
	mark func(int64, string), highWater func() int64,
) *claim {
	c := &claim{
		sub: sub, partition: partition, mark: mark, highWater: highWater, done: known.done,
		topic: known.topic,
		room:  make(chan struct{}, 1), win: newWindow(sub.window), held: map[*record]struct{}{}, drained: make(chan struct{}),
		next: initial, last: initial - 1, warned: -1, end: partitionEnd{at: time.Now()}, earlier: sub.takeUnanswered(partition, known.topic),
	}
	if sub.flow.Order == pipeline.OrderKey {
		c.keys = map[string][]*record{}
	}
	c.describe()
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// run reads until the session ends or the partition is revoked, then drains.
func (c *claim) run(records <-chan *sarama.ConsumerMessage) {
	c.read(records)
	c.cancel()
	c.drain()
	c.finish()
}

func (c *claim) read(records <-chan *sarama.ConsumerMessage) {
	for c.waitForRoom() {
		select {
		case <-c.ctx.Done():
			return
		case raw, ok := <-records:
			if !ok {
				return
			}
			c.sub.markUp()
			if !c.take(raw) {
				return
			}
		}
	}
}

func (c *claim) waitForRoom() bool {
	for {
		c.mu.Lock()
		full := c.full()
		c.mu.Unlock()
		if !full {
			return c.ctx.Err() == nil
		}
		select {
		case <-c.ctx.Done():
			return false
		case <-c.room:
		}
	}
}

// full says whether no further record is read for now. The caller holds the lock.
func (c *claim) full() bool { return c.win.full() || c.crashes != nil && c.crashes.full(c) }

// take puts a record into the window and starts its deliverer. It answers false when the claim
// ended first.
func (c *claim) take(raw *sarama.ConsumerMessage) bool {
	failpoint.Hit(failpoint.AfterKafkaRead)
	if c.restart != nil {
		c.restart(raw.Offset)
		c.restart = nil
	}
	c.countRead(raw.Offset)
	msg := unmarshal(raw)
	now := time.Now()
	r := &record{offset: raw.Offset, published: raw.Timestamp, pristine: msg, key: msg.Metadata[pipeline.MetaKey]}
	if c.sub.retries != nil {
		r.due, r.moveAt = pipeline.DueTime(msg.Metadata, now), c.sub.moveAt(raw.Timestamp, now)
	}

	if c.done.has(r.offset) {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.win.add(r, now)
		c.last = r.offset
		c.sub.counters[countSkipped].Inc()
		c.advance(r)
		return true
	}
	if !c.admit(r, size(msg)) {
		return false
	}

	now = time.Now()
	notDue := r.due.After(now)
	c.mu.Lock()
	if !notDue {
		c.moves = moves{} // the pass has found something
	}
	c.win.add(r, now)
	c.last = r.offset
	c.deliverers++
	if c.keys != nil && r.key != "" {
		if waiting, busy := c.keys[r.key]; busy {
			c.deliverers--
			c.keys[r.key] = append(waiting, r)
			c.mu.Unlock()
			return true
		}
		c.keys[r.key] = nil
	}
	if notDue {
		c.hold(r)
	}
	c.mu.Unlock()

	if notDue {
		c.sub.deliverers.Add(1)
		go c.deliverFrom(r, delivery{})
		return true
	}
	// The first delivery is made here and not by the deliverer, so that records leave in offset
	// order.
	d, ok := c.send(r, 1)
	if !ok {
		c.delivererLeft()
		return false
	}
	c.sub.deliverers.Add(1)
	go c.deliverFrom(r, d)
	return true
}

// admit waits until the subscription has bytes for r; false: the claim ended first. Some records
// need no bytes, so that every partition makes progress. These are the first record of a window,
// and the first due record of a window that has none in flight.
func (c *claim) admit(r *record, bytes int64) bool {
	if c.fits(r, bytes) {
		return true
	}
	var due <-chan time.Time // r becomes due while it waits
	if wait := time.Until(r.due); wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		due = timer.C
	}
	for {
		freed := c.sub.budget.wait()
		ok := c.fits(r, bytes)
		if !ok {
			select {
			case <-freed:
			case <-c.room: // the window may be empty now
			case <-due:
			case <-c.ctx.Done():
			}
		}
		c.sub.budget.done()
		if ok || c.ctx.Err() != nil {
			return ok
		}
	}
}

// fits takes the bytes of r, if it needs any and there are enough.
func (c *claim) fits(r *record, bytes int64) (ok bool) {
	isDue := r.due.IsZero() || !r.due.After(time.Now())
	c.mu.Lock()
	free := c.win.count == 0 || isDue && c.deliverers == len(c.held)
	c.mu.Unlock()
	if !free {
		r.weight, free = c.sub.budget.take(bytes)
	}
	return free
}

// deliverFrom delivers r until it is acked, and then the records of its key that waited for it.
func (c *claim) deliverFrom(r *record, d delivery) {
	defer c.sub.deliverers.Done()
	defer c.delivererLeft()
	for r != nil {
		moved := false
		if d.acked == nil {
			var ok bool
			if moved, ok = c.untilDue(r); !ok {
				return
			}
		}
		if !moved && !c.deliver(r, d) {
			return
		}
		r, d = c.acknowledge(r), delivery{}
	}
}

// deliver sends r until it is acked; false when it is abandoned. d is the first delivery, when it
// was made already.
func (c *claim) deliver(r *record, d delivery) bool {
	for n := 1; ; n++ {
		if d.acked == nil {
			var ok bool
			if d, ok = c.send(r, n); !ok {
				return false
			}
		}
		switch c.waitForAnswer(d) {
		case verdictAck:
			return true
		case verdictNack:
			c.sub.counters[countNacked].Inc()
			if !loop.Sleep(c.ctx, c.sub.config.NackBackoff.Delay(n)) {
				return false
			}
			c.sub.counters[countRedelivered].Inc()
		case verdictNone:
			return false
		}
		d = delivery{}
	}
}

// send puts r into the subscription's channel; false: the claim ended first. It waits for a place
// under MaxInFlight and for the gate. waitForAnswer releases the place. A delivery that an earlier
// claim left unanswered is used instead of the first one.
func (c *claim) send(r *record, n int) (delivery, bool) {
	if d, has := c.earlier[r.offset]; n == 1 && has && d.uuid == r.pristine.UUID {
		c.resume(r, &d)
		c.started(r, d)
		return d, true
	}
	for c.sub.semaphore.acquire(c.ctx) {
		d, sent, again := c.offer(r, n)
		if !again {
			return d, sent
		}
	}
	return delivery{}, false
}

// offer is one attempt of send, with a place. again: the gate has closed meanwhile, and the record is
// one that others wait for.
func (c *claim) offer(r *record, n int) (d delivery, sent, again bool) {
	died, ran, ok := c.begin(r)
	if !ok {
		c.sub.semaphore.release()
		return delivery{}, false, false
	}
	send := c.sub.gate.send
	if ran != nil {
		send = c.sub.gate.sendNow
	}
	origin := pipeline.Origin{
		Kind: Kind, Source: c.sub.topic, Position: position(c.sub.topic, c.partition, r.offset), Group: c.sub.group, Key: r.key,
	}
	msg, cancel := r.delivery(c.sub.values, pipeline.Delivery{
		Origin: origin, Delivered: int64(died + n), Published: r.published, Malformed: c.deadly(died), Revoked: c.ctx.Done(),
	})
	end := func() {
		cancel()
		if ran != nil {
			ran()
		}
	}
	d = delivery{uuid: msg.UUID, acked: msg.Acked(), nacked: msg.Nacked(), end: end, semaphore: c.sub.semaphore}
	c.started(r, d) // before the send, so that the receiver of the message finds it counted
	if send(c.ctx, c.sub.Out, msg) {
		return d, true, false
	}
	msg.Nack() // a later claim may wait for the answer already
	c.stopped(d)
	return delivery{}, false, ran != nil
}

func (c *claim) started(r *record, d delivery) {
	c.mu.Lock()
	r.latest = d
	c.inFlight++
	c.mu.Unlock()
}

func (c *claim) stopped(d delivery) {
	c.mu.Lock()
	c.inFlight--
	c.mu.Unlock()
	d.done()
}

type verdict int

const (
	verdictNone verdict = iota // abandoned: no answer came in time
	verdictAck
	verdictNack
)

// waitForAnswer waits for the handler's answer, the claim's end or not.
func (c *claim) waitForAnswer(d delivery) verdict {
	defer c.stopped(d)
	select {
	case <-d.acked:
		return verdictAck
	case <-d.nacked:
		return verdictNack
	case <-c.sub.Abandoned.Done():
		c.sub.counters[countAbandoned].Inc()
		return verdictNone
	}
}

// acknowledge marks what r completes and returns the next record of its key, if one waits.
func (c *claim) acknowledge(r *record) (successor *record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advance(r)
	if c.keys == nil || r.key == "" {
		return nil
	}
	waiting := c.keys[r.key]
	if len(waiting) == 0 {
		delete(c.keys, r.key)
		return nil
	}
	c.keys[r.key] = waiting[1:]
	return waiting[0]
}

// advance acks r in the window and passes the mark on. The caller holds the lock.
func (c *claim) advance(r *record) {
	r.pristine = nil
	if r.weight > 0 {
		c.sub.budget.release(r.weight)
		r.weight = 0
	}
	if c.ended {
		return
	}
	next, covered := c.win.ack(r, time.Now())
	if covered == 0 {
		return
	}
	failpoint.Hit(failpoint.BeforeMark)
	c.next = next
	c.forget(next)
	c.mark(next, c.metadata)
	c.sub.counters[countMarked].Add(float64(covered))
	c.wakeReader()
}

func (c *claim) wakeReader() {
	select {
	case c.room <- struct{}{}:
	default:
	}
}

func (c *claim) delivererLeft() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deliverers--
	c.wakeReader()
	if c.deliverers == 0 && c.ctx.Err() != nil {
		c.signalDrained()
	}
}

// signalDrained is called with the lock held.
func (c *claim) signalDrained() {
	select {
	case <-c.drained:
	default:
		close(c.drained)
	}
}

// drain waits for the records in flight. While the subscription drains it waits until the caller
// abandons them. Otherwise it waits for the drain timeout, because the other members wait
// meanwhile.
func (c *claim) drain() {
	c.mu.Lock()
	if c.deliverers == 0 {
		c.signalDrained()
	}
	c.mu.Unlock()
	var limit <-chan time.Time
	if c.sub.Reading.Err() == nil {
		timer := time.NewTimer(c.sub.config.DrainTimeout)
		defer timer.Stop()
		limit = timer.C
	}
	select {
	case <-c.drained:
	case <-limit:
	case <-c.sub.Abandoned.Done():
	}
}

// finish makes the last mark. Late acks change nothing any more: the partition has another owner.
func (c *claim) finish() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	if c.inFlight > 0 {
		c.sub.log.Warn("kafka records still in flight when their partition was revoked; they will run again",
			logs.Partition, c.partition, keyCount, c.inFlight)
	}
	c.sub.leaveUnanswered(c.partition, unanswered{c.topic, c.unanswered()})
	// Release the budget of records that no goroutine owns.
	for i := range c.win.count {
		r := c.win.ring[(c.win.head+i)%len(c.win.ring)]
		if r.weight > 0 {
			c.sub.budget.release(r.weight)
			r.weight = 0
		}
	}
	k := c.crashes
	if k != nil && k.running != nil && c.sub.Abandoned.Err() != nil {
		c.survived(k.running) // a stop ends it, and no death
	}
	if k != nil && k.running != nil {
		// It may still kill this process. A rebalance is no death, so the count does not grow with each.
		k.counts[k.running.offset] = max(k.running.before, 1)
	}
	last := c.standing(c.next)
	c.handOn(&last)
	if k != nil && (k.read > 0 || k.deaths > 0 && !last.owned) || len(last.done) > 0 || c.outdated {
		// Kafka drops the commits of a topic that is deleted. The mark of an outdated claim tells the
		// next owner that the new log is to be read from its beginning.
		c.setMark(last)
	}
}
