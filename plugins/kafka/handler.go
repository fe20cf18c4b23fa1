package kafka

import (
	"log/slog"
	"slices"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
)

// handler is what sarama calls during one session.
type handler struct{ s *subscription }

// Setup notes the membership. A cooperative member has one session for many assignments.
func (h *handler) Setup(session sarama.ConsumerGroupSession) error {
	h.s.groupClient.begin(session.Context())
	if h.s.client.Config().Consumer.Offsets.Initial == sarama.OffsetNewest {
		h.s.added = h.s.commits.added() // before this session commits anything
	}
	h.s.joined(len(session.Claims()[h.s.topic]))
	return nil
}

// committed reads what former owners of partitions have committed.
type committed struct {
	client       sarama.Client
	topic, group string
	log          *slog.Logger
}

// of returns the commit of one partition. It is read when the claim begins: by then the former
// owner has made its last one. Without it some records are only handled again, so an error is
// logged.
func (c committed) of(partition int32) (commit progress, exists bool) {
	answer, err := c.fetch(partition)
	if err != nil {
		c.log.Debug("kafka commit metadata could not be read", pipeline.LogPartition, partition, pipeline.Err(err))
		return progress{}, false
	}
	b := answer.GetBlock(c.topic, partition)
	if b == nil || b.Err != sarama.ErrNoError || b.Offset < 0 {
		return progress{}, false
	}
	return progress{b.Offset, decodeProgress(b.Offset, b.Metadata)}, true
}

// added returns a function that says whether a partition was added after the group had started. It
// was, when the first partition has a commit now and this one has none, or does not exist yet.
// Commits of later partitions prove nothing: another member may have made them for partitions that
// were added together with this one.
func (c committed) added() func(partition int32) bool {
	all, err := c.client.Partitions(c.topic)
	if err != nil {
		return func(int32) bool { return false }
	}
	answer, err := c.fetch(all...)
	if err != nil {
		return func(int32) bool { return false }
	}
	has := func(p int32) bool {
		b := answer.GetBlock(c.topic, p)
		return b != nil && b.Err == sarama.ErrNoError && b.Offset >= 0
	}
	return func(partition int32) bool {
		return !slices.Contains(all, partition) || has(0) && !has(partition)
	}
}

// fetch reads from the group's coordinator. It tries again with a refreshed coordinator:
// the client does not notice by itself that one is unavailable or was replaced.
func (c committed) fetch(partitions ...int32) (*sarama.OffsetFetchResponse, error) {
	answer, err := c.fetchOnce(partitions)
	if err == nil {
		return answer, nil
	}
	if err := c.client.RefreshCoordinator(c.group); err != nil {
		return nil, err
	}
	return c.fetchOnce(partitions)
}

func (c committed) fetchOnce(partitions []int32) (*sarama.OffsetFetchResponse, error) {
	coordinator, err := c.client.Coordinator(c.group)
	if err != nil {
		return nil, err
	}
	answer, err := coordinator.FetchOffset(sarama.NewOffsetFetchRequest(c.client.Config().Version, c.group, map[string][]int32{c.topic: partitions}))
	if err == nil && answer.Err != sarama.ErrNoError {
		return nil, answer.Err
	}
	return answer, err
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
	known, committed := s.former(partition)
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
		if !committed && s.added(partition) {
			// It is read from its beginning. This claim began at the end, so the commit is set and
			// the session ends.
			first, err := s.groupClient.GetOffset(topic, partition, sarama.OffsetOldest)
			if err == nil {
				s.log.Info("kafka partition was added; it is read from its beginning", pipeline.LogPartition, partition, pipeline.LogOffset, first)
				session.MarkOffset(topic, partition, first, "")
			}
			return err
		}
		// The next session must not skip what is published from now on, also when this one marks no
		// record. The high water mark does not serve: fetching has started, so it may be past
		// records that were not handled yet.
		initial = s.groupClient.end(partition)
		begin(initial)
	case sarama.OffsetOldest:
		initial = 0
		if committed {
			// The commit names an offset that the log does not have. sarama begins at the initial
			// offset, and would keep the commit until the log is longer than that, and so repeat
			// everything at each rebalance.
			restart = begin
		}
	}
	ctx, cancel := s.owned.during(session.Context(), partition)
	defer cancel()
	c := newClaim(ctx, s, partition, initial, known.done, mark, from.HighWaterMarkOffset)
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
	// Until sarama has taken the partition away itself, the return would end the session of all
	// partitions.
	for {
		select {
		case <-session.Context().Done():
			return nil
		case _, open := <-from.Messages():
			if !open {
				return nil
			}
		}
	}
}

var _ sarama.ConsumerGroupHandler = (*handler)(nil)
