package pipelinetest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// transportGate is a Flow.Gate, closed at first.
type transportGate struct {
	open   atomic.Bool
	called chan struct{} // capacity 1: the transport has called it
}

func (g *transportGate) isOpen() bool {
	open := g.open.Load()
	select {
	case g.called <- struct{}{}:
	default:
	}
	return open
}

// checkGate opens a source with a closed gate, opens the gate, and closes it again.
func (r *transportRun) checkGate() error {
	gate := &transportGate{called: make(chan struct{}, 1)}
	a, in, err := r.startReading("a", pipeline.Flow{Gate: gate.isOpen})
	if err != nil {
		return err
	}
	first, err := a.publish(3, "")
	if err != nil {
		return err
	}
	m, err := in.behind(gate)
	if err != nil {
		return err
	}
	if m != nil {
		m.Nack()
		return fmt.Errorf("%s: a message came while Flow.Gate returned false from the beginning on", in.at)
	}
	gate.open.Store(true)
	if err := in.collect(first, nil); err != nil {
		return fmt.Errorf("Flow.Gate returned false at first, and then true: %w", err)
	}
	gate.open.Store(false)
	// What comes now was read before. It is replaced, so that a transport that goes on reading never ends.
	missing := map[string]bool{}
	for begun := 0; ; begun++ {
		if begun > transportBegun {
			return fmt.Errorf("%s: %d messages came after Flow.Gate had returned true and then false", in.at, begun)
		}
		more, err := a.publish(1, "")
		if err != nil {
			return err
		}
		missing[more[0]] = true
		m, err := in.behind(gate)
		if err != nil {
			return err
		}
		if m == nil {
			break
		}
		delete(missing, m.UUID)
		m.Ack()
	}
	gate.open.Store(true)
	for len(missing) > 0 {
		m, err := in.next()
		if err != nil {
			return fmt.Errorf("Flow.Gate returned true again: %w", err)
		}
		delete(missing, m.UUID)
		m.Ack()
	}
	return in.drain()
}

// behind waits until the transport has called the gate, and somewhat longer. It returns a message that
// comes meanwhile, or nil.
func (r *transportReader) behind(g *transportGate) (*message.Message, error) {
	select { // of a call before
	case <-g.called:
	default:
	}
	patience := time.NewTimer(transportPatience)
	defer patience.Stop()
	select {
	case m := <-r.out:
		return m, nil
	case <-g.called:
		return r.soon(), nil
	case <-patience.C:
		return nil, fmt.Errorf("%s: Flow.Gate was not called within %s, and a message is waiting", r.at, transportPatience)
	}
}

// soon returns a message that comes without a reason to wait, or nil.
func (r *transportReader) soon() *message.Message {
	settle := time.NewTimer(transportSettle)
	defer settle.Stop()
	select {
	case m := <-r.out:
		return m
	case <-settle.C:
		return nil
	}
}

// checkOrder reads messages with the same key, which no order lets overtake each other.
func (r *transportRun) checkOrder() error {
	a, err := r.start("a")
	if err != nil {
		return err
	}
	var uuids []string
	for _, order := range []pipeline.Order{pipeline.OrderKey, pipeline.OrderPartition} {
		in, err := a.read("order-"+order.String(), pipeline.Flow{Order: order})
		if err != nil {
			return err
		}
		if uuids == nil {
			if uuids, err = a.publish(3, "key"); err != nil {
				return err
			}
		}
		if err := in.inOrder(uuids); err != nil {
			return fmt.Errorf("with Flow.Order %s: %w", order, err)
		}
		if err := in.drain(); err != nil {
			return err
		}
	}
	return nil
}

// inOrder receives messages in their order, each after the ack of the one before. It nacks the first
// one once.
func (r *transportReader) inOrder(uuids []string) error {
	nacked := false
	for n, uuid := range uuids {
		for {
			m, err := r.next()
			if err != nil {
				return fmt.Errorf("%w: %d of %d messages are missing", err, len(uuids)-n, len(uuids))
			}
			if slices.Contains(uuids[:n], m.UUID) { // delivered again
				m.Ack()
				continue
			}
			if m.UUID != uuid {
				m.Nack()
				return fmt.Errorf("%s: message %d came before message %d, which was nacked: %t", r.at, 1+slices.Index(uuids, m.UUID), n+1, nacked)
			}
			if next := r.soon(); next != nil {
				m.Nack()
				next.Nack()
				if next.UUID != uuid {
					return fmt.Errorf("%s: message %d came before the ack of message %d", r.at, 1+slices.Index(uuids, next.UUID), n+1)
				}
				continue // the same one, delivered again
			}
			if !nacked {
				nacked = true
				m.Nack()
				continue
			}
			m.Ack()
			break
		}
	}
	return nil
}

// checkLimits holds as many messages as come.
func (r *transportRun) checkLimits() error {
	const limit, messages = 2, 5
	a, err := r.start("a")
	if err != nil {
		return err
	}
	var uuids []string
	for _, f := range []struct {
		name string
		flow pipeline.Flow
	}{
		{"Window", pipeline.Flow{Window: limit}}, // the messages have the same key, so they are in one partition
		{"MaxInFlight", pipeline.Flow{MaxInFlight: limit}},
	} {
		in, err := a.read("limit-"+f.name, f.flow)
		if err != nil {
			return err
		}
		if uuids == nil {
			if uuids, err = a.publish(messages, "key"); err != nil {
				return err
			}
		}
		if err := in.atMost(limit, uuids); err != nil {
			return fmt.Errorf("with Flow.%s %d: %w", f.name, limit, err)
		}
		if err := in.drain(); err != nil {
			return err
		}
	}
	return nil
}

// atMost receives messages until all have come. It acks them when no more come, and never has more
// than limit of them.
func (r *transportReader) atMost(limit int, uuids []string) error {
	acked := map[string]bool{}
	for len(acked) < len(uuids) {
		m, err := r.next()
		if err != nil {
			return fmt.Errorf("%w: %d of %d messages are missing", err, len(uuids)-len(acked), len(uuids))
		}
		held := map[string][]*message.Message{} // with those that were delivered again
		for ; m != nil; m = r.soon() {
			held[m.UUID] = append(held[m.UUID], m)
			if len(held) > limit {
				settleAll(held, (*message.Message).Nack)
				return fmt.Errorf("%s: %d messages are in flight", r.at, len(held))
			}
		}
		settleAll(held, (*message.Message).Ack)
		for uuid := range held {
			acked[uuid] = true
		}
	}
	return nil
}

func settleAll(held map[string][]*message.Message, settle func(*message.Message) bool) {
	for _, ms := range held {
		for _, m := range ms {
			settle(m)
		}
	}
}
