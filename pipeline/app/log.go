package app

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// newLogger returns the logger of the process, and its level, which may be changed. environ says whether a terminal
// shows colors.
func newLogger(w io.Writer, s LogSettings, environ []string) (*slog.Logger, *slog.LevelVar) {
	level := new(slog.LevelVar)
	level.Set(s.Level)
	return slog.New(logs.WithTrace(newHandler(w, level, s.Format, environ))), level
}

func newHandler(w io.Writer, level slog.Leveler, format string, environ []string) slog.Handler {
	opts := &slog.HandlerOptions{Level: level}
	switch {
	case format == "text":
		return slog.NewTextHandler(w, opts)
	case format != "json" && isTerminal(w):
		return newTerminalLog(w, level, showsColors(environ))
	}
	opts.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // as in text, and not in nanoseconds
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}
	return slog.NewJSONHandler(w, opts)
}

// showsColors reports whether the person at a terminal wants colors (https://no-color.org), and the terminal has them.
func showsColors(environ []string) bool {
	return environment(environ, "NO_COLOR") == "" && environment(environ, "TERM") != "dumb"
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a file descriptor is small
}
