package pipelinetest

import (
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

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
