package middleware_test

import (
	"context"
	"errors"
	"math"
	"strconv"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// FuzzHeaders: with any headers, a failure makes exactly one record. That record has a due time in
// the future, a higher count, and a first failure not later than now.
func FuzzHeaders(f *testing.F) {
	now := time.Now().UTC().Format(time.RFC3339Nano)
	f.Add("", "", "", "")
	f.Add("1", now, now, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
	f.Add("-7", "9999-12-31T23:59:59Z", "soon", "00-0-0-0")
	f.Add(strconv.Itoa(math.MaxInt), "0000-01-01T00:00:00Z", "1e9", "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-x")
	f.Add("+4", "2026-01-02T03:04:05.000000001+14:00", "", "00-00000000000000000000000000000000-0000000000000000-00")
	f.Fuzz(func(t *testing.T, attempt, first, due, parent string) {
		for _, permanent := range []bool{false, true} {
			reg, err := pipeline.NewRegistry(pipeline.Env{})
			require.NoError(t, err)
			retries, dead := pipelinetest.NewRecorder("retry"), pipelinetest.NewRecorder("dead")
			var span trace.SpanContext
			handle, _ := middleware.New(reg, middleware.Options{}).Wrap(pipeline.Route{
				Name: "toy.route", From: retryFeed{pipelinetest.NewFeed("in"), retries.Describe()},
				Handle: func(m *message.Message) ([]*message.Message, error) {
					span = trace.SpanContextFromContext(m.Context())
					if permanent {
						return nil, pipeline.Permanent(errors.New("never"))
					}
					return nil, errors.New("not now")
				},
				Policy: pipeline.Policy{Retry: pipeline.Retry{To: retries, Max: 5}, DeadLetter: dead},
			})
			m := message.NewMessage("u", []byte("p"))
			m.Metadata = message.Metadata{pipeline.MetaRetryOf: "toy.route", pipeline.MetaAttempt: attempt, pipeline.MetaFirstFailedAt: first, pipeline.MetaDue: due, pipeline.MetaTraceParent: parent}
			m.SetContext(context.Background())
			before := time.Now()
			_, err = handle(m)
			require.NoError(t, err, "acked")

			records := append(retries.Messages(), dead.Messages()...)
			require.Len(t, records, 1)
			r := records[0]
			require.Equal(t, "p", string(r.Payload))
			if span.IsValid() {
				again := trace.SpanContextFromContext(pipeline.ExtractTrace(context.Background(), r))
				require.Equal(t, span.TraceID(), again.TraceID(), "the record is in the trace of its message")
			}
			if len(dead.Messages()) == 1 {
				n, err := strconv.Atoi(r.Metadata.Get(pipeline.MetaDeadAttempts))
				require.NoError(t, err)
				require.Positive(t, n)
				checkFirst(t, r.Metadata.Get(pipeline.MetaDeadFirstFailedAt))
				continue
			}
			require.False(t, permanent)
			n, err := strconv.Atoi(r.Metadata.Get(pipeline.MetaAttempt))
			require.NoError(t, err)
			require.GreaterOrEqual(t, n, 1)
			require.LessOrEqual(t, n, 5)
			at, err := time.Parse(time.RFC3339Nano, r.Metadata.Get(pipeline.MetaDue))
			require.NoError(t, err)
			require.True(t, at.After(before) && at.Before(time.Now().Add(time.Minute)), "%s", at)
			checkFirst(t, r.Metadata.Get(pipeline.MetaFirstFailedAt))
		}
	})
}

func checkFirst(t *testing.T, text string) {
	at, err := time.Parse(time.RFC3339Nano, text)
	require.NoError(t, err)
	require.False(t, at.After(time.Now()), "the first failure was not in the future: %s", text)
}
