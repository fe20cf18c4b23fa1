package app

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDurationsInTheLogHaveUnits(t *testing.T) {
	t.Parallel()
	for format, want := range map[string]string{"text": "at_most=15s", "json": `"at_most":"15s"`} {
		var out bytes.Buffer
		logger, _ := newLogger(&out, LogSettings{Format: format}, nil)
		logger.Info("waiting", slog.Duration("at_most", 15*time.Second))
		require.Contains(t, out.String(), want)
	}
}

// The level of the log may be changed while the process runs, also for loggers that were made before.
func TestTheLevelOfTheLogIsChangedWhileItRuns(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"text", "json"} {
		var out bytes.Buffer
		logger, level := newLogger(&out, LogSettings{Format: format, Level: slog.LevelWarn}, nil)
		logger = logger.With(slog.String("plugin", "redis"))
		logger.Info("first")
		require.Empty(t, out.String())
		level.Set(slog.LevelDebug)
		logger.Debug("second")
		require.Contains(t, out.String(), "second")
	}
	var out bytes.Buffer
	level := new(slog.LevelVar)
	terminal := slog.New(newTerminalLog(&out, level, false)).With(slog.String("plugin", "redis"))
	terminal.Debug("first")
	require.Empty(t, out.String())
	level.Set(slog.LevelDebug)
	terminal.Debug("second")
	require.Contains(t, out.String(), "second")
}
