package outbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/outbox"
	"github.com/millrace-io/millrace/pipeline"
)

var errAway = errors.New("away")

func TestWhichRowsArePublished(t *testing.T) {
	t.Parallel()
	rows := []string{"a", "b", "c", "d", "e"}
	for name, c := range map[string]struct {
		publish         func([]string) error
		published, left []string
		calls           int
	}{
		"all":       {func([]string) error { return nil }, rows, nil, 1},
		"all named": {func(r []string) error { return pipeline.PublishError([]error{nil, errAway, nil, errAway, nil}) }, []string{"a", "c", "e"}, []string{"b", "d"}, 1},
		"one bad row": {func(r []string) error {
			if slices.Contains(r, "c") {
				return errAway
			}
			return nil
		}, []string{"a", "b", "d", "e"}, []string{"c"}, 6},
		"the first two are bad": {func(r []string) error {
			if r[0] < "c" {
				return errAway
			}
			return nil
		}, []string{"c", "d", "e"}, []string{"a", "b"}, 6},
		"the last three are bad": {func(r []string) error {
			if r[len(r)-1] > "b" {
				return errAway
			}
			return nil
		}, []string{"a", "b"}, []string{"c", "d", "e"}, 6},
		"the rows are not the reason": {func([]string) error { return errAway }, nil, rows, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			calls := 0
			published, left, err := outbox.Publish(t.Context(), rows, func(_ context.Context, some []string) error { calls++; return c.publish(some) })
			require.Equal(t, [][]string{c.published, c.left}, [][]string{published, left})
			require.Equal(t, c.left == nil, err == nil)
			require.Equal(t, c.calls, calls)
		})
	}
}

func TestRowsThatNobodyHasTimeForHaveFailed(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	published, left, err := outbox.Publish(ctx, []string{"a", "b", "c"}, func(_ context.Context, some []string) error {
		if len(some) > 1 {
			return errAway
		}
		cancel()
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, [][]string{{"a"}, {"b", "c"}}, [][]string{published, left})
	_, left, err = outbox.Publish(t.Context(), []string{"a"}, func(context.Context, []string) error { return errAway })
	require.ErrorIs(t, err, errAway)
	require.Equal(t, []string{"a"}, left)
}

func TestTheDelayOfARowGrows(t *testing.T) {
	t.Parallel()
	for tries, want := range map[int]time.Duration{1: 2 * time.Second, 3: 8 * time.Second, 5: 32 * time.Second, 6: time.Minute, 1000: time.Minute} {
		require.Equal(t, want, outbox.Delay(tries), tries)
	}
}
