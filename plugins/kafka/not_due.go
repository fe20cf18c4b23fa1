package kafka

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// moveEvery is how often a claim moves records that are not due and that stop its reader. Only a
// record that must wait longer than this is moved. So a topic full of them is rewritten slowly, and
// one record at most once per interval.
const moveEvery = 10 * time.Second

// longestPause is the longest pause between two moves, where passes find nothing that is due.
const longestPause = 16 * moveEvery

// moves is when a claim moves records. The claim reads a moved record again later. So a pass
// through the topic that finds no due record doubles the pause, and a record that is due resets it.
type moves struct {
	next  time.Time     // not before
	pause time.Duration // zero: no record was moved since a due one was read
	until int64         // the pass is over when everything before this offset was read
}

// hold notes that r is not due. The caller holds the lock.
func (c *claim) hold(r *record) {
	r.move = make(chan struct{}, 1)
	c.held[r] = struct{}{}
	c.wakeReader()
}

// untilDue waits until r is due, or has been moved to the end of its topic; ok is false when the
// claim ended first.
func (c *claim) untilDue(r *record) (moved, ok bool) {
	c.mu.Lock()
	if r.move == nil && time.Until(r.due) > 0 { // it waited for its key
		c.hold(r)
	}
	move := r.move
	c.mu.Unlock()
	if move == nil {
		return false, c.ctx.Err() == nil
	}
	defer func() {
		c.mu.Lock()
		delete(c.held, r)
		c.mu.Unlock()
	}()
	timer := time.NewTimer(time.Until(r.due))
	defer timer.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return false, false
		case <-timer.C:
			return false, true
		case <-move:
			if err := c.moveToEnd(r); err != nil {
				c.sub.log.Debug("kafka record that is not due stays where it is", pipeline.LogPartition, c.partition, pipeline.LogOffset, r.offset, pipeline.Err(err))
				continue
			}
			return true, true
		}
	}
}

// moveToEnd publishes r to its topic again, unchanged. The caller acknowledges it afterwards: a
// crash in between leaves it twice.
func (c *claim) moveToEnd(r *record) error {
	if err := c.sub.retries.Publish(c.ctx, copyOf(r.pristine)); err != nil {
		return err
	}
	c.sub.counters[countMoved].Inc()
	return nil
}

// makeRoom moves records that are not due when they stop the reader, and a record waits behind them
// or another claim waits for their bytes. On a route with an order they stay.
func (c *claim) makeRoom() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sub.retries == nil || c.sub.flow.Order != pipeline.OrderNone {
		return
	}
	end, now := c.highWater(), time.Now()
	inTheWay := c.win.full() && end > c.last+1
	if !inTheWay && !c.sub.budget.wanted() || now.Before(c.moves.next) {
		return
	}
	moved := false
	for r := range c.held {
		if r.due.After(now.Add(moveEvery)) {
			select {
			case r.move <- struct{}{}:
				moved = true
			default:
			}
		}
	}
	if !moved {
		return
	}
	switch {
	case c.moves.pause == 0:
		c.moves.pause, c.moves.until = moveEvery, end
	case c.last+1 >= c.moves.until:
		c.moves.pause, c.moves.until = min(2*c.moves.pause, longestPause), end
	}
	c.moves.next = now.Add(c.moves.pause - moveEvery/2) // half a tick early: ticks are not exact
}

// watchWindows makes room in the windows of all claims.
func (s *subscription) watchWindows() {
	pipeline.Every(s.Reading, moveEvery, func(context.Context) {
		for _, c := range s.live() {
			c.makeRoom()
		}
	})
}
