package kafka

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// stock is a route whose handler asks for a retry.
type stock struct {
	p      *Plugin
	prefix string
}

func (stock) Name() string { return "stock" }

func (s stock) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "stock.orders", From: s.p.Source(s.prefix+"orders", s.prefix),
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no stock") },
		Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: pipeline.RetryVia(s.p, s.prefix+"retry", s.prefix, 5, pipeline.Backoff{First: time.Hour, Max: time.Hour})},
	})
	return nil
}

// The process that handled a record says why it waits for its retry, and which record it was.
func TestTheReportOfRoutesHasTheLastError(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := New()
		quick(&p.config)
		p.config.Brokers = brokers
		s := stock{p, "kafka-test-" + watermill.NewShortUUID() + "-"}
		reg := pipelinetest.Start(t, p, s)
		t.Cleanup(func() { deleteTopics(t, p, s.prefix+"orders", s.prefix+"retry") })
		publish(t, p, s.prefix+"orders", message.NewMessage(watermill.NewULID(), []byte("x")))
		var answer operate.Answer
		require.Eventually(t, func() bool {
			var err error
			answer, err = operate.Routes().Read(t.Context(), reg, nil)
			value, _ := answer.Value.(operate.RoutesStatus)
			return err == nil && value.Routes[0].LastError != nil && *value.Routes[0].Retries == 1
		}, 2*time.Minute, 10*time.Millisecond)
		last := answer.Value.(operate.RoutesStatus).Routes[0].LastError
		require.Equal(t, []string{"error", "no stock"}, []string{last.Class, last.Text})
		topic, ok := ParseOrigin(last.Record)
		require.True(t, ok, last.Record)
		require.Equal(t, s.prefix+"orders", topic)
		require.Contains(t, answer.Notes[0], "Last error of stock.orders: "+last.Record+" failed (error")
	})
}
