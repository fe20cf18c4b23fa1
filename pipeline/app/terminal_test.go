package app

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/slogtest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// at is a record of a quarter past three.
func at(level slog.Level, message string, attrs ...slog.Attr) slog.Record {
	r := slog.NewRecord(time.Date(2026, 11, 27, 15, 15, 7, 0, time.Local), level, message, 0)
	r.AddAttrs(attrs...)
	return r
}

func TestTerminalWritesForPeople(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		colors bool
		record slog.Record
		want   string
	}{
		"a line":        {false, at(slog.LevelInfo, "running", slog.Duration("after", 15*time.Second)), "15:15:07 INFO  running after=15s\n"},
		"no attributes": {false, at(slog.LevelWarn, "late"), "15:15:07 WARN  late\n"},
		"an error":      {true, at(slog.LevelError, "stopping", logs.Err(errors.New("disk full"))), "15:15:07 \x1b[31mERROR\x1b[0m stopping error=\"disk full\"\n"},
		"a warning":     {true, at(slog.LevelWarn, "late"), "15:15:07 \x1b[33mWARN \x1b[0m late\n"},
		"information":   {true, at(slog.LevelInfo, "running"), "15:15:07 \x1b[32mINFO \x1b[0m running\n"},
		"debugging":     {true, at(slog.LevelDebug, "poll"), "15:15:07 \x1b[90mDEBUG\x1b[0m poll\n"},
		"several causes": {
			false, at(slog.LevelWarn, "waiting for kafka", logs.Err(fmt.Errorf("no broker: %w", errors.Join(errors.New("a:9092: refused"), errors.New("b:9092: refused\x1b[2J")))), slog.Int("try", 1)),
			"15:15:07 WARN  waiting for kafka try=1\n" +
				"               error: no broker:\n" +
				"               error:   a:9092: refused\n" +
				"               error:   b:9092: refused\ufffd[2J\n",
		},
		"keys of the head": {false, at(slog.LevelInfo, "kept", slog.String("level", "high"), slog.String("msg", "m"), slog.String("time", "t")), "15:15:07 INFO  kept level=high msg=m time=t\n"},
		"foreign text": {
			false, at(slog.LevelInfo, "first\nsecond\x1b[2J\u202e", slog.String("payload", "a\nb\x1b[2J\u202e")),
			"15:15:07 INFO  first\ufffdsecond\ufffd[2J\ufffd payload=\"a\\nb\\x1b[2J\\u202e\"\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			require.NoError(t, newTerminalLog(&out, slog.LevelDebug, c.colors).Handle(t.Context(), c.record))
			require.Equal(t, c.want, out.String())
		})
	}
}

func TestTerminalDerivesLoggers(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(newTerminalLog(&out, slog.LevelInfo, false))
	log.Debug("below the level")
	require.Empty(t, out.String())
	derived := log.With(slog.String("plugin", "kafka")).WithGroup("reader").With(slog.Int("id", 7))
	derived.Info("started", slog.String("topic", "a"))
	log.Info("plain")
	require.Regexp(t, `^\d\d:\d\d:\d\d INFO  started plugin=kafka reader.id=7 reader.topic=a\n\d\d:\d\d:\d\d INFO  plain\n$`, out.String())
}

// TestTerminalKeepsTheContractOfHandlers reads the lines back, whose attributes are key=value.
func TestTerminalKeepsTheContractOfHandlers(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	slogtest.Run(t, func(*testing.T) slog.Handler {
		out.Reset()
		return newTerminalLog(&out, slog.LevelInfo, false)
	}, func(t *testing.T) map[string]any {
		words := strings.Fields(strings.TrimSpace(out.String()))
		require.GreaterOrEqual(t, len(words), 3, out.String())
		line := map[string]any{slog.LevelKey: words[1], slog.MessageKey: words[2]}
		if words[0] != "00:00:00" { // the zero time
			line[slog.TimeKey] = words[0]
		}
		for _, word := range words[3:] {
			path, value, ok := strings.Cut(word, "=")
			require.True(t, ok, word)
			at, keys := line, strings.Split(path, ".")
			for _, key := range keys[:len(keys)-1] {
				if at[key] == nil {
					at[key] = map[string]any{}
				}
				at, ok = at[key].(map[string]any)
				require.True(t, ok, word)
			}
			at[keys[len(keys)-1]] = value
		}
		return line
	})
}

func TestTerminalIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer // without a lock of its own
	log := slog.New(newTerminalLog(&out, slog.LevelInfo, false))
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 50 {
				log.With(slog.String("a", "b")).Info("line", slog.String("c", "d"))
			}
		})
	}
	all.Wait()
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, lines, 400)
	for _, line := range lines {
		require.Regexp(t, `^\d\d:\d\d:\d\d INFO  line a=b c=d$`, line)
	}
}
