package promotion

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/pipeline"
)

// publishRecord is a message of a publish topic.
func publishRecord(t *testing.T, promotion, target int64, amount string) *message.Message {
	t.Helper()
	payload, err := pointType().Encode(promotion, 9, target, amount)
	require.NoError(t, err)
	return message.NewMessage("", payload)
}

// Each record of a batch has its own outcome. A stream that is full, or refused by Redis, fails no
// record of another one, and its payouts are left to the feeder.
func TestABatchOfRecords(t *testing.T) {
	t.Parallel()
	hist := embeddedModelEnv(t).newHistory()
	in, ctx := hist.ins[0], t.Context()
	good, full, refused := hist.promotion.ID, hist.promotion.ID+100_001, hist.promotion.ID+100_002
	require.NoError(t, in.client.Set(ctx, hist.kind.Stream(fmt.Sprint(refused)), "not a stream", 0).Err())

	results := in.proc.Accept(ctx, []*message.Message{
		publishRecord(t, good, 1, "500"),
		message.NewMessage("", []byte("not JSON")),
		publishRecord(t, full, 1, "500"),
		publishRecord(t, refused, 1, "500"),
		publishRecord(t, good, 1, "501"), // another request: its dead letter is in the outbox
		publishRecord(t, full, 2, "500"),
		publishRecord(t, full, 3, "500"),
		publishRecord(t, good, 2, "500"),
	})
	var keys []string
	var out []*message.Message
	for i, r := range results {
		require.Nil(t, r.Then)
		require.Equal(t, i == 1, r.Err != nil, "record %d: %v", i, r.Err)
		for _, m := range r.Out {
			keys = append(keys, m.UUID)
			out = append(out, m)
		}
	}
	require.True(t, pipeline.IsPermanent(results[1].Err))
	key := func(promotion, target int64) payouts.Key {
		return payouts.Key{Type: hist.promotion.Type, Promotion: promotion, Target: target}
	}
	require.Equal(t, []string{key(good, 1).String(), key(full, 1).String(), key(refused, 1).String(),
		key(full, 2).String(), key(full, 3).String(), key(good, 2).String()}, keys)

	require.NoError(t, in.proc.Publisher().Publish(ctx, out...))
	require.EqualValues(t, 2, in.client.XLen(ctx, hist.kind.Stream(fmt.Sprint(good))).Val())
	require.EqualValues(t, 2, in.client.XLen(ctx, hist.kind.Stream(fmt.Sprint(full))).Val(), "max_len")
	left := func(promotion int64) (n int) {
		fed, err := in.ledger.FeedUnqueued(ctx, payouts.Promotion{Type: hist.promotion.Type, ID: promotion}, 1000)
		require.NoError(t, err)
		return len(fed)
	}
	require.Equal(t, []int{0, 1, 1}, []int{left(good), left(full), left(refused)})

	// That a stream is full is remembered for 100 ms, which a slow machine needs for these lines.
	more := 0
	for remembered := false; !remembered; {
		more++
		require.Less(t, more, 100, "the stream was full a moment ago")
		require.NoError(t, in.proc.Publisher().Publish(ctx, out[4]))
		results = in.proc.Accept(ctx, []*message.Message{
			publishRecord(t, full, int64(3+more), "500"), publishRecord(t, good, int64(2+more), "500"),
		})
		require.Len(t, results[1].Out, 1)
		remembered = len(results[0].Out) == 0
		require.NoError(t, in.proc.Publisher().Publish(ctx, results[0].Out...))
	}
	require.Equal(t, 1+more, left(full))

	err := in.proc.Publisher().Publish(ctx, results[1].Out[0], message.NewMessage("no payout", nil))
	var some *pipeline.PartialError
	require.ErrorAs(t, err, &some)
	require.Len(t, some.Failed, 1)
	require.True(t, pipeline.IsPermanent(some.Failed[1]))
	require.Equal(t, 1, left(good), "the other one is not lost: this stream is full now")
}

// A stream whose server does not answer delays the records of other streams once, by less than the
// time limit of a call. Its payouts are left to the feeder, with a time limit of their own.
func TestASlowStreamIsLeftOut(t *testing.T) {
	t.Parallel()
	hist := embeddedModelEnv(t).newHistory()
	in, ctx := hist.ins[0], t.Context()
	good, slow := hist.promotion.ID, hist.promotion.ID+100_003
	require.NoError(t, in.manager.Ensure(ctx, fmt.Sprint(slow)))
	frozen := &frozenStream{name: hist.kind.Stream(fmt.Sprint(slow))}
	in.client.AddHook(frozen)
	in.config.Stream.MaxLen = 1000
	for batch := range int64(20) {
		var out []*message.Message
		for _, r := range in.proc.Accept(ctx, []*message.Message{publishRecord(t, slow, batch+1, "500"), publishRecord(t, good, batch+1, "500")}) {
			require.NoError(t, r.Err)
			out = append(out, r.Out...)
		}
		require.NoError(t, in.proc.Publisher().Publish(ctx, out...))
	}
	require.EqualValues(t, 20, in.client.XLen(ctx, hist.kind.Stream(fmt.Sprint(good))).Val())
	require.EqualValues(t, 1, frozen.calls.Load(), "the stream is remembered")
	fed, err := in.ledger.FeedUnqueued(ctx, payouts.Promotion{Type: hist.promotion.Type, ID: slow}, 100)
	require.NoError(t, err)
	require.Len(t, fed, 20)
}

// frozenStream is a hook: the server of a stream does not answer.
type frozenStream struct {
	name  string
	calls atomic.Int64
}

func (*frozenStream) DialHook(next goredis.DialHook) goredis.DialHook { return next }

func (*frozenStream) ProcessPipelineHook(next goredis.ProcessPipelineHook) goredis.ProcessPipelineHook {
	return next
}

func (f *frozenStream) ProcessHook(next goredis.ProcessHook) goredis.ProcessHook {
	return func(ctx context.Context, cmd goredis.Cmder) error {
		if !slices.Contains(cmd.Args(), any(f.name)) {
			return next(ctx, cmd)
		}
		f.calls.Add(1)
		<-ctx.Done()
		cmd.SetErr(ctx.Err())
		return ctx.Err()
	}
}

// With the streams disabled, each record is paid by itself.
func TestABatchIsPaidAtOnce(t *testing.T) {
	t.Parallel()
	hist := embeddedModelEnv(t).newHistory()
	in := hist.ins[0]
	in.config.Stream.Enabled = false
	results := in.proc.Accept(t.Context(), []*message.Message{publishRecord(t, hist.promotion.ID, 1, "500"), publishRecord(t, hist.promotion.ID, 2, "500")})
	for _, r := range results {
		require.NoError(t, r.Err)
		require.Empty(t, r.Out)
		require.NotNil(t, r.Then)
	}
}
