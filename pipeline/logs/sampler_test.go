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
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// A summary is written up to an interval after what it sums up: without its time, an outage that has
// ended reads like one of this moment.
func TestALateLineSaysWhenItsLastEventWas(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out pipelinetest.Buffer // the summaries are written by another goroutine
		log := slog.New(slog.NewTextHandler(&out, nil))
		seen := 0
		fresh := func() string { // what was written since the last call
			all := out.String()
			defer func() { seen = len(all) }()
			return all[seen:]
		}
		sampled := logs.NewSampled(time.Minute, func(s logs.Sample[string, int]) {
			log.Info("summary", slog.Int("count", s.Count), s.Late())
		})
		require.NoError(t, sampled.Start(t.Context()))
		defer func() { _ = sampled.Stop(context.Background()) }()
		sampled.Add("not handled", 1)
		first := fresh()
		require.NotContains(t, first, logs.LastAt)
		require.Equal(t, 1, strings.Count(first, "\n"))

		time.Sleep(time.Second)
		last := time.Now()
		sampled.Add("not handled", 2)
		sampled.Add("not handled", 3)
		require.Empty(t, fresh())
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		late := fresh()
		require.Equal(t, 1, strings.Count(late, "\n"))
		require.Contains(t, late, "count=2 last_at="+last.Format("2006-01-02T15:04:05.000Z07:00"))

		sampled.Add("not handled", 4)
		require.NoError(t, sampled.Stop(t.Context()))
		require.NotContains(t, fresh(), logs.LastAt, "it is of this moment")
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
