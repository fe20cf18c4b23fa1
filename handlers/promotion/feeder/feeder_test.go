package feeder

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// A loop that does not end delays a stop only until the stop's context ends.
func TestAStopEndsWithItsContext(t *testing.T) {
	t.Parallel()
	over, cancel := context.WithCancel(t.Context())
	cancel()
	s := &Feeder{}
	release := make(chan struct{})
	require.NoError(t, s.loops.Start(t.Context(), func(context.Context) { <-release }))
	require.ErrorIs(t, s.Stop(over), context.Canceled)
	close(release)
	require.NoError(t, s.loops.Stop(t.Context()))
}

// A failure is logged once per minute, promotion and class, with the number of suppressed ones.
func TestAFailureIsLoggedOncePerMinute(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := New(Options{Log: slog.New(slog.NewTextHandler(&out, nil))})
		for range 121 { // rounds
			for id := range int64(2) {
				f.failed(payouts.Promotion{Type: "POINT", ID: id}, errors.New("no room"))
			}
			f.logFailures(t.Context(), f.failures.Due())
			time.Sleep(time.Second)
		}
		require.Equal(t, 2*3, strings.Count(out.String(), "promotion not fed"))
		require.Equal(t, 2*2, strings.Count(out.String(), "suppressed=59"))

		last := time.Now()
		f.failed(payouts.Promotion{Type: "POINT", ID: 0}, errors.New("no room"))
		time.Sleep(time.Minute)
		out.Reset()
		f.logFailures(t.Context(), f.failures.Due())
		require.Contains(t, out.String(), "last_at="+last.Format("2006-01-02T15:04:05.000Z07:00"))
	})
}
