package logs_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// A summary is written up to an interval after what it sums up: without its time, an outage that has
// ended reads like one of this moment.
func TestALateLineSaysWhenItsLastEventWas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		lines := func() []string {
			defer out.Reset()
			return strings.Split(strings.TrimSpace(out.String()), "\n")
		}
		sampled := logs.NewSampled(time.Minute, func(s logs.Sample[string, int]) {
			log.Info("summary", slog.Int("count", s.Count), s.Late())
		})
		require.NoError(t, sampled.Start(t.Context()))
		defer func() { _ = sampled.Stop(context.Background()) }()
		sampled.Add("not handled", 1)
		require.NotContains(t, out.String(), logs.LastAt)
		require.Len(t, lines(), 1)

		time.Sleep(time.Second)
		last := time.Now()
		sampled.Add("not handled", 2)
		sampled.Add("not handled", 3)
		require.Empty(t, out.String())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		all := lines()
		require.Len(t, all, 1)
		require.Contains(t, all[0], "count=2 last_at="+last.Format("2006-01-02T15:04:05.000Z07:00"))

		sampled.Add("not handled", 4)
		require.NoError(t, sampled.Stop(t.Context()))
		require.NotContains(t, out.String(), logs.LastAt, "it is of this moment")
	})
}

// A throttle writes what is pending with the next call, of whatever text.
func TestALateWarningSaysWhenItsLastCallWas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := slog.New(slog.NewTextHandler(&out, nil))
		warnings := logs.NewThrottle(time.Minute)
		warnings.Warn(log, "redis away")
		last := time.Now()
		warnings.Warn(log, "redis away")
		require.NotContains(t, out.String(), logs.LastAt)
		out.Reset()
		time.Sleep(time.Hour)
		warnings.Warn(log, "disk full")
		require.Contains(t, out.String(), `msg="redis away" times=1 last_at=`+last.Format("2006-01-02T15:04:05.000Z07:00"))
		require.Contains(t, out.String(), "msg=\"disk full\" times=1\n")
	})
}
