package kafka

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// endTimes are the intervals of an endWatch. Tests shorten them.
type endTimes struct {
	every     time.Duration // between two requests to a broker
	openAfter time.Duration // the last stable offset stands still for so long: it is logged
	repeat    time.Duration // between two lines about one partition
}

func defaultEndTimes() endTimes {
	return endTimes{every: 5 * time.Second, openAfter: time.Minute, repeat: 5 * time.Minute}
}

// partitionEnd is what the brokers said last about the end of a claim's partition. What the consumer knows
// does not serve, because it stands still when the consumer does, and it is silent about records
// that can't be read yet.
type partitionEnd struct {
	mu     sync.Mutex
	newest int64     // the offset of the next record, readable or not
	stable int64     // all records before it can be read (last stable offset)
	at     time.Time // of the answer; before the first: when the claim began
	since  time.Time // when stable was seen first where it is, while it is behind newest; or zero
	warned time.Time // of the last line
}

// hidden is what an open transaction hides of a partition.
type hidden struct {
	from, to int64 // stable, newest
	since    time.Time
}

// note notes an answer of the broker.
func (e *partitionEnd) note(newest, stable int64, now time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case stable >= newest:
		e.since = time.Time{}
	case e.since.IsZero() || stable != e.stable:
		e.since = now
	}
	e.newest, e.stable, e.at = newest, stable, now
}

// warn says whether it is time for a line about what is hidden, or, with ended, that it was the last
// one. It counts as logged.
func (e *partitionEnd) warn(t endTimes, now time.Time) (h hidden, due, ended bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	h = hidden{e.stable, e.newest, e.since}
	switch {
	case e.since.IsZero() || now.Sub(e.since) < t.openAfter:
		ended = !e.warned.IsZero()
		e.warned = time.Time{}
	case e.warned.IsZero() || now.Sub(e.warned) >= t.repeat:
		due, e.warned = true, now
	}
	return h, due, ended
}

// endOf returns the offset of the next record of the partition, as far as it is known, the age of
// that knowledge, and for how long an open transaction has been hiding records.
func (c *claim) endOf(now time.Time) (newest int64, age, open time.Duration) {
	e := &c.end
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.since.IsZero() {
		open = now.Sub(e.since)
	}
	return max(c.highWater(), e.newest), now.Sub(e.at), open
}

// endWatch reads the ends of all partitions that this process has claimed. Each broker is asked for
// all its partitions together. One that does not answer delays no other, and is not asked again
// until its request has failed.
type endWatch struct {
	client sarama.Client
	claims func() []*claim
	times  endTimes

	mu       sync.Mutex
	busy     map[int32]bool // brokers with a request
	learning bool           // the leaders are being read
	work     sync.WaitGroup
}

// partitionKey is one partition.
type partitionKey struct {
	topic     string
	partition int32
}

// run asks until ctx ends and the client is closed.
func (w *endWatch) run(ctx context.Context) {
	loop.Every(ctx, w.times.every, func(context.Context) { w.ask() })
	w.work.Wait()
}

// ask sends a request to each broker that has none, and returns at once.
func (w *endWatch) ask() {
	byBroker := map[*sarama.Broker]map[partitionKey][]*claim{}
	unled := map[string]bool{} // topics with partitions whose leader is not known
	for _, c := range w.claims() {
		c.warnHidden(w.times, time.Now())
		at := partitionKey{c.sub.topic, c.partition}
		if w.client.PartitionNotReadable(at.topic, at.partition) {
			unled[at.topic] = true
			continue
		}
		leader, err := w.client.Leader(at.topic, at.partition)
		if err != nil {
			unled[at.topic] = true
			continue
		}
		if byBroker[leader] == nil {
			byBroker[leader] = map[partitionKey][]*claim{}
		}
		byBroker[leader][at] = append(byBroker[leader][at], c)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.learn(unled)
	for leader, claims := range byBroker {
		if w.busy[leader.ID()] {
			continue
		}
		w.busy[leader.ID()] = true
		w.work.Go(func() {
			moved := w.askLeader(leader, claims)
			w.mu.Lock()
			defer w.mu.Unlock()
			delete(w.busy, leader.ID())
			w.learn(moved)
		})
	}
}

// learn begins to read the leaders of topics, with w.mu held. Whichever broker is asked for them may be a silent
// one, so nothing waits for it. What it leaves out or fails at is found again by the next round.
func (w *endWatch) learn(topics map[string]bool) {
	if len(topics) == 0 || w.learning {
		return
	}
	w.learning = true
	w.work.Go(func() {
		_ = w.client.RefreshMetadata(slices.Collect(maps.Keys(topics))...)
		w.mu.Lock()
		defer w.mu.Unlock()
		w.learning = false
	})
}

// askLeader asks for the ends of partitions, and notes them in their claims. It returns the topics
// that have got another leader.
func (w *endWatch) askLeader(leader *sarama.Broker, claims map[partitionKey][]*claim) (moved map[string]bool) {
	moved = map[string]bool{}
	// In this order, a record that is written in between hides nothing.
	newest := w.list(leader, claims, sarama.ReadUncommitted)
	var stable map[partitionKey]int64
	if newest != nil { // else it would not answer the other request either
		stable = w.list(leader, claims, sarama.ReadCommitted)
	}
	now := time.Now()
	for at, all := range claims {
		n, known := newest[at]
		s, alsoKnown := stable[at]
		if !known || !alsoKnown {
			moved[at.topic] = true
			continue
		}
		for _, c := range all {
			c.end.note(n, s, now)
		}
	}
	return moved
}

// list returns the ends of the partitions that answered.
func (w *endWatch) list(leader *sarama.Broker, claims map[partitionKey][]*claim, isolation sarama.IsolationLevel) map[partitionKey]int64 {
	req := sarama.NewOffsetRequest(w.client.Config().Version)
	req.IsolationLevel = isolation
	for at := range claims {
		req.AddBlock(at.topic, at.partition, sarama.OffsetNewest, 1)
	}
	resp, err := leader.GetAvailableOffsets(req)
	if err != nil {
		_ = leader.Close() // Leader opens it again
		return nil
	}
	ends := map[partitionKey]int64{}
	for at := range claims {
		if b := resp.GetBlock(at.topic, at.partition); b != nil && b.Err == sarama.ErrNoError && b.Offset >= 0 {
			ends[at] = b.Offset
		}
	}
	return ends
}

// findTransaction ends the lines about an open transaction.
const findTransaction = "kafka-transactions.sh find-hanging finds it"

// warnHidden logs that an open transaction hides records, and when it no longer does.
func (c *claim) warnHidden(t endTimes, now time.Time) {
	switch h, due, ended := c.end.warn(t, now); {
	case due:
		c.sub.log.Warn("kafka records are hidden by an open producer transaction; "+findTransaction,
			logs.Partition, c.partition, keyStable, h.from, keyEnd, h.to, slog.Duration(keyOpenFor, now.Sub(h.since).Round(time.Second)))
	case ended:
		c.sub.log.Info("kafka records are no longer hidden by a producer transaction", logs.Partition, c.partition, keyEnd, h.to)
	}
}
