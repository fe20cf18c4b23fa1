package sqldb

import (
	"context"
	"errors"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// tracer makes a client span of each statement and each batch of statements, under the span of the caller. Without a
// span that is recorded it makes none, so loops that look for work leave no traces. The text of a statement stays out:
// ours have no values, but a plugin's may.
type tracer struct{ server []attribute.KeyValue }

func newTracer(c *pgx.ConnConfig) tracer {
	return tracer{[]attribute.KeyValue{
		attribute.String("db.system.name", "postgresql"), attribute.String("db.namespace", c.Database),
		attribute.String("server.address", c.Host), attribute.Int("server.port", int(c.Port)),
	}}
}

type spanKey struct{}

func (t tracer) startSpan(ctx context.Context, operation, table string, more ...attribute.KeyValue) context.Context {
	name := operation
	attrs := append(more, t.server...)
	attrs = append(attrs, attribute.String("db.operation.name", operation))
	if table != "" {
		name += " " + table
		attrs = append(attrs, attribute.String("db.collection.name", table))
	}
	_, span := trace.SpanFromContext(ctx).TracerProvider().Tracer("github.com/millrace-io/millrace/plugins/sqldb").
		Start(ctx, name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
	return context.WithValue(ctx, spanKey{}, span)
}

func (tracer) end(ctx context.Context, err error) {
	span, started := ctx.Value(spanKey{}).(trace.Span)
	if !started {
		return
	}
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		kind := "unavailable"
		if refused, ok := errors.AsType[*pgconn.PgError](err); ok {
			kind = refused.Code
			span.SetAttributes(attribute.String("db.response.status_code", refused.Code))
		} else if ctx.Err() != nil {
			kind = "timeout"
		}
		span.SetAttributes(attribute.String("error.type", kind))
		span.SetStatus(codes.Error, kind)
	}
	span.End()
}

// TraceQueryStart implements pgx.QueryTracer.
func (t tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	operation, table := summary(data.SQL)
	return t.startSpan(ctx, operation, table)
}

// TraceQueryEnd implements pgx.QueryTracer.
func (t tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	t.end(ctx, data.Err)
}

// TraceBatchStart implements pgx.BatchTracer.
func (t tracer) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	if !trace.SpanFromContext(ctx).IsRecording() {
		return ctx
	}
	return t.startSpan(ctx, "BATCH", "", attribute.Int("db.operation.batch.size", data.Batch.Len()))
}

// TraceBatchQuery implements pgx.BatchTracer.
func (tracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements pgx.BatchTracer.
func (t tracer) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	t.end(ctx, data.Err)
}

var (
	changed = regexp.MustCompile(`(?i)\b(INSERT\s+INTO|UPDATE|DELETE\s+FROM)\s+([a-z_][a-z0-9_.]*)`)
	read    = regexp.MustCompile(`(?i)\bFROM\s+([a-z_][a-z0-9_.]*)`)
	keyword = regexp.MustCompile(`^[A-Za-z]+`)
)

// summary returns what a statement does, and to which table first.
func summary(sql string) (operation, table string) {
	sql = strings.TrimSpace(sql)
	operation = strings.ToUpper(keyword.FindString(sql))
	if found := changed.FindStringSubmatch(sql); found != nil && (operation == "WITH" || strings.HasPrefix(strings.ToUpper(found[1]), operation)) {
		return strings.ToUpper(strings.Fields(found[1])[0]), found[2]
	}
	if found := read.FindStringSubmatch(sql); found != nil && (operation == "SELECT" || operation == "WITH") {
		return "SELECT", found[1]
	}
	return operation, ""
}

var (
	_ pgx.QueryTracer = tracer{}
	_ pgx.BatchTracer = tracer{}
)
