package kafka

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// moveEvery is how often a claim moves records that are not due and that stop its reader. Only a
// record that must wait longer than this is moved. So a topic full of them is rewritten slowly, and
// one record at most once per interval.
const moveEvery = 10 * time.Second

// longestPause is the longest pause between two moves, where passes find nothing that is due.
const longestPause = 16 * moveEvery

// longestHold is how long a record that is not due stays in one place of its topic, counted from its
// timestamp. Then it is moved, because retention removes a record by its age.
const longestHold = 24 * time.Hour

// moveAt returns when a record with this timestamp, read now, is moved if it is not due by then. The
// clock that wrote the timestamp may be wrong, so it is held for a while after it was read, too.
func (s *subscription) moveAt(written, now time.Time) time.Time {
	if written.After(now) {
		written = now
	}
	at, soonest := written.Add(s.hold), now.Add(min(moveEvery, s.hold))
	if at.Before(soonest) {
		return soonest
	}
	return at
}

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
	for moveAt := r.moveAt; ; moveAt = time.Now().Add(min(moveEvery, c.sub.hold)) {
		switch c.waitForDue(r, moveAt, move) {
		case waitEnded:
			return false, false
		case waitDue:
			if !r.due.After(time.Now()) { // else the clock was set back
				return false, true
			}
		case waitMove:
			if err := c.moveToEnd(r); err == nil {
				return true, true
			} else if c.ctx.Err() == nil {
				c.stays(r, err)
			}
		}
	}
}

// What ended the wait of a record that is not due.
const (
	waitEnded = iota // the claim ended
	waitDue          // it is due
	waitMove         // it is to be moved
)

// waitForDue waits until r is due, is to be moved (at moveAt, or by a token of move), or the claim
// ended.
func (c *claim) waitForDue(r *record, moveAt time.Time, move <-chan struct{}) int {
	until, why := r.due, waitDue
	if moveAt.Before(r.due) {
		until, why = moveAt, waitMove
	}
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-c.ctx.Done():
		return waitEnded
	case <-timer.C:
		return why
	case <-move:
		return waitMove
	}
}

// stays logs that r could not be moved, at most once in longestPause for all records of the claim.
// It is held where it is, and its move is tried again.
func (c *claim) stays(r *record, err error) {
	c.mu.Lock()
	now := time.Now()
	silent := now.Sub(c.warnedStays) < longestPause
	if !silent {
		c.warnedStays = now
	}
	c.mu.Unlock()
	if !silent {
		c.sub.log.Warn("kafka record that is not due can't be moved to the end of its topic; it is tried again",
			logs.Partition, c.partition, logs.Offset, r.offset, logs.Err(err))
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
	now := time.Now()
	end, _, _ := c.endOf(now)
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
	loop.Every(s.Reading, moveEvery, func(context.Context) {
		for _, c := range s.live() {
			c.makeRoom()
		}
	})
}
