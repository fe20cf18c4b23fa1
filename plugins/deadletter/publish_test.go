package deadletter

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPublishErrorNamesCountsAndTheFirstReason(t *testing.T) {
	t.Parallel()
	cause := errors.New("too large")
	require.EqualError(t, &PublishError{Failed: map[int]error{0: cause}, Size: 1}, "1 of 1 dead letter not published: too large")
	require.EqualError(t, &PublishError{Failed: map[int]error{1: cause, 2: errors.New("other")}, Size: 3}, "2 of 3 dead letters not published: too large")
}
