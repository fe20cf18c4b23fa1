package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// handler is what sarama calls during one session.
type handler struct {
	s    *subscription
	anew sync.Once // beginAnew
}

// Setup notes the membership. A cooperative member has one session for many assignments.
func (h *handler) Setup(session sarama.ConsumerGroupSession) (err error) {
	h.s.groupClient.begin(session.Context())
	if h.s.client.Config().Consumer.Offsets.Initial == sarama.OffsetNewest {
		if h.s.added, err = h.s.commits.added(); err != nil { // before this session commits anything
			return err
		}
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
// owner has made its last one.
func (c committed) of(partition int32) (commit progress, exists bool, err error) {
	answer, err := c.fetch(partition)
	if err != nil {
		return progress{}, false, fmt.Errorf("read the commit of %s/%d: %w", c.topic, partition, err)
	}
	b := answer.GetBlock(c.topic, partition)
	switch {
	case b == nil:
		return progress{}, false, fmt.Errorf("read the commit of %s/%d: %w", c.topic, partition, sarama.ErrIncompleteResponse)
	case b.Err != sarama.ErrNoError:
		return progress{}, false, fmt.Errorf("read the commit of %s/%d: %w", c.topic, partition, b.Err)
	case b.Offset < 0:
		return progress{}, false, nil
	}
	return decodeProgress(b.Offset, b.Metadata), true, nil
}

// added returns a function that says whether a partition was added after the group had started. It
// was, when the first partition has a commit now and this one has none, or does not exist yet.
// Commits of later partitions prove nothing: another member may have made them for partitions that
// were added together with this one.
// Without an answer there is an error, because the records of an added partition would be skipped.
func (c committed) added() (func(partition int32) bool, error) {
	all, err := c.client.Partitions(c.topic)
	if err != nil {
		return nil, fmt.Errorf("read the partitions of %s: %w", c.topic, err)
	}
	answer, err := c.fetch(all...)
	if err != nil {
		return nil, fmt.Errorf("read the commits of %s: %w", c.topic, err)
	}
	has := map[int32]bool{}
	for _, partition := range all {
		b := answer.GetBlock(c.topic, partition)
		switch {
		case b == nil:
			return nil, fmt.Errorf("read the commit of %s/%d: %w", c.topic, partition, sarama.ErrIncompleteResponse)
		case b.Err != sarama.ErrNoError:
			return nil, fmt.Errorf("read the commit of %s/%d: %w", c.topic, partition, b.Err)
		}
		has[partition] = b.Offset >= 0
	}
	return func(partition int32) bool {
		return !slices.Contains(all, partition) || has[0] && !has[partition]
	}, nil
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
	id, initial := s.groupClient.topicAtStart(partition), from.InitialOffset()
	ctx, cancel := s.owned.during(session.Context(), partition)
	defer cancel()
	known, committed, err := s.waitForFormer(ctx, partition)
	later := s.createdLater(id)
	switch {
	case err != nil && ctx.Err() != nil:
		waitForEnd(session, from)
		return nil
	case err != nil:
		return err
	case id.differs(known.topic), initial == sarama.OffsetNewest && !committed && later:
		var err error
		h.anew.Do(func() { err = h.beginAnew(session, topic) })
		return err
	case initial >= 0 && id != (topicID{}) && known.base != initial:
		// sarama has read the commit before. Kafka drops it when the topic is deleted.
		return fmt.Errorf("the commit of %s/%d has changed from %d to %d while its claim began", topic, partition, initial, known.base)
	}
	if known.base != initial {
		known = progress{base: known.base}
	}
	known.topic = id
	mark := marker(session, topic, partition)
	begin := func(first int64) {
		if committed {
			s.log.Warn("kafka commit is outside the log; the partition is read from another offset", logs.Partition, partition,
				keyCommitted, known.base, logs.Offset, first)
		}
		mark(first, encodeProgress(progress{topic: id}))
	}
	restart := (func(int64))(nil)
	switch initial {
	case sarama.OffsetNewest:
		if !committed && s.added(partition) {
			// It is read from its beginning. This claim began at the end, so the commit is set and
			// the session ends.
			first, err := s.groupClient.GetOffset(topic, partition, sarama.OffsetOldest)
			if err == nil {
				s.log.Info("kafka partition was added; it is read from its beginning", logs.Partition, partition, logs.Offset, first)
				mark(first, encodeProgress(progress{topic: id}))
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
	c := newClaim(ctx, s, partition, initial, known, mark, from.HighWaterMarkOffset)
	c.restart = restart
	if s.deathLimit > 0 {
		c.countCrashes(known, session.Commit)
	}
	s.mu.Lock()
	s.claims[c] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.claims, c)
		s.mu.Unlock()
	}()
	c.run(from.Messages())
	waitForEnd(session, from)
	return nil
}

// stillWaiting is the time between two lines about a partition whose commit can't be read.
const stillWaiting = time.Minute

// waitForFormer reads the commit of a partition until there is an answer, ctx ends, or the error is
// permanent. An error of one partition must not end the session of the others. Meanwhile the partition
// counts as waiting, and a line says so at once and every stillWaiting.
func (s *subscription) waitForFormer(ctx context.Context, partition int32) (commit progress, exists bool, err error) {
	commit, exists, err = s.former(partition)
	if err == nil || fatal(err) {
		return commit, exists, err
	}
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	s.log.Warn("kafka commit can't be read, so its partition waits; it is tried again", logs.Partition, partition, logs.Err(err))
	began := time.Now()
	told := began
	for attempt := 1; loop.Sleep(ctx, s.config.ReconnectBackoff.Delay(attempt)); attempt++ {
		commit, exists, err = s.former(partition)
		now := time.Now()
		waited := slog.Duration(keyWaited, now.Sub(began).Round(time.Second))
		switch {
		case err == nil:
			s.log.Info("kafka commit can be read again", logs.Partition, partition, waited)
			return commit, exists, nil
		case fatal(err):
			return commit, exists, err
		case now.Sub(told) >= stillWaiting:
			told = now
			s.log.Warn("kafka commit still can't be read; its partition waits", logs.Partition, partition, waited, logs.Err(err))
		}
	}
	return commit, exists, err
}

// waitForEnd returns when sarama has taken the partition away itself. Until then the return of
// ConsumeClaim would end the session of all partitions.
func waitForEnd(session sarama.ConsumerGroupSession, from sarama.ConsumerGroupClaim) {
	for {
		select {
		case <-session.Context().Done():
			return
		case _, open := <-from.Messages():
			if !open {
				return
			}
		}
	}
}

// marker returns the function that sets the commit of a partition.
func marker(session sarama.ConsumerGroupSession, topic string, partition int32) func(offset int64, metadata string) {
	return func(offset int64, metadata string) {
		session.MarkOffset(topic, partition, offset, metadata)  // only moves it forwards
		session.ResetOffset(topic, partition, offset, metadata) // only moves it back, or sets its metadata
	}
}

// beginAnew sets the commits of all claimed partitions that are of another topic to the beginning
// of the log. It is called once per session, which ends then, because sarama has begun at the
// former positions. The next session begins at the new ones.
func (h *handler) beginAnew(session sarama.ConsumerGroupSession, topic string) error {
	var errs []error
	for _, partition := range session.Claims()[topic] {
		if err := h.setToBeginning(session, topic, partition); err != nil {
			errs = append(errs, fmt.Errorf("begin %s/%d anew: %w", topic, partition, err))
		}
	}
	return errors.Join(errs...)
}

// setToBeginning is beginAnew for one partition. The id is read before the offset, so the commit
// never names a topic that its offset is not of.
func (h *handler) setToBeginning(session sarama.ConsumerGroupSession, topic string, partition int32) error {
	s := h.s
	known, committed, err := s.former(partition)
	if err != nil {
		return err
	}
	id, err := s.groupClient.topicID(topic, partition)
	if err != nil {
		return err
	}
	missed := !committed && s.config.InitialOffset == "newest" && s.createdLater(id)
	if !missed && !known.topic.differs(id) {
		return nil
	}
	first, err := s.groupClient.Client.GetOffset(topic, partition, sarama.OffsetOldest)
	if err != nil {
		return err
	}
	if committed {
		s.log.Warn("kafka commit is of a topic that was deleted; the partition is read from the beginning of the new one", logs.Partition, partition,
			keyFormerTopicID, known.topic.String(), keyCommitted, known.base, keyTopicID, id.String(), logs.Offset, first)
	}
	marker(session, topic, partition)(first, encodeProgress(progress{topic: id}))
	return nil
}

var _ sarama.ConsumerGroupHandler = (*handler)(nil)
