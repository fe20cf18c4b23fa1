package kafka

import (
	"context"
	"encoding/base64"
	"slices"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline/loop"
)

// topicID is the id that Kafka gives a topic when it is created. A topic that is deleted and
// created again has another one, so an offset of the former log means nothing in it. Zero: the id
// is not known, because the brokers are older than 2.8, or a commit does not name it.
type topicID sarama.Uuid

// String returns the id as Kafka's tools print it.
func (t topicID) String() string { return sarama.Uuid(t).String() }

// differs says whether the ids are known to be of two topics.
func (t topicID) differs(other topicID) bool {
	return t != other && t != topicID{} && other != topicID{}
}

// parseTopicID reads what String returns; zero when text is not an id.
func parseTopicID(text string) (t topicID) {
	if raw, err := base64.RawURLEncoding.DecodeString(text); err == nil && len(raw) == len(t) {
		copy(t[:], raw)
	}
	return t
}

// topicIDOf asks for the present id of a topic, as the leader of partition knows it.
type topicIDOf func(topic string, partition int32) (topicID, error)

// leaderTopicID returns a topicIDOf by client. Another broker may know of a new topic earlier or
// later than the leader, and would not describe the log that the leader serves.
func leaderTopicID(client sarama.Client) topicIDOf {
	once := func(topic string, partition int32) (topicID, error) {
		leader, err := client.Leader(topic, partition)
		if err != nil {
			return topicID{}, err
		}
		answer, err := leader.GetMetadata(sarama.NewMetadataRequest(client.Config().Version, []string{topic}))
		if err != nil {
			_ = leader.Close() // the next request opens it again
			return topicID{}, err
		}
		for _, t := range answer.Topics {
			switch {
			case t.Name != topic:
			case t.Err != sarama.ErrNoError && t.Err != sarama.ErrLeaderNotAvailable:
				return topicID{}, t.Err
			default:
				return topicID(t.Uuid), nil
			}
		}
		return topicID{}, sarama.ErrIncompleteResponse
	}
	return func(topic string, partition int32) (topicID, error) {
		id, err := once(topic, partition)
		if err == nil {
			return id, nil
		}
		if err := client.RefreshMetadata(topic); err != nil {
			return topicID{}, err
		}
		return once(topic, partition)
	}
}

// topicCheckInterval is how often the ids of the topics in use are compared with those that the
// claims began with.
const topicCheckInterval = time.Minute

// watchTopics compares the ids of the topics of the open subscriptions at intervals, with one
// request, until the connection is closed.
func (c *connection) watchTopics(interval time.Duration, open func() []*subscription) {
	if !c.begin() {
		return
	}
	go func() {
		defer c.work.Done()
		loop.Every(c.ctx, interval, func(context.Context) { c.compareTopics(open()) })
	}()
}

// compareTopics has each subscription check its topic whose id is another one than that of its
// claims.
func (c *connection) compareTopics(subs []*subscription) {
	var names []string
	for _, s := range subs {
		if len(s.live()) > 0 {
			names = append(names, s.topic)
		}
	}
	if len(names) == 0 {
		return // a request without names asks for all topics
	}
	slices.Sort(names)
	described, err := c.describe(slices.Compact(names)...)
	if err != nil {
		return // it is tried again
	}
	for _, s := range subs {
		if t := described[s.topic]; t != nil && t.Err == sarama.ErrNoError && s.readsOther(topicID(t.Uuid)) {
			s.checkTopic()
		}
	}
}

// readsOther says whether a claim reads another topic than the one with id now.
func (s *subscription) readsOther(now topicID) bool {
	for _, c := range s.live() {
		if c.topic.differs(now) {
			return true
		}
	}
	return false
}

// watchRefreshes checks the topic when a partition has refused a fetch.
func (s *subscription) watchRefreshes() {
	for {
		select {
		case <-s.Reading.Done():
			return
		case <-s.groupClient.refreshed:
			s.checkTopic()
		}
	}
}

// checkTopic ends the session when the leader of a claimed partition has another topic than the
// claim began with. sarama would go on at the old offset, and skip what is before it in the new
// log. The marks of the ended claims name the old id, so the next session begins at the start of the new log.
func (s *subscription) checkTopic() {
	for _, c := range s.live() {
		if c.topic == (topicID{}) {
			continue
		}
		now, err := s.groupClient.topicID(s.topic, c.partition)
		if err != nil || !c.topic.differs(now) {
			continue // it is compared again after the next refresh, and at the next interval
		}
		s.log.Info("kafka topic was deleted and created again; its partitions are read anew", keyFormerTopicID, c.topic.String(), keyTopicID, now.String())
		for _, c := range s.live() {
			c.outdate(now)
		}
		s.mu.Lock()
		s.endSession()
		s.mu.Unlock()
		return
	}
}

// outdate notes that the topic has the id now.
func (c *claim) outdate(now topicID) {
	c.mu.Lock()
	c.outdated = c.topic.differs(now)
	c.mu.Unlock()
}

// createdLater says whether id is of a topic that was created after this subscription began to
// read.
func (s *subscription) createdLater(id topicID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.firstTopic == (topicID{}) {
		s.firstTopic = id
	}
	return s.firstTopic.differs(id)
}
