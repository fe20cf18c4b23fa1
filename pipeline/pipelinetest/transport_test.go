package pipelinetest_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

func directoryTest(t *testing.T, of func(*directory) pipeline.Topics) pipelinetest.TransportTest {
	root := t.TempDir()
	return pipelinetest.TransportTest{
		New: func() (pipeline.Topics, []pipeline.Plugin) {
			d := &directory{root: root}
			return of(d), []pipeline.Plugin{d}
		},
		Topic:     func(testing.TB) string { return watermill.NewULID() },
		Malformed: func(t testing.TB, topic string) { malformedFile(t, root, topic) },
		Bubble:    true,
	}
}

// malformedFile publishes a file that is no message.
func malformedFile(t testing.TB, root, topic string) {
	t.Helper()
	dir := filepath.Join(root, topic)
	require.NoError(t, os.MkdirAll(dir, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".part"), []byte(`{"uuid":`), 0o600))
	require.NoError(t, os.Rename(filepath.Join(dir, ".part"), filepath.Join(dir, "1")))
}

func TestTransport(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	pipelinetest.Transport(t, pipelinetest.TransportTest{
		New: func() (pipeline.Topics, []pipeline.Plugin) {
			d := &directory{root: root}
			return d, []pipeline.Plugin{d}
		},
		Topic:     func(testing.TB) string { return watermill.NewULID() },
		Malformed: func(t testing.TB, topic string) { malformedFile(t, root, topic) },
		Bubble:    true,
	})
}

func TestTransportNamesTheFieldsThatAreMissing(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		spoil func(*pipelinetest.TransportTest)
		want  []string
	}{
		"nothing is missing": {func(*pipelinetest.TransportTest) {}, nil},
		"no bubble":          {func(tt *pipelinetest.TransportTest) { tt.Bubble = false }, nil},
		"no New":             {func(tt *pipelinetest.TransportTest) { tt.New = nil }, []string{"TransportTest.New: is required"}},
		"no Topic":           {func(tt *pipelinetest.TransportTest) { tt.Topic = nil }, []string{"TransportTest.Topic: is required"}},
		"nothing is there": {
			func(tt *pipelinetest.TransportTest) { *tt = pipelinetest.TransportTest{} },
			[]string{"TransportTest.New: is required", "TransportTest.Topic: is required"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test := directoryTest(t, func(d *directory) pipeline.Topics { return d })
			tt.spoil(&test)
			err := test.Validate()
			if tt.want == nil {
				require.NoError(t, err)
			}
			for _, want := range tt.want {
				require.ErrorContains(t, err, want)
			}
		})
	}
}

// undelayed is a directory whose topics are no pipeline.Delayer.
type undelayed struct{ *directory }

func (u undelayed) Source(topic, group string) pipeline.Source {
	return struct{ pipeline.Source }{u.directory.Source(topic, group)}
}

func (u undelayed) Sink(topic string) pipeline.Sink {
	return struct{ pipeline.Sink }{u.directory.Sink(topic)}
}

func TestTransportSaysWhatItDidNotCheck(t *testing.T) {
	t.Parallel()
	tt := directoryTest(t, func(d *directory) pipeline.Topics { return undelayed{d} })
	tt.Malformed = nil
	for name, want := range map[string]string{
		"a retry comes no sooner than it is due":  "the transport is no pipeline.Delayer, so it has no retry topics",
		"a message that can't be decoded says so": "TransportTest.Malformed is nil",
	} {
		err := pipelinetest.CheckTransport(t, tt, name)
		require.True(t, pipelinetest.IsNotChecked(err), "%v", err)
		require.EqualError(t, err, want)
	}
}

func TestConformanceOfATransport(t *testing.T) {
	t.Parallel()
	pipelinetest.Conformance(t, func() []pipeline.Plugin { return []pipeline.Plugin{&directory{root: t.TempDir()}} })
}

// fault is what a transport does wrong. The zero value does nothing wrong.
type fault struct {
	want    string                          // the error of the case
	publish func(*message.Message)          // changes a message before it is written
	deliver func(*pipeline.Delivery)        // changes the delivery of a message
	receive func(*message.Message)          // changes a message before it is delivered
	group   func(group string) string       // returns the group that is read instead
	early   bool                            // acks a message before it is delivered
	settle  func(acked, draining bool) bool // returns whether the message is acked
	flow    func(*pipeline.Flow)            // changes the flow of the route
	drain   func(ctx context.Context) error // instead of a Drain
}

// A transport with a fault fails the case that is about it.
func TestATransportThatBreaksARule(t *testing.T) {
	t.Parallel()
	position := func(change func(pipeline.Delivery) string) func(*pipeline.Delivery) {
		return func(d *pipeline.Delivery) { d.Position = change(*d) }
	}
	var members atomic.Int64
	cases := map[string]map[string]fault{
		"a message comes as it was published and with its origin": {
			"payload is lost":      {want: `has the payload ""`, publish: func(m *message.Message) { m.Payload = nil }},
			"metadata is lost":     {want: "has the metadata note=", publish: func(m *message.Message) { delete(m.Metadata, "note") }},
			"other UUID":           {want: "no message with this UUID was published", publish: func(m *message.Message) { m.UUID = "1" }},
			"no origin":            {want: "the source describes itself so", deliver: func(d *pipeline.Delivery) { *d = pipeline.Delivery{} }},
			"binary position":      {want: "must be printable", deliver: position(func(d pipeline.Delivery) string { return d.Position + "\x00" })},
			"number as a position": {want: "must include the source", deliver: position(func(pipeline.Delivery) string { return "12" })},
			"one position":         {want: "have the same position", deliver: position(func(d pipeline.Delivery) string { return d.Source })},
			"no key":               {want: `has the Origin.Key "", want "key `, deliver: func(d *pipeline.Delivery) { d.Key = "" }},
			"no deliveries":        {want: "0 deliveries", deliver: func(d *pipeline.Delivery) { d.Delivered = 0 }},
			"malformed":            {want: "could not decode what it has published: x", deliver: func(d *pipeline.Delivery) { d.Malformed = errors.New("x") }},
		},
		"a message that can't be decoded says so": {
			"no error":      {want: "Delivery.Malformed is nil", deliver: func(d *pipeline.Delivery) { d.Malformed = nil }},
			"empty":         {want: "has no payload and no metadata", receive: func(m *message.Message) { m.Payload = nil }},
			"no position":   {want: "must be printable", deliver: position(func(pipeline.Delivery) string { return "" })},
			"it is skipped": {want: "want the malformed one", flow: func(f *pipeline.Flow) { f.Gate = always(false) }},
		},
		"a nacked message comes again": {
			"a nack is an ack": {want: "no message came", settle: func(bool, bool) bool { return true }},
			"other position":   {want: "had the position", deliver: position(func(d pipeline.Delivery) string { return fmt.Sprint(d.Position, d.Delivered) })},
			"fewer deliveries": {want: "and after the nack 9", deliver: func(d *pipeline.Delivery) { d.Delivered = 11 - d.Delivered }},
		},
		"each group receives every message": {
			"one group": {want: "of 5 messages are missing", group: func(string) string { return "common" }},
		},
		"the members of a group share its messages": {
			"a group per member": {want: "the same message came to two members", group: func(group string) string { return fmt.Sprint(group, members.Add(1)) }},
		},
		"a message without an ack comes to another member": {
			"acks before the handler": {want: "1 of 1 messages are missing", early: true, drain: func(ctx context.Context) error { return ctx.Err() }},
			"claims to be drained":    {want: "Drain returned nil", drain: func(context.Context) error { return nil }},
		},
		"a drain finishes what has begun and leaves the rest": {
			"does not wait":                {want: "Drain returned while a message was in flight", drain: func(context.Context) error { return nil }},
			"goes on reading":              {want: "messages have begun after Drain was called", drain: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }},
			"loses the last ack":           {want: "a message came again after its ack", settle: func(acked, draining bool) bool { return acked && !draining }},
			"loses what it has read ahead": {want: "messages are missing", early: true},
		},
		"a closed gate stops reading": {
			"ignores the gate": {want: "a message came while Flow.Gate returned false", flow: func(f *pipeline.Flow) { f.Gate = nil }},
			"calls it once":    {want: "Flow.Gate was not called", flow: func(f *pipeline.Flow) { f.Gate = always(f.Gate()) }},
			"never opens":      {want: "Flow.Gate returned false at first, and then true", flow: gate(func(bool, bool) bool { return false })},
			"never closes":     {want: "messages came after Flow.Gate had returned true and then false", flow: gate(func(open, closedAgain bool) bool { return open || closedAgain })},
			"opens only once":  {want: "Flow.Gate returned true again", flow: gate(func(open, closedAgain bool) bool { return open && !closedAgain })},
		},
		"an order is kept": {
			"none of the keys":              {want: "with Flow.Order key: ", flow: without(pipeline.OrderKey)},
			"none of the partition":         {want: "with Flow.Order partition: ", flow: without(pipeline.OrderPartition)},
			"a nacked message is overtaken": {want: "message 2 came before message 1, which was nacked: true", settle: func(bool, bool) bool { return true }},
		},
		"no more messages are in flight than the flow allows": {
			"no window": {want: "with Flow.Window 2: ", flow: func(f *pipeline.Flow) { f.Window = 0 }},
			"no limit":  {want: "with Flow.MaxInFlight 2: ", flow: func(f *pipeline.Flow) { f.MaxInFlight = 0 }},
			"one more":  {want: "3 messages are in flight", flow: func(f *pipeline.Flow) { f.Window++ }},
		},
		"a retry comes no sooner than it is due": {
			"no due time": {want: "retry 1 came after", publish: func(m *message.Message) { delete(m.Metadata, pipeline.MetaDue) }},
		},
	}
	for _, name := range pipelinetest.TransportCases() {
		require.NotEmpty(t, cases[name], "the case %q has no transport that fails it", name)
		for what, f := range cases[name] {
			t.Run(name+"/"+what, func(t *testing.T) {
				t.Parallel()
				tt := directoryTest(t, func(d *directory) pipeline.Topics { return faulty{d, f} })
				synctest.Test(t, func(t *testing.T) {
					require.ErrorContains(t, pipelinetest.CheckTransport(t, tt, name), f.want)
				})
			})
		}
	}
	t.Run("without a fault", func(t *testing.T) {
		t.Parallel()
		pipelinetest.Transport(t, directoryTest(t, func(d *directory) pipeline.Topics { return faulty{d, fault{}} }))
	})
}

func always(open bool) func() bool { return func() bool { return open } }

// gate returns what a transport makes of a gate. closedAgain says whether the gate has
// closed after it was open.
func gate(read func(open, closedAgain bool) bool) func(*pipeline.Flow) {
	return func(f *pipeline.Flow) {
		is, wasOpen, closedAgain := f.Gate, false, false
		f.Gate = func() bool {
			open := is()
			closedAgain = closedAgain || wasOpen && !open
			wasOpen = wasOpen || open
			return read(open, closedAgain)
		}
	}
}

func without(order pipeline.Order) func(*pipeline.Flow) {
	return func(f *pipeline.Flow) {
		if f.Order == order {
			f.Order = pipeline.OrderNone
		}
	}
}

// faulty is a directory with a fault.
type faulty struct {
	*directory
	fault
}

func (f faulty) Sink(topic string) pipeline.Sink { return faultySink{f.open(topic, ""), f.fault} }

func (f faulty) Source(topic, group string) pipeline.Source {
	read := group
	if f.group != nil {
		read = f.group(group)
	}
	return faultySource{f.open(topic, read), f.fault, group}
}

type faultySink struct {
	folder
	fault
}

func (s faultySink) Publish(ctx context.Context, msgs ...*message.Message) error {
	for i, m := range msgs {
		if s.publish != nil {
			msgs[i] = m.Copy()
			s.publish(msgs[i])
		}
	}
	return s.folder.Publish(ctx, msgs...)
}

type faultySource struct {
	folder
	fault
	group string
}

func (s faultySource) Describe() pipeline.Endpoint {
	at := s.at
	at.Group = s.group
	return at
}

func (s faultySource) Open(ctx context.Context, flow pipeline.Flow) (pipeline.Subscription, error) {
	if s.flow != nil {
		s.flow(&flow)
	}
	inner, err := s.folder.Open(ctx, flow)
	f := &faultySubscription{Subscription: inner, source: s}
	f.draining, f.drained = context.WithCancel(context.Background())
	f.closing, f.closed = context.WithCancel(context.Background())
	return f, err
}

// faultySubscription passes the messages of a correct one on.
type faultySubscription struct {
	pipeline.Subscription
	source            faultySource
	draining, closing context.Context
	drained, closed   context.CancelFunc
	relayed           chan struct{} // closed when the channel is
	inFlight          sync.WaitGroup
}

func (s *faultySubscription) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	in, err := s.Subscription.Subscribe(ctx, topic)
	if s.source.early {
		in = readAhead(in)
	}
	out := make(chan *message.Message)
	s.relayed = make(chan struct{})
	go func() {
		defer close(s.relayed)
		defer close(out)
		for m := range in {
			if s.source.early {
				time.Sleep(time.Second) // in the bubble: until everything was read
			}
			s.relay(m, out)
		}
	}()
	return out, err
}

// readAhead acks messages before they are delivered.
func readAhead(in <-chan *message.Message) <-chan *message.Message {
	queue := make(chan *message.Message, 100)
	go func() {
		defer close(queue)
		for m := range in {
			ahead := m.Copy()
			ahead.SetContext(pipeline.WithDelivery(context.Background(), pipeline.DeliveryFrom(m.Context())))
			queue <- ahead
			m.Ack()
		}
	}()
	return queue
}

func (s *faultySubscription) relay(m *message.Message, out chan<- *message.Message) {
	d, passed := pipeline.DeliveryFrom(m.Context()), m.Copy()
	d.Group = s.source.group
	if s.source.deliver != nil {
		s.source.deliver(&d)
	}
	if s.source.receive != nil {
		s.source.receive(passed)
	}
	passed.SetContext(pipeline.WithDelivery(m.Context(), d))
	if s.draining.Err() != nil {
		m.Nack() // it has not begun
		return
	}
	select {
	case out <- passed:
	case <-s.draining.Done():
		m.Nack()
		return
	}
	s.inFlight.Go(func() {
		acked := false
		select {
		case <-passed.Acked():
			acked = true
		case <-passed.Nacked():
		case <-s.closing.Done():
		}
		if s.source.settle != nil {
			acked = s.source.settle(acked, s.draining.Err() != nil)
		}
		if acked {
			m.Ack()
		} else {
			m.Nack()
		}
	})
}

func (s *faultySubscription) Drain(ctx context.Context) error {
	if s.source.drain != nil {
		return s.source.drain(ctx)
	}
	s.drained()
	err := s.Subscription.Drain(ctx)
	if err == nil {
		<-s.relayed
		s.inFlight.Wait()
	}
	return err
}

func (s *faultySubscription) Close() error {
	s.drained()
	s.closed()
	err := s.Subscription.Close()
	<-s.relayed
	s.inFlight.Wait()
	return err
}
