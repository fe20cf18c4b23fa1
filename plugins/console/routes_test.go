package console

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// The retry topic of several routes tells its retries, and not which of them are due.
func TestTheStateOfARetryTopic(t *testing.T) {
	t.Parallel()
	of := func(retryTopic bool, retries int64) string {
		r := operate.RouteStatus{From: pipeline.Endpoint{Kind: "kafka", Name: "hooks-retry", Group: "hooks"}, RetryTopic: retryTopic, Retries: &retries}
		return stateOf(r, readings{}, nil, time.Now()).Text
	}
	require.Equal(t, "idle: nothing waits", of(true, 0))
	require.Equal(t, "some messages failed and wait for a retry", of(true, 7))
	require.Equal(t, "not known, because sources of this kind tell no numbers", of(false, 0))
	require.False(t, isKnown(operate.RouteStatus{RetryTopic: true}))
}
