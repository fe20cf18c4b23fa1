package kafka

import (
	"testing"

	"github.com/IBM/sarama"
	"github.com/stretchr/testify/require"
)

// deleteTopics removes topics from the server; those that don't exist are no error.
func deleteTopics(t testing.TB, p *Plugin, topics ...string) {
	t.Helper()
	live, err := p.connected()
	require.NoError(t, err)
	admin, err := sarama.NewClusterAdminFromClient(live.client)
	require.NoError(t, err)
	for _, topic := range topics {
		if err := admin.DeleteTopic(topic); err != nil {
			require.ErrorIs(t, err, sarama.ErrUnknownTopicOrPartition)
		}
	}
}

// knownTopics returns the topics that p has made sure of.
func (p *Plugin) knownTopics() (topics []string) {
	live, err := p.connected()
	if err != nil {
		return nil
	}
	live.known.Range(func(topic, _ any) bool {
		topics = append(topics, topic.(string))
		return true
	})
	return topics
}
