package app

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// terminalLog writes log lines for people: the time of the day, the level, the message, and the attributes as slog's text
// handler writes them. An error with several causes follows below its line, each cause in a line of its own. Its lines are
// no format for programs. Build it with newTerminalLog. It is safe for concurrent use,
// but what is logged must not log itself when its value is resolved.
type terminalLog struct {
	level  slog.Leveler
	colors bool
	text   slog.Handler // writes the attributes of a line to shared.attrs
	shared *terminalLine
}

// terminalLine is common to a handler and those derived from it.
type terminalLine struct {
	mu    sync.Mutex
	out   io.Writer
	attrs bytes.Buffer
}

// newTerminalLog returns a handler for lines of at least level, with one Write to out per record. With colors the level has
// the color of its severity, by ANSI escape sequences.
func newTerminalLog(out io.Writer, level slog.Leveler, colors bool) *terminalLog {
	line := &terminalLine{out: out}
	return &terminalLog{level: level, colors: colors, text: slog.NewTextHandler(&line.attrs, nil), shared: line}
}

// Enabled implements slog.Handler.
func (t *terminalLog) Enabled(_ context.Context, level slog.Level) bool {
	return level >= t.level.Level()
}

// noHead is how slog's text handler begins a record at level INFO without a time and a message.
const noHead = `level=INFO msg=""`

// belowMessage is as wide as the time and the level before a message.
const belowMessage = "               "

// Handle implements slog.Handler.
func (t *terminalLog) Handle(ctx context.Context, r slog.Record) error {
	attrs := slog.NewRecord(time.Time{}, slog.LevelInfo, "", r.PC)
	var below strings.Builder
	r.Attrs(func(a slog.Attr) bool {
		err, isError := a.Value.Any().(error)
		if !isError {
			attrs.AddAttrs(a)
			return true
		}
		causes := logs.Lines(err)
		if len(causes) < 2 {
			attrs.AddAttrs(a)
			return true
		}
		for _, cause := range causes {
			fmt.Fprintf(&below, "%s%s: %*s%s\n", belowMessage, oneLine(a.Key), 2*cause.Depth, "", oneLine(cause.Text))
		}
		return true
	})
	t.shared.mu.Lock()
	defer t.shared.mu.Unlock()
	t.shared.attrs.Reset()
	if err := t.text.Handle(ctx, attrs); err != nil {
		return fmt.Errorf("write the attributes of a log line: %w", err)
	}
	rest := strings.TrimPrefix(t.shared.attrs.String(), noHead) // it ends with a newline
	if _, err := fmt.Fprintf(t.shared.out, "%s %s %s%s%s", r.Time.Format(time.TimeOnly), t.severity(r.Level), oneLine(r.Message), rest, &below); err != nil {
		return fmt.Errorf("write a log line: %w", err)
	}
	return nil
}

// severity returns a level of five columns.
func (t *terminalLog) severity(level slog.Level) string {
	name := fmt.Sprintf("%-5s", level)
	if !t.colors {
		return name
	}
	color := "31" // red
	switch {
	case level < slog.LevelInfo:
		color = "90" // gray
	case level < slog.LevelWarn:
		color = "32" // green
	case level < slog.LevelError:
		color = "33" // yellow
	}
	return "\x1b[" + color + "m" + name + "\x1b[0m"
}

// oneLine replaces what would end the line or command the terminal. The text handler quotes such attributes itself.
func oneLine(message string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return utf8.RuneError
		}
		return r
	}, message)
}

// WithAttrs implements slog.Handler.
func (t *terminalLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	return t.with(t.text.WithAttrs(attrs))
}

// WithGroup implements slog.Handler.
func (t *terminalLog) WithGroup(name string) slog.Handler { return t.with(t.text.WithGroup(name)) }

func (t *terminalLog) with(text slog.Handler) *terminalLog {
	derived := *t
	derived.text = text
	return &derived
}

var _ slog.Handler = (*terminalLog)(nil)
