package pipelinetest

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

const (
	retryingName = "retrying"
	retryWait    = 300 * time.Millisecond
	retries      = 2
)

// retrying is a plugin of one route whose handler always fails with RetryAfter.
type retrying struct {
	topics pipeline.Topics
	topic  string
	runs   chan time.Time
}

func (retrying) Name() string { return retryingName }

func (p retrying) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: retryingName, From: p.topics.Source(p.topic, p.topic),
		Handle: func(*message.Message) ([]*message.Message, error) {
			p.runs <- time.Now()
			return nil, pipeline.RetryAfter(errors.New("not yet"), retryWait)
		},
		Policy: pipeline.Policy{
			DeadLetter: NewRecorder(p.topic + "-dead"),
			Retry:      pipeline.RetryVia(p.topics, p.topic+"-retry", p.topic+"-retry", retries, pipeline.Backoff{}),
		},
	})
	return nil
}

// RetryDelay checks on a running transport that a retry topic of topics keeps the delay of
// RetryAfter. It uses topic, and topic with the suffix -retry, which must be empty. plugins are the
// transport, after the plugins it depends on; the test starts and stops them.
func RetryDelay(t *testing.T, topics pipeline.Topics, topic string, plugins ...pipeline.Plugin) {
	t.Helper()
	p := &retrying{topics: topics, topic: topic, runs: make(chan time.Time, 100)}
	Start(t, append(plugins, p)...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, topics.Sink(topic).Publish(ctx, message.NewMessage("1", []byte("x"))))
	var last time.Time
	for run := range 1 + retries {
		select {
		case at := <-p.runs:
			if run > 0 {
				require.GreaterOrEqual(t, at.Sub(last), retryWait, "run "+strconv.Itoa(run+1)+" came before its delay had passed")
			}
			last = at
		case <-ctx.Done():
			require.FailNow(t, "the message was not retried", "after %d runs", run)
		}
	}
}
