package oncehttp_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/slots"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// observed is a context that reports when a goroutine begins to wait for its end.
type observed struct {
	context.Context
	once    sync.Once
	waiting chan struct{}
}

func (c *observed) Done() <-chan struct{} {
	c.once.Do(func() { close(c.waiting) })
	return c.Context.Done()
}

func TestSlots(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ends func(c *oncehttp.Client, cancel context.CancelFunc, release func())
		err  error
	}{
		"one is released":      {func(_ *oncehttp.Client, _ context.CancelFunc, release func()) { release() }, nil},
		"the caller goes away": {func(_ *oncehttp.Client, cancel context.CancelFunc, _ func()) { cancel() }, context.Canceled},
		"the process drains":   {func(c *oncehttp.Client, _ context.CancelFunc, _ func()) { c.Drain(); c.Drain() }, slots.ErrNoMore},
		"the client is closed": {func(c *oncehttp.Client, _ context.CancelFunc, _ func()) { _ = c.Close() }, slots.ErrNoMore},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := newClient(t, "http://127.0.0.1:1", func(cfg *oncehttp.Config) { cfg.Concurrency = 2 })
			taken := func(want int) {
				require.EqualValues(t, want, metric(t, client, "millrace_once_http_in_flight"))
			}
			first, err := client.Slot(t.Context())
			require.NoError(t, err)
			second, err := client.Slot(t.Context())
			require.NoError(t, err)
			taken(2)

			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			waits := &observed{Context: ctx, waiting: make(chan struct{})}
			third := make(chan error, 1)
			go func() {
				_, err := client.Slot(waits)
				third <- err
			}()
			<-waits.waiting
			c.ends(client, cancel, first)
			require.ErrorIs(t, <-third, c.err)
			taken(2)
			if c.err != nil {
				first()
				taken(1)
				_, err = client.Slot(t.Context())
				require.NoError(t, err, "a slot that is free is given, also while the process drains")
			}
			second()
			taken(1)
		})
	}
}
