package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/IBM/sarama"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// subscription is the windowed group subscriber: one member of a consumer group on one topic.
//
// It owns a sarama client and group. Its run goroutine joins again and again until it is stopped;
// every session starts a claim for each of its partitions. The channel of messages is closed when
// the last session has ended and no record is in flight.
type subscription struct {
	*pipeline.Life
	config       Config
	topic, group string
	instance     string // its group.instance.id; empty for a dynamic member
	flow         pipeline.Flow
	window       int
	log          *slog.Logger
	metrics      *metrics
	counters     [subscriptionCounters]prometheus.Counter

	client       sarama.Client
	dialer       *dialer
	coordination sarama.Client  // for the group's coordinator
	groupClient  *waitingClient // both clients, for the group
	member       sarama.ConsumerGroup
	former       func(partition int32) (commit progress, exists bool, err error)
	commits      committed
	added        func(partition int32) bool // committed.added; nil unless initial_offset is newest

	gate       *gate
	semaphore  semaphore
	turn       chan struct{} // has what a careful claim runs; one for the process
	budget     *budget
	retries    pipeline.Sink   // to the topic itself; nil: it is no retry topic
	hold       time.Duration   // see longestHold
	deathLimit int             // zero: deaths are not counted
	values     context.Context // what messages' contexts inherit values from
	deliverers sync.WaitGroup
	owned      ownership

	mu         sync.Mutex
	claims     map[*claim]struct{}
	unanswered map[int32]unanswered // by partition; see leaveUnanswered
	firstTopic topicID              // of the first claim
	endSession context.CancelFunc   // nil before the first session
	leftAt     time.Time            // when the membership was lost; zero while joined
	why        error                // the last error since then

	waiting atomic.Int32 // partitions whose commit can't be read

	down atomic.Bool // the last thing the log said about the brokers
}

// openGroup connects to the brokers. The caller closes what it returns.
func openGroup(c Config, topic, group, instance string, f pipeline.Flow, log *slog.Logger, m *metrics) (*subscription, error) {
	conf, err := consumerConfig(c, log)
	if err != nil {
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s := newSubscription(c, topic, group, f, log, m)
	s.instance = instance
	conf.Consumer.Group.InstanceId = instance
	conf.Consumer.Group.Rebalance.GroupStrategies = c.assignors(topic, &s.owned)
	if err := s.connect(conf); err != nil {
		return nil, errors.Join(fmt.Errorf("kafka: open %s (%s): %w", topic, group, err), s.disconnect())
	}
	m.add(s)
	return s, nil
}

// connect opens the clients and the group's member. The caller disconnects after an error, too.
func (s *subscription) connect(conf *sarama.Config) (err error) {
	c := &s.config
	s.dialer = newDialer(c.DialTimeout)
	dialWith(conf, s.dialer)
	if s.client, err = sarama.NewClient(c.Brokers, conf); err != nil {
		return err
	}
	s.commits = committed{s.client, s.topic, s.group, s.log}
	s.former = s.commits.of
	if c.cooperates() {
		s.owned.onAssign = s.assigned
	}
	// A broker answers the requests of a connection one after another: a fetch when there is a record,
	// and a join when all members have joined. So a commit would wait for a fetch, and what a
	// cooperative member keeps would wait for a join.
	if s.coordination, err = sarama.NewClient(c.Brokers, conf); err != nil {
		return err
	}
	s.groupClient = &waitingClient{
		Client: s.client, coordination: s.coordination, owned: &s.owned, backoff: c.ReconnectBackoff, log: s.log,
		topicID: leaderTopicID(s.client), refreshed: make(chan struct{}, 1),
	}
	s.member, err = sarama.NewConsumerGroupFromClient(s.group, s.groupClient)
	return err
}

// disconnect closes the clients. It may be called twice.
func (s *subscription) disconnect() error {
	var errs []error
	for _, client := range []sarama.Client{s.client, s.coordination} {
		if client == nil {
			continue
		}
		if err := client.Close(); err != nil && !errors.Is(err, sarama.ErrClosedClient) {
			errs = append(errs, err)
		}
	}
	s.dialer.end()
	return errors.Join(errs...)
}

// newSubscription returns a subscription that has no connection yet.
func newSubscription(c Config, topic, group string, f pipeline.Flow, log *slog.Logger, m *metrics) *subscription {
	s := &subscription{
		config: c, topic: topic, group: group, flow: f, window: f.Window,
		log: log.With(logs.Topic, topic, logs.Group, group), metrics: m, counters: m.forSubscription(topic, group),
		turn: make(chan struct{}, 1), gate: newGate(f.Gate), semaphore: newSemaphore(f.MaxInFlight), budget: newBudget(c.WindowBytes),
		values: context.Background(), hold: longestHold, claims: map[*claim]struct{}{}, unanswered: map[int32]unanswered{}, groupClient: &waitingClient{},
	}
	if s.window <= 0 {
		s.window = c.Window
	}
	if f.Order == pipeline.OrderPartition {
		s.window = 1
	}
	s.Life = pipeline.NewLife(c.CloseTimeout, s.run)
	return s
}

// Close drains for at most the close timeout and abandons what is then still in flight.
func (s *subscription) Close() error {
	ended := func(within time.Duration) bool {
		ctx, cancel := context.WithTimeout(context.Background(), within)
		defer cancel()
		return s.Drain(ctx) == nil
	}
	waited := s.Abandoned.Err() != nil // a Drain has waited long enough
	if !waited && ended(s.config.CloseTimeout) {
		return nil
	}
	// Nothing is in flight any more; a request can still block. In a cooperative group a join
	// blocks the last commit, too. After the cut both the commit and the leave have a second, over
	// new connections.
	if ended(time.Second) {
		return nil
	}
	s.dialer.cut()
	if ended(time.Second) {
		return nil
	}
	return errors.Join(s.disconnect(), s.Life.Close())
}

// shut leaves the group and closes the connections, after the last session and the last answer.
func (s *subscription) shut() {
	s.deliverers.Wait()
	s.metrics.remove(s)
	// The group left when its last session ended or leaves now; the client may be closed already.
	if err := s.member.Close(); err != nil && !errors.Is(err, sarama.ErrClosedClient) {
		s.log.Debug("kafka consumer group closed with an error", logs.Err(err))
	}
	if err := s.disconnect(); err != nil {
		s.log.Debug("kafka client closed with an error", logs.Err(err))
	}
}

// run joins the group until the subscription is stopped.
func (s *subscription) run(ctx context.Context) error {
	s.values = ctx
	s.left()
	var helpers sync.WaitGroup
	helpers.Go(func() { s.gate.watch(s.Reading) })
	helpers.Go(s.watchHeads)
	helpers.Go(s.watchRefreshes)
	if s.retries != nil {
		helpers.Go(s.watchWindows)
	}
	helpers.Go(func() {
		for err := range s.member.Errors() {
			s.markDown(err)
		}
	})

	for attempt := 0; s.Reading.Err() == nil; {
		began := time.Now()
		ctx, end := context.WithCancel(s.Reading)
		s.mu.Lock()
		s.endSession = end
		s.mu.Unlock()
		err := s.member.Consume(ctx, []string{s.topic}, &handler{s: s})
		if ctx.Err() != nil {
			err = nil // it was ended here
		}
		end()
		s.left()
		switch {
		case s.Reading.Err() != nil:
		case err != nil && fatal(err):
			s.Fail(fmt.Errorf("kafka: %s (%s): %w", s.topic, s.group, err))
			s.Stop()
		case err != nil:
			s.markDown(err)
			attempt++
			loop.Sleep(s.Reading, s.config.ReconnectBackoff.Delay(attempt))
		case time.Since(began) < time.Second:
			// A rebalance ends a session, and several may follow each other quickly. A session that
			// always ends at once (a claim that can't be read) must not spin.
			if attempt++; attempt > 3 {
				loop.Sleep(s.Reading, s.config.ReconnectBackoff.Delay(attempt-3))
			}
		default:
			attempt = 0
		}
	}
	s.shut() // closes the group, and with it the channel of errors
	helpers.Wait()
	return nil
}

// markDown logs the first of several consecutive errors.
func (s *subscription) markDown(err error) {
	if s.Reading.Err() != nil {
		return
	}
	s.mu.Lock()
	s.why = err
	s.mu.Unlock()
	if s.down.CompareAndSwap(false, true) {
		s.log.Warn("kafka consumer is in trouble, it keeps trying", logs.Err(err))
	} else {
		s.log.Debug("kafka consumer is still in trouble", logs.Err(err))
	}
}

// joined notes a new session.
func (s *subscription) joined(partitions int) {
	s.mu.Lock()
	s.leftAt, s.why = time.Time{}, nil
	s.mu.Unlock()
	if !s.config.cooperates() { // a cooperative member has counted it
		s.assigned(partitions)
	}
	s.markUp()
}

// assigned counts what ends a rebalance.
func (s *subscription) assigned(partitions int) {
	s.groupClient.assigned()
	s.counters[countSessions].Inc()
	s.log.Debug("kafka partitions assigned", keyCount, partitions)
}

// markUp logs the recovery: a session has started, or a record has arrived.
func (s *subscription) markUp() {
	if s.down.Load() && s.down.CompareAndSwap(true, false) {
		s.log.Info("kafka consumer has recovered")
	}
}

func (s *subscription) left() {
	s.mu.Lock()
	if s.leftAt.IsZero() {
		s.leftAt = time.Now()
	}
	s.mu.Unlock()
}

// notJoined returns for how long the subscription, though used, is not a member of its group, and
// its last error.
func (s *subscription) notJoined() (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leftAt.IsZero() || s.Reading.Err() != nil {
		return 0, nil
	}
	return time.Since(s.leftAt), s.why
}

// live returns the claims of this moment.
func (s *subscription) live() []*claim {
	s.mu.Lock()
	defer s.mu.Unlock()
	claims := make([]*claim, 0, len(s.claims))
	for c := range s.claims {
		claims = append(claims, c)
	}
	return claims
}

// watchHeads logs, once each, the records that hold back many others.
func (s *subscription) watchHeads() {
	loop.Every(s.Reading, max(s.config.HeadOfLineWarnAfter/4, time.Millisecond), func(context.Context) {
		for _, c := range s.live() {
			c.warnHead(s.config.HeadOfLineWarnAfter)
		}
	})
}

var (
	_ pipeline.Subscription = (*subscription)(nil)
	_ pipeline.Failer       = (*subscription)(nil)
)
