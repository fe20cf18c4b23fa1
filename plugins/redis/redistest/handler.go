package redistest

import (
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"
)

// Patience bounds each wait for something that must happen.
const Patience = 2 * time.Minute

// Receive returns the next message, or fails.
func Receive(t testing.TB, out <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case m, ok := <-out:
		require.True(t, ok, "the channel is closed")
		return m
	case <-time.After(Patience):
		require.FailNow(t, "no message")
		return nil
	}
}

// ReceiveAck is Receive with an ack.
func ReceiveAck(t testing.TB, out <-chan *message.Message) *message.Message {
	t.Helper()
	m := Receive(t, out)
	m.Ack()
	return m
}

// Handler runs every message on a goroutine of its own, as Watermill's Router does, and counts
// runs.
type Handler struct {
	mu   sync.Mutex
	runs map[string]int
	wg   sync.WaitGroup
	quit chan struct{}
}

// Handle starts handling the messages of out: f returns true for an ack. A nil f acks. It ends with
// the test.
func Handle(t testing.TB, out <-chan *message.Message, f func(*message.Message) bool) *Handler {
	t.Helper()
	h := &Handler{runs: map[string]int{}, quit: make(chan struct{})}
	h.wg.Go(func() {
		for {
			select {
			case m, ok := <-out:
				if !ok {
					return
				}
				h.wg.Go(func() { h.one(m, f) })
			case <-h.quit:
				return
			}
		}
	})
	t.Cleanup(func() {
		close(h.quit)
		h.wg.Wait()
	})
	return h
}

// Ended is closed when the test ends.
func (h *Handler) Ended() <-chan struct{} { return h.quit }

func (h *Handler) one(m *message.Message, f func(*message.Message) bool) {
	h.mu.Lock()
	h.runs[string(m.Payload)]++
	h.mu.Unlock()
	if f == nil || f(m) {
		m.Ack()
	} else {
		m.Nack()
	}
}

// Handled returns how many different payloads were handled.
func (h *Handler) Handled() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.runs)
}

// Repeated returns the payloads that ran more than once.
func (h *Handler) Repeated() map[string]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]int{}
	for p, n := range h.runs {
		if n > 1 {
			out[p] = n
		}
	}
	return out
}

// WaitFor waits until n different payloads were handled.
func (h *Handler) WaitFor(t testing.TB, n int) {
	t.Helper()
	require.Eventually(t, func() bool { return h.Handled() >= n }, 3*Patience, 5*time.Millisecond, "not all messages were handled")
}
