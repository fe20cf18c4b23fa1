package kafka

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// record is one Kafka record from its reading to its acknowledgement. The fields after acked belong
// to its deliverer; acked belongs to the window.
type record struct {
	offset int64
	acked  bool

	pristine *message.Message // each delivery is a copy, so no handler changes it
	key      string

	published time.Time
	due       time.Time     // zero: now
	moveAt    time.Time     // when it is moved to the end of its topic, if it is not due by then
	weight    int64         // bytes taken from the subscription's budget
	latest    delivery      // the claim's lock guards it
	move      chan struct{} // while it is not due: a token requests its move
}

// size is what a record is worth in the window's budget.
func size(m *message.Message) int64 {
	n := len(m.Payload)
	for k, v := range m.Metadata {
		n += len(k) + len(v)
	}
	return int64(n)
}

// delivery makes the message of the n-th delivery, and the function that ends its context.
func (r *record) delivery(ctx context.Context, d pipeline.Delivery) (*message.Message, context.CancelFunc) {
	m := copyOf(r.pristine)
	ctx, cancel := context.WithCancel(pipeline.WithDelivery(ctx, d))
	m.SetContext(ctx)
	return m, cancel
}

// delivery is a message on its way to a handler: its answer, and what ends its context and releases
// its place. It does not keep the payload.
type delivery struct {
	uuid          string
	acked, nacked <-chan struct{} // nil: there is no delivery
	end           context.CancelFunc
	semaphore     semaphore
	counted       bool // an earlier claim left it unanswered, and has counted it as running
}

func (d delivery) done() {
	d.end()
	d.semaphore.release()
}

// nackedYet says whether a handler has refused the message.
func (d delivery) nackedYet() bool {
	select {
	case <-d.nacked:
		return true
	default:
		return false
	}
}
