package app

import (
	"io"
	"log/slog"
	"os"

	"golang.org/x/term"
)

func newLogger(w io.Writer, s LogSettings) *slog.Logger {
	opts := &slog.HandlerOptions{Level: s.Level}
	if s.Format == "text" || s.Format != "json" && isTerminal(w) {
		return slog.New(slog.NewTextHandler(w, opts))
	}
	opts.ReplaceAttr = func(_ []string, a slog.Attr) slog.Attr {
		if a.Value.Kind() == slog.KindDuration { // as in text, and not in nanoseconds
			a.Value = slog.StringValue(a.Value.Duration().String())
		}
		return a
	}
	return slog.New(slog.NewJSONHandler(w, opts))
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd())) //nolint:gosec // a file descriptor is small
}
