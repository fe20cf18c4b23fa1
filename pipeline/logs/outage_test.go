package logs_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// What lasts is said once, or each minute with the number of events, and each change at most once a minute.
func TestAnOutage(t *testing.T) {
	t.Parallel()
	for repeats, want := range map[bool][]int{false: {1}, true: {1, 60, 60}} {
		synctest.Test(t, func(t *testing.T) {
			o := logs.NewOutage(time.Minute, repeats)
			_, due := o.Works()
			require.False(t, due, "it works from the start")
			var got []int
			for range 130 {
				if times, due := o.Failed(); due {
					got = append(got, times)
				}
				time.Sleep(time.Second)
			}
			require.Equal(t, want, got)
			_, due = o.Works()
			require.True(t, due)
			_, due = o.Works()
			require.False(t, due)
			failed, works := 0, 0
			for range 300 { // ten minutes
				if _, due := o.Failed(); due {
					failed++
				}
				time.Sleep(time.Second)
				if _, due := o.Works(); due {
					works++
				}
				time.Sleep(time.Second)
			}
			require.InDelta(t, 10, failed, 1, "repeats %v", repeats)
			require.InDelta(t, 10, works, 1, "repeats %v", repeats)
		})
	}
}
