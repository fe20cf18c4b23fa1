package pipeline

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// channel is a subscriber whose messages a test sends.
type channel struct {
	message.Subscriber
	in chan *message.Message
}

func (c channel) Subscribe(context.Context, string) (<-chan *message.Message, error) {
	return c.in, nil
}

// A message that was collected and can't be handled any more is nacked, and nothing hangs.
func TestACollectorNacksAtTheEnd(t *testing.T) {
	for name, payloads := range map[string][]string{
		"nothing":              nil,
		"a batch":              {"1", "2"},
		"a batch and the next": {"1", "too large"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reg, err := NewRegistry(Env{})
				require.NoError(t, err)
				r, in := NewRuntime(reg, RuntimeOptions{}), make(chan *message.Message)
				c := newCollector(r, channel{in: in}, Batch{MaxBytes: 8}, func(*message.Message) {})
				for range batchesAtOnce {
					c.places <- struct{}{} // all are taken
				}
				out, err := c.Subscribe(t.Context(), "")
				require.NoError(t, err)
				var msgs []*message.Message
				for _, p := range payloads {
					msgs = append(msgs, message.NewMessage(p, []byte(p)))
					in <- msgs[len(msgs)-1]
				}
				require.NoError(t, r.Stop(t.Context()))
				for _, m := range msgs {
					<-m.Nacked()
				}
				_, open := <-out
				require.False(t, open)
			})
		})
	}
}
