package pipelinetest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// TransportTest is how Transport reaches a transport. New and Topic are required.
type TransportTest struct {
	// New returns the transport as a new process has it, with the plugins to run: it comes after the
	// plugins that it depends on. All of them reach the same messages. The test starts and stops them,
	// several at a time, under names of instances that no other test has.
	New func() (pipeline.Topics, []pipeline.Plugin)
	// Topic returns the name of a topic that is empty, as is the topic of this name with the suffix
	// -retry. The test also uses groups with names of its own, which begin with that of the topic.
	Topic func(t testing.TB) string
	// Malformed publishes a message to a topic that the transport can't decode, such as a file that is no
	// JSON. Nil: the test does not check Delivery.Malformed, and logs that. Set it unless every sequence of
	// bytes is a message of the transport.
	Malformed func(t testing.TB, topic string)
	// Bubble runs each case in a bubble of testing/synctest, where waiting takes no time. Set it when
	// the transport needs no network.
	Bubble bool
}

// Transport checks what routes rely on in a transport: its messages and their Delivery, redelivery,
// groups and their members, Drain, every limit of a Flow, and the due time of a retry topic. It logs
// what it did not check. That is the due time where a topic is no pipeline.Delayer, because Conformance
// checks that such a topic is refused as a retry topic. Call Transport with a server where there is one, for example with a real broker and an
// embedded one. What a transport takes to notice a dead member lengthens the test, so set it to a few
// seconds.
func Transport(t *testing.T, tt TransportTest) {
	t.Helper()
	require.NoError(t, tt.validate())
	parent := t
	for _, c := range transportCases() {
		t.Run(c.name, func(t *testing.T) {
			check := func(t *testing.T) {
				err := tt.check(t, c)
				if reason, skip := errors.AsType[notCheckedError](err); skip {
					parent.Logf("not checked: %s: %s", c.name, reason)
					t.Skip(reason)
				}
				require.NoError(t, err)
			}
			if tt.Bubble {
				synctest.Test(t, check)
			} else {
				check(t)
			}
		})
	}
}

// validate reports every field that is missing.
func (tt TransportTest) validate() error {
	var p setting.Problems
	p.Check(tt.New != nil, "TransportTest.New", "is required")
	p.Check(tt.Topic != nil, "TransportTest.Topic", "is required")
	return p.Err()
}

// transportCase is one of the rules for transports.
type transportCase struct {
	name  string
	check func(*transportRun) error
}

func transportCases() []transportCase {
	return []transportCase{
		{"a message comes as it was published and with its origin", (*transportRun).checkOrigin},
		{"a message that can't be decoded says so", (*transportRun).checkMalformed},
		{"a nacked message comes again", (*transportRun).checkNack},
		{"each group receives every message", (*transportRun).checkGroups},
		{"the members of a group share its messages", (*transportRun).checkMembers},
		{"a message without an ack comes to another member", (*transportRun).checkUnacked},
		{"a drain finishes what has begun and leaves the rest", (*transportRun).checkDrain},
		{"a closed gate stops reading", (*transportRun).checkGate},
		{"an order is kept", (*transportRun).checkOrder},
		{"no more messages are in flight than the flow allows", (*transportRun).checkLimits},
		{"a retry comes no sooner than it is due", (*transportRun).checkDue},
	}
}

// notCheckedError says why a case does not concern a transport.
type notCheckedError struct{ error }

const (
	transportPatience = 2 * time.Minute       // for each thing that must happen
	transportTick     = 20 * time.Millisecond // between two messages while something is waited for
	// transportSettle is how long a transport has the opportunity to break a rule. A slow machine may
	// miss the fault, but never finds one that is not there.
	transportSettle = 100 * time.Millisecond
)

// check runs one case. Whatever it has started has ended when it returns.
func (tt TransportTest) check(t testing.TB, c transportCase) error {
	ctx, cancel := context.WithTimeout(t.Context(), 5*transportPatience)
	defer cancel()
	r := &transportRun{TransportTest: tt, t: t, ctx: ctx, log: Logger(t), topic: tt.Topic(t), id: watermill.NewULID()}
	err := c.check(r)
	for _, m := range r.members {
		err = errors.Join(err, m.stop())
	}
	return err
}

// transportRun is one run of a case.
type transportRun struct {
	TransportTest
	t       testing.TB
	ctx     context.Context
	log     *slog.Logger
	topic   string
	id      string // of the run, in names of instances
	members []*transportMember
}

// transportMember is an instance of the transport that runs.
type transportMember struct {
	run     *transportRun
	topics  pipeline.Topics
	runtime *pipeline.Runtime
	readers []*transportReader
}

// start starts an instance. The same name stands for a restart of the same instance.
func (r *transportRun) start(name string, more ...func(pipeline.Topics) pipeline.Plugin) (*transportMember, error) {
	topics, plugins := r.New()
	for _, plugin := range more {
		plugins = append(plugins, plugin(topics))
	}
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "conformance-" + name + "-" + r.id, Logger: r.log}, plugins...)
	if err != nil {
		return nil, fmt.Errorf("register: %w", err)
	}
	chain := middleware.New(reg, middleware.Options{})
	m := &transportMember{run: r, topics: topics, runtime: pipeline.NewRuntime(reg, pipeline.RuntimeOptions{
		Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}, StopTimeout: transportPatience,
	})}
	ctx, cancel := context.WithTimeout(r.ctx, transportPatience)
	defer cancel()
	if err := m.runtime.Start(ctx); err != nil {
		return nil, fmt.Errorf("start: %w", err)
	}
	r.members = append(r.members, m)
	return m, nil
}

// stop closes what the member reads, and stops it. Idempotent.
func (m *transportMember) stop() error {
	var errs []error
	for _, r := range m.readers {
		errs = append(errs, r.Close())
	}
	m.readers = nil
	return errors.Join(append(errs, m.runtime.Stop(context.Background()))...)
}

// transportReader is an open source.
type transportReader struct {
	pipeline.Subscription
	run *transportRun
	at  pipeline.Endpoint
	out <-chan *message.Message
}

// read opens the topic for a group of it.
func (m *transportMember) read(group string, flow pipeline.Flow) (*transportReader, error) {
	source := m.topics.Source(m.run.topic, m.run.topic+"-"+group)
	ctx, cancel := context.WithTimeout(m.run.ctx, transportPatience)
	defer cancel()
	sub, err := source.Open(ctx, flow)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", source.Describe(), err)
	}
	r := &transportReader{Subscription: sub, run: m.run, at: source.Describe()}
	m.readers = append(m.readers, r)
	if r.out, err = sub.Subscribe(context.WithoutCancel(m.run.ctx), ""); err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", r.at, err)
	}
	return r, nil
}

// startReading starts an instance that reads for the group "g".
func (r *transportRun) startReading(name string, flow pipeline.Flow) (*transportMember, *transportReader, error) {
	m, err := r.start(name)
	if err != nil {
		return nil, nil, err
	}
	reader, err := m.read("g", flow)
	return m, reader, err
}

// next returns the next message.
func (r *transportReader) next() (*message.Message, error) {
	patience := time.NewTimer(transportPatience)
	defer patience.Stop()
	select {
	case m, open := <-r.out:
		if !open {
			return nil, fmt.Errorf("%s: the channel was closed before a Drain or Close", r.at)
		}
		return m, nil
	case <-patience.C:
		return nil, fmt.Errorf("%s: no message came within %s", r.at, transportPatience)
	}
}

// drain drains the reader in order.
func (r *transportReader) drain() error {
	ctx, cancel := context.WithTimeout(context.Background(), transportPatience)
	defer cancel()
	if err := r.Drain(ctx); err != nil {
		return fmt.Errorf("%s: Drain: %w", r.at, err)
	}
	select {
	case _, open := <-r.out:
		if open {
			return fmt.Errorf("%s: a message came after Drain had returned", r.at)
		}
		return nil
	default:
		return fmt.Errorf("%s: the channel is open after Drain has returned", r.at)
	}
}

// publish publishes n messages and returns their UUIDs. An empty key gives each message one of its own.
func (m *transportMember) publish(n int, key string) (uuids []string, err error) {
	for range n {
		uuid := watermill.NewULID()
		msg := message.NewMessage(uuid, []byte(uuid))
		msg.Metadata.Set(pipeline.MetaKey, cmp.Or(key, uuid))
		if err := m.send(msg); err != nil {
			return uuids, err
		}
		uuids = append(uuids, uuid)
	}
	return uuids, nil
}

func (m *transportMember) send(msg *message.Message) error {
	ctx, cancel := context.WithTimeout(m.run.ctx, transportPatience)
	defer cancel()
	sink := m.topics.Sink(m.run.topic)
	if err := sink.Publish(ctx, msg); err != nil {
		return fmt.Errorf("publish to %s: %w", sink.Describe(), err)
	}
	return nil
}
