package pipelinetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
)

// checkOrigin publishes messages and compares what comes.
func (r *transportRun) checkOrigin() error {
	a, in, err := r.startReading("a", pipeline.Flow{})
	if err != nil {
		return err
	}
	sent := map[string]*message.Message{}
	for i := range 3 {
		m := message.NewMessage(watermill.NewULID(), []byte{0, 0xff, '\n', byte(i)})
		m.Metadata.Set(pipeline.MetaKey, fmt.Sprintf("key %d", i))
		m.Metadata.Set("note", "zwölf: \"12\"")
		sent[m.UUID] = m
		if err := a.send(m); err != nil {
			return err
		}
	}
	positions := map[string]string{} // UUIDs by position
	for len(positions) < len(sent) {
		m, err := in.next()
		if err != nil {
			return err
		}
		if err := checkContent(m, sent[m.UUID]); err != nil {
			return fmt.Errorf("%s: %w", in.at, err)
		}
		d := pipeline.DeliveryFrom(m.Context())
		if err := checkDeliveryOf(d, in.at); err != nil {
			return fmt.Errorf("%s: origin of message %s: %w", in.at, m.UUID, err)
		}
		if want := sent[m.UUID].Metadata.Get(pipeline.MetaKey); d.Key != want {
			return fmt.Errorf("%s: message %s has the Origin.Key %q, want %q: dead letters and the order of keys need it", in.at, m.UUID, d.Key, want)
		}
		if other := positions[d.Position]; other != "" && other != m.UUID {
			return fmt.Errorf("%s: messages %s and %s have the same position %s", in.at, other, m.UUID, d.Position)
		}
		positions[d.Position] = m.UUID
		m.Ack()
	}
	return in.drain()
}

func checkContent(got, want *message.Message) error {
	if want == nil {
		return fmt.Errorf("message %s came, and no message with this UUID was published", got.UUID)
	}
	if string(got.Payload) != string(want.Payload) {
		return fmt.Errorf("message %s has the payload %q, want %q", got.UUID, got.Payload, want.Payload)
	}
	for name, value := range want.Metadata {
		if got.Metadata.Get(name) != value {
			return fmt.Errorf("message %s has the metadata %s=%q, want %q", got.UUID, name, got.Metadata.Get(name), value)
		}
	}
	return nil
}

// checkMalformed reads a message that the transport can't decode.
func (r *transportRun) checkMalformed() error {
	if r.Malformed == nil {
		return notCheckedError{errors.New("TransportTest.Malformed is nil")}
	}
	_, in, err := r.startReading("a", pipeline.Flow{})
	if err != nil {
		return err
	}
	r.Malformed(r.t, r.topic)
	m, err := in.next()
	if err != nil {
		return fmt.Errorf("%w: want the malformed one, so that it can be a dead letter", err)
	}
	m.Ack()
	d := pipeline.DeliveryFrom(m.Context())
	switch {
	case d.Malformed == nil:
		return fmt.Errorf("%s: Delivery.Malformed is nil, want the error of decoding: the handler gets the message otherwise", in.at)
	case len(m.Payload) == 0 && len(m.Metadata) == 0:
		return fmt.Errorf("%s: the malformed message has no payload and no metadata, so its dead letter has nothing of it", in.at)
	}
	d.Malformed = nil
	if err := checkDeliveryOf(d, in.at); err != nil {
		return fmt.Errorf("%s: origin of the malformed message: %w", in.at, err)
	}
	return in.drain()
}

func checkDeliveryOf(d pipeline.Delivery, at pipeline.Endpoint) error {
	printable := !strings.ContainsFunc(d.String(), func(r rune) bool { return !unicode.IsPrint(r) })
	switch {
	case d.Kind != at.Kind || d.Source != at.Name || d.Group != at.Group:
		return fmt.Errorf("it is %s, want %s: the source describes itself so", pipeline.Endpoint{Kind: d.Kind, Name: d.Source, Group: d.Group}, at)
	case d.Position == "" || !printable:
		return fmt.Errorf("the position %q must be printable text: operators search for it", d.Position)
	case !strings.Contains(d.Position, d.Source):
		return fmt.Errorf("the position %q must include the source %q", d.Position, d.Source)
	case d.Delivered < 1:
		return fmt.Errorf("it says %d deliveries, want at least 1", d.Delivered)
	case d.Malformed != nil:
		return fmt.Errorf("the transport could not decode what it has published: %w", d.Malformed)
	}
	return nil
}

// checkNack nacks the first delivery of one of two messages.
func (r *transportRun) checkNack() error {
	a, in, err := r.startReading("a", pipeline.Flow{})
	if err != nil {
		return err
	}
	uuids, err := a.publish(2, "")
	if err != nil {
		return err
	}
	var first *pipeline.Delivery
	acked := map[string]bool{}
	for len(acked) < len(uuids) {
		m, err := in.next()
		if err != nil {
			return fmt.Errorf("%w (a message was nacked: %t)", err, first != nil)
		}
		d := pipeline.DeliveryFrom(m.Context())
		switch {
		case m.UUID != uuids[0]:
		case first == nil:
			first = &d
			m.Nack()
			continue
		case d.Position != first.Position:
			return fmt.Errorf("%s: the message had the position %s, and after the nack %s", in.at, first.Position, d.Position)
		case d.Delivered < first.Delivered:
			return fmt.Errorf("%s: the message had %d deliveries, and after the nack %d", in.at, first.Delivered, d.Delivered)
		}
		acked[m.UUID] = true
		m.Ack()
	}
	return in.drain()
}

// checkGroups reads with two groups.
func (r *transportRun) checkGroups() error {
	a, g, err := r.startReading("a", pipeline.Flow{})
	if err != nil {
		return err
	}
	h, err := a.read("h", pipeline.Flow{})
	if err != nil {
		return err
	}
	uuids, err := a.publish(5, "")
	if err != nil {
		return err
	}
	for _, in := range []*transportReader{g, h} {
		if err := in.collect(uuids, nil); err != nil {
			return err
		}
		if err := in.drain(); err != nil {
			return err
		}
	}
	return nil
}

// collect receives and acks messages until all of want have come. None of never may come.
func (r *transportReader) collect(want, never []string) error {
	missing := slices.Clone(want)
	for len(missing) > 0 {
		m, err := r.next()
		if err != nil {
			return fmt.Errorf("%w: %d of %d messages are missing", err, len(missing), len(want))
		}
		if slices.Contains(never, m.UUID) {
			return fmt.Errorf("%s: a message came again after its ack", r.at)
		}
		missing = slices.DeleteFunc(missing, func(uuid string) bool { return uuid == m.UUID })
		m.Ack()
	}
	return nil
}

// checkMembers has two members of a group hold messages at the same time.
func (r *transportRun) checkMembers() error {
	one := pipeline.Flow{Window: 1, MaxInFlight: 1}
	a, inA, err := r.startReading("a", one)
	if err != nil {
		return err
	}
	_, inB, err := r.startReading("b", one)
	if err != nil {
		return err
	}
	// The group may need some time to divide its work. It has done so when both have had a message.
	both := &transportPair{a: a, in: [2]*transportReader{inA, inB}, shared: map[string]bool{}}
	if err := both.run(false); err != nil {
		return err
	}
	both.shared = both.published
	return both.run(true)
}

// transportPair is two members of a group.
type transportPair struct {
	a         *transportMember
	in        [2]*transportReader
	published map[string]bool
	shared    map[string]bool // published before: they don't count
}

// run publishes messages until both members have had one. With hold, a member keeps its message until
// then, and no message may come to both.
func (p *transportPair) run(hold bool) error {
	p.published = map[string]bool{}
	owner, had := map[string]int{}, [2]bool{}
	var held []*message.Message
	tick, patience := time.NewTicker(transportTick), time.NewTimer(transportPatience)
	defer tick.Stop()
	defer patience.Stop()
	for !had[0] || !had[1] || len(owner) < len(p.published) {
		member := 0
		var m *message.Message
		select {
		case m = <-p.in[0].out:
		case m = <-p.in[1].out:
			member = 1
		case <-tick.C:
			if !had[0] || !had[1] {
				uuids, err := p.a.publish(1, "")
				if err != nil {
					return err
				}
				p.published[uuids[0]] = true
			}
			continue
		case <-patience.C:
			return fmt.Errorf("%s: two members did not share %d messages within %s: the first has had some: %t, the second: %t, missing: %d",
				p.in[0].at, len(p.published), transportPatience, had[0], had[1], len(p.published)-len(owner))
		}
		if m == nil {
			return fmt.Errorf("%s: the channel was closed before a Drain or Close", p.in[member].at)
		}
		if !p.published[m.UUID] {
			m.Ack()
			continue
		}
		if of, again := owner[m.UUID]; again && of != member && hold {
			return fmt.Errorf("%s: the same message came to two members of the group", p.in[0].at)
		}
		owner[m.UUID], had[member] = member, true
		held = append(held, m)
		if !hold || had[0] && had[1] {
			for _, m := range held {
				m.Ack()
			}
			held = nil
		}
	}
	return nil
}

// checkUnacked gives up a member that has a message.
func (r *transportRun) checkUnacked() error {
	a, in, err := r.startReading("a", pipeline.Flow{})
	if err != nil {
		return err
	}
	uuids, err := a.publish(1, "")
	if err != nil {
		return err
	}
	held, err := in.next()
	if err != nil {
		return err
	}
	defer held.Nack() // whoever still waits for it may end
	ended, cancel := context.WithCancel(r.ctx)
	cancel()
	if err := in.Drain(ended); err == nil {
		return fmt.Errorf("%s: Drain returned nil when its context had ended and a message was in flight", in.at)
	}
	if err := a.stop(); err != nil {
		return err
	}
	_, next, err := r.startReading("b", pipeline.Flow{})
	if err != nil {
		return err
	}
	if err := next.collect(uuids, nil); err != nil {
		return fmt.Errorf("a member had the message and was closed: %w", err)
	}
	return next.drain()
}

// checkDrain drains a member that has a message and others behind it.
func (r *transportRun) checkDrain() error {
	a, in, err := r.startReading("a", pipeline.Flow{Window: 1, MaxInFlight: 1})
	if err != nil {
		return err
	}
	all, err := a.publish(3, "key")
	if err != nil {
		return err
	}
	first, err := in.next()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), transportPatience)
	drained := make(chan error, 1)
	var draining sync.WaitGroup
	draining.Go(func() { drained <- in.Drain(ctx) })
	defer draining.Wait()
	defer cancel()
	defer first.Nack() // after an error; an ack stays an ack
	select {
	case err := <-drained:
		return errors.Join(fmt.Errorf("%s: Drain returned while a message was in flight", in.at), err)
	case <-time.After(transportSettle):
	}
	if err := first.Context().Err(); err != nil {
		return fmt.Errorf("%s: Drain ended the context of a message in flight: %w", in.at, err)
	}
	first.Ack()
	// What comes now began before the Drain took effect. It is finished, and it is replaced, so that a
	// transport that goes on reading never ends.
	begun, patience := []string{first.UUID}, time.NewTimer(transportPatience)
	defer patience.Stop()
	for open := true; open; {
		var m *message.Message
		select {
		case m, open = <-in.out:
		case <-patience.C:
			return fmt.Errorf("%s: the channel was not closed within %s after Drain, with every message acked", in.at, transportPatience)
		}
		if !open {
			break
		}
		if begun = append(begun, m.UUID); len(begun) > transportBegun {
			return fmt.Errorf("%s: %d messages have begun after Drain was called", in.at, len(begun))
		}
		more, err := a.publish(1, "key")
		if err != nil {
			return err
		}
		all = append(all, more...)
		m.Ack()
	}
	if err := <-drained; err != nil {
		return fmt.Errorf("%s: Drain: %w", in.at, err)
	}
	if err := in.drain(); err != nil {
		return fmt.Errorf("a second time: %w", err)
	}
	if err := a.stop(); err != nil {
		return err
	}
	return r.checkDrained(begun, slices.DeleteFunc(all, func(uuid string) bool { return slices.Contains(begun, uuid) }))
}

// transportBegun is how many messages may begin while a Drain takes effect, which needs no more than
// that a goroutine runs.
const transportBegun = 100

// checkDrained looks for the messages after the first member was drained: another one gets those that
// had not begun, and no member those that it has acked, not even the first one after a restart.
func (r *transportRun) checkDrained(acked, rest []string) error {
	for _, name := range []string{"b", "a"} {
		m, in, err := r.startReading(name, pipeline.Flow{Window: 1, MaxInFlight: 1})
		if err != nil {
			return err
		}
		last, err := m.publish(1, "key")
		if err != nil {
			return err
		}
		if err := in.collect(append(rest, last...), acked); err != nil {
			return fmt.Errorf("after a drain, as instance %s: %w", name, err)
		}
		acked, rest = slices.Concat(acked, rest, last), nil
		if err := in.drain(); err != nil {
			return err
		}
		if err := m.stop(); err != nil {
			return err
		}
	}
	return nil
}

// checkDue has a message retried by two instances, one after the other.
func (r *transportRun) checkDue() error {
	topics, _ := r.New()
	for _, end := range []any{topics.Sink(r.topic + "-retry"), topics.Source(r.topic+"-retry", r.topic+"-retry")} {
		d, ok := end.(pipeline.Delayer)
		if !ok {
			return notCheckedError{errors.New("the transport is no pipeline.Delayer, so it has no retry topics")}
		}
		if err := d.Delays(); err != nil {
			return notCheckedError{fmt.Errorf("the topic can't be a retry topic: %w", err)}
		}
	}
	runs := make(chan time.Time, 100)
	plugin := func(topics pipeline.Topics) pipeline.Plugin {
		return &retrying{topics: topics, topic: r.topic, runs: runs}
	}
	m, err := r.start("a", plugin)
	if err != nil {
		return err
	}
	if _, err := m.publish(1, "key"); err != nil {
		return err
	}
	var last time.Time
	for run := range 1 + retries {
		select {
		case at := <-runs:
			if wait := at.Sub(last); run > 0 && wait < retryWait {
				return fmt.Errorf("topic %s-retry: retry %d came after %s, want no sooner than after %s", r.topic, run, wait, retryWait)
			}
			last = at
		case <-time.After(transportPatience):
			return fmt.Errorf("topic %s-retry: the message was not retried within %s after run %d", r.topic, transportPatience, run)
		}
		if run > 0 {
			continue
		}
		if err := m.stop(); err != nil { // the record waits without a reader
			return err
		}
		if m, err = r.start("b", plugin); err != nil {
			return err
		}
	}
	return m.stop()
}
