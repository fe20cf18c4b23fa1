package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// The chain tells why the last message failed that is tried again, by a retry record or by a nack. One that ended
// as a dead letter, or with its process, says nothing about those.
func TestTheChainTellsTheLastError(t *testing.T) {
	t.Parallel()
	retries := pipeline.Retry{To: pipelinetest.NewRecorder("again"), ReadElsewhere: true}
	for name, retry := range map[string]pipeline.Retry{"retried": retries, "nacked": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var tell func() pipeline.RouteWork
			reg, err := pipeline.NewRegistry(pipeline.Env{}, onRoute{pipeline.Route{
				From: pipelinetest.NewFeed("in"), Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead"), Retry: retry},
				Handle: handler(func(_ context.Context, payload string) error {
					require.EqualValues(t, 1, tell().InFlight)
					switch payload {
					case "hopeless":
						return pipeline.Permanent(errors.New("no"))
					case "long":
						return pipeline.WithClass(errors.New(strings.Repeat("é", 400)+"\x1b[31m"), "far")
					}
					return fmt.Errorf("%s:\nnot now", payload)
				}),
			}})
			require.NoError(t, err)
			run, _ := middleware.New(reg, middleware.Options{}).Wrap(reg.Routes()[0])
			tell = func() pipeline.RouteWork { return operate.WorkHere(reg)["toy.route"] }
			settle := func(ctx context.Context, payload, position string) *pipeline.LastError {
				at := pipeline.Origin{Kind: "feed", Source: "in", Position: position}
				_, _ = run(message.NewMessageWithContext(pipeline.WithDelivery(ctx, pipeline.Delivery{Origin: at}), payload, []byte(payload)))
				require.Zero(t, tell().InFlight)
				return tell().LastError
			}
			require.Nil(t, settle(t.Context(), "hopeless", "in/0@1"))
			began := time.Now()
			last := settle(t.Context(), "stock", "in/0@2")
			require.NotNil(t, last)
			require.WithinRange(t, last.At, began, time.Now())
			require.Equal(t, pipeline.LastError{At: last.At, Record: "in/0@2", Class: "error", Text: "stock: not now"}, *last)
			require.Equal(t, last, settle(t.Context(), "hopeless", "in/0@3"))
			ended, end := context.WithCancel(t.Context())
			end()
			if name == "nacked" {
				require.Equal(t, last, settle(ended, "stopped", "in/0@4"))
			}
			last = settle(t.Context(), "long", strings.Repeat("p", 1000))
			require.Equal(t, "far", last.Class)
			require.Equal(t, strings.Repeat("é", 128), last.Text, "256 bytes")
			require.Len(t, last.Record, 256)
		})
	}
}
