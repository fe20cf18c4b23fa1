package operate

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestOffsetsOfClocks(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		offset, took time.Duration
		level        Level
		text         string
	}{
		"far ahead":     {11 * time.Second, time.Second, Fail, "the server is 11s ahead"},
		"behind":        {-2 * time.Second, time.Second, Warn, "the server is 2s behind"},
		"little":        {100 * time.Millisecond, time.Millisecond, OK, "the server is 100ms ahead"},
		"a slow answer": {2 * time.Second, 4 * time.Second, OK, "no offset"}, // it says nothing
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := offsetCheck(tc.offset, tc.took)
			require.Equal(t, tc.level, c.Level, c)
			require.Contains(t, c.Text, tc.text)
		})
	}
}

func TestClockOfAServer(t *testing.T) {
	t.Parallel()
	c, err := Clock(t.Context(), func(context.Context) (time.Time, error) { return time.Now().Add(time.Hour), nil })
	require.NoError(t, err)
	require.Equal(t, Fail, c.Level, c)
	_, err = Clock(t.Context(), func(context.Context) (time.Time, error) { return time.Time{}, errors.New("no clock") })
	require.ErrorContains(t, err, "no clock")
}
