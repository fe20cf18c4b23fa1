package kafka

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

func TestARetryTopicKeepsItsDelay(t *testing.T) {
	onEach(t, func(t *testing.T, brokers []string) {
		admin := start(t, brokers)
		topic := topicFor(t, admin)
		t.Cleanup(func() { deleteTopics(t, admin, topic+"-retry") })
		require.NoError(t, admin.ensureTopics(t.Context(), topic, topic+"-retry"))
		p := New()
		quick(&p.config)
		p.config.Brokers = brokers
		pipelinetest.RetryDelay(t, p, topic, p)
	})
}
