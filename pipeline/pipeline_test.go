package pipeline_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
)

type order struct {
	ID int `json:"id"`
}

func (o order) Validate() error {
	if o.ID <= 0 {
		return fmt.Errorf("id: must be > 0, got %d", o.ID)
	}
	return nil
}

func ExampleJSON() {
	handle := pipeline.JSON(func(_ context.Context, o order) error {
		fmt.Println("order", o.ID)
		return nil
	})
	_, err := handle(message.NewMessage("1", []byte(`{"id":7,"unknown":true}`)))
	fmt.Println(err)
	_, err = handle(message.NewMessage("2", []byte(`{"id":-7}`)))
	fmt.Println(pipeline.Class(err), pipeline.IsPermanent(err), err)
	// Output:
	// order 7
	// <nil>
	// invalid true id: must be > 0, got -7
}

func ExampleRetryAfter() {
	err := fmt.Errorf("charge: %w", pipeline.RetryAfter(errors.New("busy"), 3*time.Second))
	d, ok := pipeline.RetryDelay(err)
	fmt.Println(err, d, ok)
	// Output: charge: busy 3s true
}

func TestErrorMarks(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	require.NoError(t, pipeline.Permanent(nil))
	require.NoError(t, pipeline.RetryAfter(nil, time.Second))
	require.NoError(t, pipeline.WithClass(nil, "x"))
	require.ErrorIs(t, pipeline.WithClass(pipeline.Permanent(boom), "x"), boom)
	require.Equal(t, "timeout", pipeline.Class(fmt.Errorf("call: %w", context.DeadlineExceeded)))
	require.Equal(t, "outer", pipeline.Class(pipeline.WithClass(pipeline.WithClass(boom, "inner"), "outer")))
	require.Empty(t, pipeline.Class(nil))
	_, delayed := pipeline.RetryDelay(boom)
	require.False(t, delayed)
}

func TestBackoffStaysInItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		b := pipeline.Backoff{First: time.Duration(rapid.Int64Min(0).Draw(t, "first")), Max: time.Duration(rapid.Int64Min(0).Draw(t, "max"))}
		n := rapid.IntRange(-3, 200).Draw(t, "n")
		longest := b.Max
		if longest == 0 {
			longest = 30 * time.Second
		}
		d := b.Delay(n)
		require.LessOrEqual(t, d, longest)
		require.GreaterOrEqual(t, d, min(longest, max(b.First, time.Nanosecond))/5*4-1)
		require.LessOrEqual(t, d, b.Longest(max(n, 1)))
		require.LessOrEqual(t, b.Longest(max(n, 1)), b.Longest(max(n, 1)+1))
		require.Equal(t, longest, b.Longest(0))
	})
}

func TestPublishError(t *testing.T) {
	t.Parallel()
	cause := errors.New("refused")
	require.NoError(t, pipeline.PublishError(nil))
	require.NoError(t, pipeline.PublishError(make([]error, 2)))
	require.Equal(t, cause, pipeline.PublishError([]error{cause}))
	require.Equal(t, &pipeline.PartialError{Failed: map[int]error{1: cause}, Size: 2}, pipeline.PublishError([]error{nil, cause}))
}

func TestAPartialErrorNamesCountsAndTheFirstReason(t *testing.T) {
	t.Parallel()
	cause := errors.New("too large")
	err := &pipeline.PartialError{Failed: map[int]error{1: cause, 2: errors.New("other")}, Size: 3}
	require.EqualError(t, err, "2 of 3 not published: too large")
	require.ErrorIs(t, err, cause)
}

// What plugins offer is found by its type, in the order of the plugins, also by one that stands before
// them.
func TestOffers(t *testing.T) {
	t.Parallel()
	type target struct{ name string }
	first := plugin{"first", func(r *pipeline.Registry) {
		r.Offer(target{"a"})
		r.Offer("another type")
		require.Len(t, pipeline.Offers[target](r), 1, "nothing of the plugins that follow")
	}}
	second := plugin{"second", func(r *pipeline.Registry) { r.Offer(target{"b"}) }}
	r, err := pipeline.NewRegistry(pipeline.Env{}, first, second)
	require.NoError(t, err)
	require.Equal(t, []target{{"a"}, {"b"}}, pipeline.Offers[target](r))
	require.Empty(t, pipeline.Offers[fmt.Stringer](r))
}
