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

func TestTheStateOfARouteThatIsBehind(t *testing.T) {
	t.Parallel()
	now := time.Now()
	at, one := now.Add(-3*time.Minute), int64(1)
	r := operate.RouteStatus{Waiting: &one, Oldest: &at, OldestAt: "hooks/4@0"}
	require.Equal(t, "behind: the oldest message waits for 3m (hooks/4@0)", stateOf(r, readings{}, nil, now).Text)
}

// What waits for a retry says why, and an error that is older than all that waits does not.
func TestTheStateOfARouteSaysWhyMessagesAreTriedAgain(t *testing.T) {
	t.Parallel()
	now := time.Now()
	before, after := now.Add(-time.Minute), now.Add(-time.Second)
	failed := &pipeline.LastError{At: now.Add(-3 * time.Second), Record: "hooks/4@17", Class: "timeout", Text: "no answer", Instance: "a"}
	of := func(retries int64, oldest *time.Time) string {
		r := operate.RouteStatus{Waiting: new(int64), Retries: &retries, Oldest: oldest, LastError: failed}
		return stateOf(r, readings{}, nil, now).Text
	}
	require.Equal(t, "some messages failed and wait for a retry; the last error: hooks/4@17 failed (timeout, 3s ago) on a: no answer", of(2, nil))
	require.Equal(t, "some messages failed and are tried again; the last error: hooks/4@17 failed (timeout, 3s ago) on a: no answer", of(0, &before))
	require.Equal(t, "idle: nothing waits", of(0, nil))
	require.Equal(t, "idle: nothing waits", of(0, &after))
}
