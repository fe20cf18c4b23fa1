package kafka

// unanswered is the deliveries that a claim left without an answer.
type unanswered struct {
	topic    topicID
	byOffset map[int64]delivery
}

// leaveUnanswered stores the deliveries that outlived the drain of a claim, for the next claim of
// its partition. Their handlers may still run then, and must not run a second time at once. The
// next claim uses an answer that came in between.
func (s *subscription) leaveUnanswered(partition int32, left unanswered) {
	if len(left.byOffset) == 0 {
		return
	}
	s.mu.Lock()
	s.unanswered[partition] = left
	s.mu.Unlock()
}

// takeUnanswered returns what the last claim of the partition left, by offset. The record at an
// offset of another topic is another record.
func (s *subscription) takeUnanswered(partition int32, topic topicID) map[int64]delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := s.unanswered[partition]
	delete(s.unanswered, partition)
	if left.topic.differs(topic) {
		return nil
	}
	return left.byOffset
}

// unanswered returns the deliveries whose handlers may still run, or whose acks came too late, by
// offset. The caller holds the lock.
func (c *claim) unanswered() map[int64]delivery {
	left := map[int64]delivery{}
	keep := func(offset int64, d delivery) {
		if d.acked != nil && !d.nackedYet() {
			d.end, d.semaphore = func() {}, nil // the deliverer that sent it calls done
			d.counted = d.counted || c.crashes.runs(offset)
			left[offset] = d
		}
	}
	for offset, d := range c.earlier {
		if offset > c.last {
			keep(offset, d)
		}
	}
	for i := range c.win.count {
		r := c.win.ring[(c.win.head+i)%len(c.win.ring)]
		switch {
		case r.acked:
		case r.latest.acked != nil:
			keep(r.offset, r.latest)
		default:
			keep(r.offset, c.earlier[r.offset])
		}
	}
	return left
}
