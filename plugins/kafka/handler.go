package kafka

import (
	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
)

// handler is what sarama calls during one session.
type handler struct{ s *subscription }

// Setup learns what former owners have done beyond their commits, and notes the membership.
func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	partitions := session.Claims()[h.s.topic]
	h.s.patient.begin(session.Context())
	h.s.joined(len(partitions), h.progress(partitions))
	return nil
}

// progress reads the commits and their metadata. Without it work is only repeated, so an error is no obstacle.
func (h *handler) progress(partitions []int32) map[int32]progress {
	if len(partitions) == 0 {
		return nil
	}
	commits, err := h.commits(partitions)
	if err != nil {
		h.s.log.Debug("kafka commit metadata could not be read", pipeline.Err(err))
		return nil
	}
	found := map[int32]progress{}
	for _, p := range partitions {
		if b := commits.GetBlock(h.s.topic, p); b != nil && b.Err == sarama.ErrNoError && b.Offset >= 0 {
			found[p] = progress{b.Offset, decodeProgress(b.Offset, b.Metadata)}
		}
	}
	return found
}

func (h *handler) commits(partitions []int32) (*sarama.OffsetFetchResponse, error) {
	coordinator, err := h.s.client.Coordinator(h.s.group)
	if err != nil {
		return nil, err
	}
	return coordinator.FetchOffset(sarama.NewOffsetFetchRequest(
		h.s.client.Config().Version, h.s.group, map[string][]int32{h.s.topic: partitions}))
}

// Cleanup has nothing to do: every claim has made its last mark.
func (h *handler) Cleanup(sarama.ConsumerGroupSession) error { return nil }

// ConsumeClaim reads one partition. It returns only when the session ends or the partition is taken
// away, because its return ends the session for every other partition too.
func (h *handler) ConsumeClaim(session sarama.ConsumerGroupSession, from sarama.ConsumerGroupClaim) error {
	s, topic, partition := h.s, from.Topic(), from.Partition()
	mark := func(offset int64, metadata string) {
		session.MarkOffset(topic, partition, offset, metadata)
		if metadata != "" {
			// MarkOffset ignores an offset that is marked already, ResetOffset one that is not.
			session.ResetOffset(topic, partition, offset, metadata)
		}
	}
	s.mu.Lock()
	known, committed := s.done[partition]
	s.mu.Unlock()
	if known.base != from.InitialOffset() {
		known.done = nil
	}
	// The commit is set by both calls: MarkOffset only moves it forwards, ResetOffset only back.
	begin := func(first int64) {
		if committed {
			s.log.Warn("kafka commit is outside the log; the partition is read from another offset", pipeline.LogPartition, partition,
				keyCommitted, known.base, pipeline.LogOffset, first)
		}
		session.MarkOffset(topic, partition, first, "")
		session.ResetOffset(topic, partition, first, "")
	}
	initial, restart := from.InitialOffset(), (func(int64))(nil)
	switch initial {
	case sarama.OffsetNewest:
		// The next session must not skip what is published from now on, also when no record is marked in this one. The
		// high water mark is no answer: fetching has begun, so it may be past records that were not handled yet.
		initial = s.patient.end(partition)
		begin(initial)
	case sarama.OffsetOldest:
		initial = 0
		if committed {
			// The commit names an offset that the log does not have. sarama begins at the initial offset, and would keep the
			// commit until the log is longer than that, and so repeat everything at each rebalance.
			restart = begin
		}
	}
	c := newClaim(session.Context(), s, partition, initial, known.done, mark, from.HighWaterMarkOffset)
	c.restart = restart
	s.mu.Lock()
	s.claims[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.claims, c)
		s.mu.Unlock()
	}()
	c.run(from.Messages())
	return nil
}

var _ sarama.ConsumerGroupHandler = (*handler)(nil)
