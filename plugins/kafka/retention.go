package kafka

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
)

// retention returns for how long the topic keeps a record. It is zero when the topic keeps records
// without a limit of time, or when its settings are not known.
func (t *topicStatus) retention() time.Duration {
	if policy := t.Settings[configCleanupPolicy]; !strings.Contains(policy, "delete") {
		return 0
	}
	milliseconds, err := strconv.ParseInt(t.Settings[configRetention], 10, 64)
	if err != nil || milliseconds <= 0 || milliseconds > int64(maxDuration/time.Millisecond) {
		return 0 // -1 is without a limit
	}
	return time.Duration(milliseconds) * time.Millisecond
}

const maxDuration = time.Duration(1<<63 - 1)

// checkRetention reports each route that may delay a retry for longer than the retry topic t keeps
// its record: the record would be gone before it is due.
func (t *topicStatus) checkRetention() {
	t.Problems = append(t.Problems, t.delayProblems()...)
}

// delayProblems are the problems that checkRetention adds.
func (t *topicStatus) delayProblems() (all []string) {
	for _, delay := range t.tooLong() {
		all = append(all, t.textOf(delay)+"; "+remedyOfDelay)
	}
	return all
}

const remedyOfDelay = "raise " + configRetention + " of the topic, or shorten the delay of the route"

// tooLong returns the delays that are longer than the topic keeps a record.
func (t *topicStatus) tooLong() (delays []retryDelay) {
	kept := t.retention()
	for _, delay := range t.delays {
		if kept > 0 && delay.longest > kept {
			delays = append(delays, delay)
		}
	}
	return delays
}

func (t *topicStatus) textOf(d retryDelay) string {
	return fmt.Sprintf("%s is %s (%s), and the retry delay of route %s is up to %s: retention may remove a record before it is due",
		configRetention, t.Settings[configRetention], t.retention(), d.route, d.longest)
}

// retryDelay is the longest delay that the settings of a route give to a retry record.
type retryDelay struct {
	route   string
	longest time.Duration
}

// longestDelay returns the longest delay of a retry, unless the handler gives one itself.
func longestDelay(r pipeline.Retry) time.Duration { return r.Backoff.Longest(max(r.Max, 0)) }

// retentionTimeout bounds how long a start waits for the settings of the retry topics. Without them
// it goes on.
const retentionTimeout = 5 * time.Second

// checkRetention returns an error that names the retry topics of needed which keep a record for a
// shorter time than a route delays it. A topic whose settings can't be read is not checked, because
// the right to read them is not needed for anything else. It returns the topics that it has read.
func (c *connection) checkRetention(ctx context.Context, needed []neededTopic) ([]*topicStatus, error) {
	var topics []*topicStatus
	for _, n := range needed {
		if slices.Contains(n.roles(), roleRetry) {
			topics = append(topics, &topicStatus{neededTopic: n})
		}
	}
	if len(topics) == 0 || !c.begin() {
		return nil, nil
	}
	read := make(chan error, 1)
	go func() { // sarama takes no context
		defer c.work.Done()
		read <- c.readSettings(topics)
	}()
	timer := time.NewTimer(min(retentionTimeout, c.config.RequestTimeout))
	defer timer.Stop()
	select {
	case err := <-read:
		if err != nil {
			return nil, nil // what is not known is not checked
		}
	case <-timer.C:
		return nil, nil
	case <-ctx.Done():
		return nil, nil
	}
	var errs []error
	for _, t := range topics {
		t.Problems = nil // of the settings that could not be read
		t.checkRetention()
		for _, problem := range t.Problems {
			errs = append(errs, fmt.Errorf("kafka: topic %s: %s", t.neededTopic, problem))
		}
	}
	return topics, errors.Join(errs...)
}

// checkRetention checks the retry topics of all routes that exist when the service starts.
func (p *Plugin) checkRetention(ctx context.Context) error {
	live, err := p.connected()
	if err != nil {
		return err
	}
	_, err = live.checkRetention(ctx, neededTopics(p.routes))
	return err
}

// holdIn returns for how long a record that is not due stays in one place of a retry topic: half of
// the time for which the topic keeps it, at most longest. The error is that of checkRetention, because
// the topic may not have existed when the service started.
func (p *Plugin) holdIn(ctx context.Context, live *connection, topic string, longest time.Duration) (time.Duration, error) {
	needed := neededTopics(p.routes)
	needed = slices.DeleteFunc(needed, func(n neededTopic) bool { return n.Name != topic })
	topics, err := live.checkRetention(ctx, needed)
	if err != nil {
		return 0, err
	}
	for _, t := range topics {
		if kept := t.retention(); kept > 0 {
			longest = min(longest, kept/2)
		}
	}
	return longest, nil
}
