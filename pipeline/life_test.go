package pipeline_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// oneMessage sends a message and waits for its ack, as a transport does.
func oneMessage(closeTimeout time.Duration) *pipeline.Life {
	var l *pipeline.Life
	l = pipeline.NewLife(closeTimeout, func(context.Context) error {
		m := message.NewMessage("1", nil)
		select {
		case l.Out <- m:
		case <-l.Reading.Done():
			return nil
		}
		<-l.Reading.Done()
		select {
		case <-m.Acked():
			return nil
		case <-l.Abandoned.Done():
			return errors.New("abandoned")
		}
	})
	return l
}

func TestDrainWaitsForWhatIsInFlight(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := oneMessage(time.Second)
		out, err := l.Subscribe(t.Context(), "")
		require.NoError(t, err)
		m := <-out
		drained := make(chan error, 1)
		go func() { drained <- l.Drain(t.Context()) }()
		synctest.Wait()
		require.Empty(t, drained)
		m.Ack()
		require.NoError(t, <-drained)
		_, open := <-out
		require.False(t, open)
		require.NoError(t, l.Close())
	})
}

func TestDrainAbandonsAtTheEndOfItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := oneMessage(time.Hour)
		out, err := l.Subscribe(t.Context(), "")
		require.NoError(t, err)
		<-out
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, l.Drain(ctx), context.DeadlineExceeded)
		require.EqualError(t, l.Drain(t.Context()), "abandoned", "the error of the work")
	})
}

func TestCloseAbandonsAfterItsTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := oneMessage(time.Second)
		out, err := l.Subscribe(t.Context(), "")
		require.NoError(t, err)
		<-out
		begin := time.Now()
		require.EqualError(t, l.Close(), "abandoned")
		require.EqualError(t, l.Close(), "abandoned", "a second close has the same result")
		require.Equal(t, time.Second, time.Since(begin))
	})
}

func TestTheContextOfSubscribeEndsTheReading(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
		var l *pipeline.Life
		l = pipeline.NewLife(time.Second, func(ctx context.Context) error {
			<-l.Reading.Done()
			require.Equal(t, "value", ctx.Value(key{}))
			return ctx.Err()
		})
		out, err := l.Subscribe(ctx, "")
		require.NoError(t, err)
		cancel()
		_, open := <-out
		require.False(t, open)
		require.NoError(t, l.Drain(t.Context()))
	})
}

func TestASubscriptionIsUsedOnce(t *testing.T) {
	t.Parallel()
	used, unused := oneMessage(time.Second), oneMessage(time.Second)
	_, err := used.Subscribe(t.Context(), "")
	require.NoError(t, err)
	require.NoError(t, unused.Drain(t.Context()), "the work runs, so that it can clean up")
	for _, l := range []*pipeline.Life{used, unused} {
		_, err := l.Subscribe(t.Context(), "")
		require.ErrorIs(t, err, loop.ErrStarted)
		l.Abandon()
		_ = l.Close()
	}
}

func TestTheFirstFailureIsReported(t *testing.T) {
	t.Parallel()
	l := oneMessage(time.Second)
	first := errors.New("first")
	l.Fail(first)
	l.Fail(errors.New("second"))
	require.Equal(t, first, <-l.Failed())
	require.Empty(t, l.Failed())
}
