package middleware_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// limited is a source whose settings have a delivery limit.
type limited struct {
	pipeline.Source
	most int
}

func (l limited) MaxDeliveries() int { return l.most }

// wrap returns the chain around a route's handler.
func wrap(t *testing.T, r pipeline.Route) message.HandlerFunc {
	t.Helper()
	r.Name = "toy.route"
	if r.From == nil {
		r.From = pipelinetest.NewFeed("in")
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)})
	require.NoError(t, err)
	handle, _ := middleware.New(reg, middleware.Options{}).Wrap(r)
	return handle
}

func from(d pipeline.Delivery) *message.Message {
	msg := message.NewMessage("1", []byte("as it came"))
	msg.SetContext(pipeline.WithDelivery(context.Background(), d))
	return msg
}

func TestDeliveryLimit(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	retry := pipelinetest.NewRecorder("retry")
	tests := []struct {
		name      string
		policy    int // Policy.MaxDeliveries
		settings  int // of the source; 0: it has none
		delivered int64
		excused   int64
		err       error
		retry     pipeline.Retry
		noDead    bool
		refused   bool // the handler isn't called
		nacked    bool
		dead      string // text of the dead letter
	}{
		{name: "no limit", delivered: 1000, err: boom, nacked: true},
		{name: "before the last", policy: 3, delivered: 2, err: boom, nacked: true},
		{name: "the last failure", policy: 3, delivered: 3, err: boom, dead: "failed at delivery 3, the limit is 3: boom"},
		{name: "the last success", policy: 3, delivered: 3},
		{name: "one too many", policy: 3, delivered: 4, refused: true, dead: "delivered 4 times, the limit is 3 and no error of them is known"},
		{name: "also where failures have a retry topic", policy: 3, delivered: 4, retry: pipeline.Retry{To: retry}, refused: true, dead: "delivered 4 times, the limit is 3 and no error of them is known"},
		{name: "the retry topic counts for itself", policy: 3, delivered: 3, err: boom, retry: pipeline.Retry{To: retry}},
		{name: "the settings of the source", settings: 2, delivered: 2, err: boom, dead: "failed at delivery 2, the limit is 2: boom"},
		{name: "the policy comes first", policy: 3, settings: 2, delivered: 2, err: boom, nacked: true},
		{name: "a policy without a limit", policy: -1, settings: 2, delivered: 2, err: boom, nacked: true},
		{name: "excused, before the last", policy: 3, delivered: 9, excused: 7, err: boom, nacked: true},
		{name: "excused, the last failure", policy: 3, delivered: 9, excused: 6, err: boom, dead: "failed at delivery 3, the limit is 3: boom"},
		{name: "excused, one too many", policy: 3, delivered: 9, excused: 5, refused: true, dead: "delivered 4 times, the limit is 3 and no error of them is known"},
		{name: "nothing is dropped for being delivered too often", policy: 3, delivered: 9, err: boom, noDead: true, nacked: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dead := pipelinetest.NewRecorder("dead")
			var ran atomic.Int64
			route := pipeline.Route{Handle: handler(func(context.Context, string) error { ran.Add(1); return tt.err })}
			route.Policy = pipeline.Policy{MaxDeliveries: tt.policy, Retry: tt.retry, DeadLetter: dead}
			if tt.noDead {
				route.Policy.DeadLetter = pipeline.Drop
			}
			if tt.settings > 0 {
				route.From = limited{pipelinetest.NewFeed("in"), tt.settings}
			}
			_, err := wrap(t, route)(from(pipeline.Delivery{
				Origin:    pipeline.Origin{Source: "scan:events:1", Position: "scan:events:1@7-0", Key: "k"},
				Delivered: tt.delivered, Excused: tt.excused,
			}))
			require.Equal(t, tt.nacked, err != nil, "nacked: %v", err)
			require.Equal(t, tt.refused, ran.Load() == 0)
			if tt.dead == "" {
				require.Empty(t, dead.Messages())
				return
			}
			require.Len(t, dead.Messages(), 1)
			m := dead.Messages()[0]
			require.Equal(t, "as it came", string(m.Payload))
			for key, want := range map[string]string{
				pipeline.MetaDeadClass: "delivery_limit", pipeline.MetaDeadError: tt.dead, pipeline.MetaDeadHandler: "toy.route",
				pipeline.MetaDeadOrigin: "scan:events:1@7-0", pipeline.MetaKey: "k",
			} {
				require.Equal(t, want, m.Metadata.Get(key), key)
			}
		})
	}
}

// A dead letter that could not be published leaves the message where it is, however often it was
// delivered.
func TestDeliveryLimitAcksOnlyWhatIsDurable(t *testing.T) {
	t.Parallel()
	dead := pipelinetest.NewRecorder("dead")
	dead.FailWith(errors.New("no broker"))
	handle := wrap(t, pipeline.Route{Handle: nothing, Policy: pipeline.Policy{MaxDeliveries: 1, DeadLetter: dead}})
	_, err := handle(from(pipeline.Delivery{Delivered: 2}))
	require.ErrorContains(t, err, "no broker")
	dead.FailWith(nil)
	_, err = handle(from(pipeline.Delivery{Delivered: 3}))
	require.NoError(t, err)
	require.Len(t, dead.Messages(), 1)
	require.Equal(t, "3", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadAttempts))
}

func TestWhatTheTransportCouldNotDecodeIsDeadLetteredUnhandled(t *testing.T) {
	t.Parallel()
	dead := pipelinetest.NewRecorder("dead")
	handle := wrap(t, pipeline.Route{
		Handle: handler(func(context.Context, string) error { panic("called") }),
		Policy: pipeline.Policy{DeadLetter: dead, Retry: pipeline.Retry{To: pipelinetest.NewRecorder("retry")}},
	})
	_, err := handle(from(pipeline.Delivery{Delivered: 1, Malformed: pipeline.WithClass(errors.New("no message field"), "missing_message")}))
	require.NoError(t, err)
	require.Len(t, dead.Messages(), 1)
	require.Equal(t, "missing_message", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadClass))
	require.Equal(t, "no message field", dead.Messages()[0].Metadata.Get(pipeline.MetaDeadError))
}
