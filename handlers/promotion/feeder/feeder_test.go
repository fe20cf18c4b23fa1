package feeder

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/streams"
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

// A ledger that does not answer is a line per minute and loop, although each round notices it.
func TestAnOutageOfTheLedgerIsALinePerMinute(t *testing.T) {
	t.Parallel()
	cfg := ledger.DefaultConfig()
	cfg.DSN = setting.NewSecret("sqlite:" + filepath.Join(t.TempDir(), "ledger.db"))
	l, err := ledger.Open(t.Context(), cfg, ledger.Options{Instance: "a", Lease: time.Minute}, nil)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		f := New(Options{Ledger: func() *ledger.Ledger { return l }, Waiting: new(atomic.Bool), Log: slog.New(slog.NewTextHandler(&out, nil)),
			Streams: map[string]*streams.Manager{"POINT": nil}})
		for range 61 { // seconds
			f.round(t.Context())
			f.admit(t.Context(), []ledger.UnfinishedPromotion{{WaitsForPlace: true}})
			time.Sleep(time.Second)
		}
		for _, text := range []string{"promotions to feed not read from the ledger", "free places not given to waiting promotions"} {
			require.Equal(t, 2, strings.Count(out.String(), text), out.String())
		}
		require.Len(t, regexp.MustCompile(" times=(59|60)").FindAllString(out.String(), -1), 2, out.String())
	})
}
