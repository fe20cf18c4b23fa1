package pipeline

import (
	"context"
	"log/slog"
	"strings"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-io/millrace/pipeline/logs"
)

// routerLog passes the Router's log lines on. The Router logs every nack as an error, which the
// chain has logged already, so only panics keep their level.
type routerLog struct{ log *slog.Logger }

func (l routerLog) Error(msg string, err error, fields watermill.LogFields) {
	level := slog.LevelDebug
	if strings.HasPrefix(msg, "Panic") {
		level = slog.LevelError
	}
	l.write(level, msg, fields.Add(watermill.LogFields{logs.Error: err}))
}

func (l routerLog) Info(msg string, fields watermill.LogFields) {
	l.write(slog.LevelDebug, msg, fields)
}
func (l routerLog) Debug(msg string, fields watermill.LogFields) {
	l.write(slog.LevelDebug, msg, fields)
}
func (l routerLog) Trace(string, watermill.LogFields) {}

func (l routerLog) With(fields watermill.LogFields) watermill.LoggerAdapter {
	return routerLog{l.log.With(attrs(fields)...)}
}

func (l routerLog) write(level slog.Level, msg string, fields watermill.LogFields) {
	if l.log.Enabled(context.Background(), level) {
		l.log.Log(context.Background(), level, msg, attrs(fields)...)
	}
}

func attrs(fields watermill.LogFields) []any {
	out := make([]any, 0, len(fields))
	for k, v := range fields {
		out = append(out, slog.Any(k, v))
	}
	return out
}

var _ watermill.LoggerAdapter = routerLog{}
