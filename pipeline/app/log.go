package app

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// newLogger returns the logger of the process. environ says whether a terminal shows colors.
func newLogger(w io.Writer, s LogSettings, environ []string) *slog.Logger {
	return slog.New(logs.WithTrace(newHandler(w, s, environ)))
}

func newHandler(w io.Writer, s LogSettings, environ []string) slog.Handler {
	opts := &slog.HandlerOptions{Level: s.Level}
	switch {
	case s.Format == "text":
		return slog.NewTextHandler(w, opts)
	case s.Format != "json" && isTerminal(w):
		return newTerminalLog(w, s.Level, showsColors(environ))
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
