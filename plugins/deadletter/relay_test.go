package deadletter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The meters of sarama never stop.
		goleak.IgnoreTopFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// box is an outbox in memory, as the interface Outbox requires.
type box struct {
	mu      sync.Mutex
	entries []Entry
	rounds  int
	broken  error
}

func (b *box) add(entries ...Entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.entries = append(b.entries, entries...)
}

func (b *box) breakWith(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
}

func (b *box) left() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.entries)
}

func (b *box) asked() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rounds
}

func (b *box) Relay(ctx context.Context, limit int, publish func(context.Context, []Entry) error) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.rounds++
	if b.broken != nil {
		return 0, b.broken
	}
	if len(b.entries) == 0 {
		return 0, nil
	}
	batch := slices.Clone(b.entries[:min(limit, len(b.entries))])
	err := publish(ctx, batch)
	var partial *pipeline.PartialError
	if err != nil && !errors.As(err, &partial) {
		return 0, err
	}
	b.entries = slices.Clone(b.entries[len(batch):])
	n := 0
	for i, letter := range batch {
		if partial != nil && partial.Failed[i] != nil {
			b.entries = append(b.entries, letter)
			continue
		}
		n++
	}
	return n, err
}

// topics is a broker in memory that refuses payloads that say so.
type topics struct {
	kind      string
	mu        sync.Mutex
	calls     int
	published map[string][]*message.Message
	down      error
	parts     bool          // names the messages that it refuses, and takes the others
	limit     int           // bytes of a record; 0: none
	block     chan struct{} // when set, publishes wait until it is closed or their context ends
}

func newTopics() *topics { return &topics{kind: "kafka", published: map[string][]*message.Message{}} }

func (t *topics) Kind() string { return t.kind }

func (t *topics) Sink(topic string) pipeline.Sink { return topicSink{t, topic} }

func (t *topics) setDown(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.down = err
}

func (t *topics) called() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.calls
}

func (t *topics) payloads(topic string) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []string
	for _, m := range t.published[topic] {
		out = append(out, string(m.Payload))
	}
	return out
}

var errTooLarge = errors.New("message too large")

type topicSink struct {
	*topics
	topic string
}

func (s topicSink) Describe() pipeline.Endpoint {
	return pipeline.Endpoint{Kind: "kafka", Name: s.topic}
}

func (s topicSink) Delays() error { return nil }

func (s topicSink) Publish(ctx context.Context, msgs ...*message.Message) error {
	s.mu.Lock()
	block := s.block
	s.mu.Unlock()
	if block != nil {
		select {
		case <-block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.down != nil {
		return s.down
	}
	errs := make([]error, len(msgs))
	for i, m := range msgs {
		size := len(m.Payload)
		for name, value := range m.Metadata {
			size += len(name) + len(value)
		}
		if s.limit > 0 && size > s.limit {
			errs[i] = pipeline.Permanent(fmt.Errorf("%d bytes: %w", size, errTooLarge))
		} else if strings.HasPrefix(string(m.Payload), "poison") {
			errs[i] = errTooLarge
		}
	}
	if err := errors.Join(errs...); err != nil && !s.parts {
		return err
	}
	for i, m := range msgs {
		if errs[i] == nil {
			s.published[s.topic] = append(s.published[s.topic], m)
		}
	}
	return pipeline.PublishError(errs)
}

func newEntry(topic, payload string) Entry {
	return Entry{Topic: topic, DeadLetter: pipeline.DeadLetter{Payload: []byte(payload), Class: "rejected"}}
}

func entriesTo(topic string, n int) []Entry {
	out := make([]Entry, n)
	for i := range out {
		out[i] = newEntry(topic, fmt.Sprintf("%s-%d", topic, i))
	}
	return out
}

// running starts a relay of b, in a bubble, and returns its plugin and what it logs.
func running(t *testing.T, b Outbox, to Transport) (*Plugin, *pipelinetest.Buffer) {
	t.Helper()
	logged := &pipelinetest.Buffer{}
	p := New(to)
	_, err := pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(logged, nil))}, p)
	require.NoError(t, err)
	service := p.Relay("test", b)
	require.NoError(t, service.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, service.Stop(context.Background())) })
	return p, logged
}

func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, to := &box{}, newTopics()
		b.add(entriesTo("a", 250)...)
		b.add(entriesTo("b", 5)...)
		p, logged := running(t, b, to)
		synctest.Wait()
		require.Zero(t, b.left(), "back to back, without a pause")
		require.Len(t, to.payloads("a"), 250)
		require.True(t, slices.IsSortedFunc(to.payloads("a"), func(x, y string) int { return len(x) - len(y) }), "in order")
		require.Equal(t, []string{"b-0", "b-1", "b-2", "b-3", "b-4"}, to.payloads("b"))
		require.InDelta(t, 250, testutil.ToFloat64(p.metrics.published.WithLabelValues("a")), 0)
		require.NotContains(t, logged.String(), "can't be relayed")

		before := b.asked()
		b.add(newEntry("a", "late"))
		time.Sleep(p.config.Interval)
		synctest.Wait()
		require.Equal(t, "late", to.payloads("a")[250], "found within an interval")
		time.Sleep(10 * p.config.Interval)
		synctest.Wait()
		require.LessOrEqual(t, b.asked()-before, 13, "an empty outbox is read once per interval")
	})
}

func TestRelayKeepsEntriesWhileTheBrokerIsUnavailable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, to := &box{}, newTopics()
		to.setDown(errors.New("no broker"))
		b.add(entriesTo("a", 50)...)
		p, logged := running(t, b, to)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 50, b.left())
		require.Equal(t, 1, strings.Count(logged.String(), "dead letters can't be relayed"), logged)
		require.Contains(t, logged.String(), "no broker")
		require.InDelta(t, 1, testutil.ToFloat64(p.metrics.failing.WithLabelValues("test")), 0)
		require.LessOrEqual(t, b.asked(), 12, "the delay increases")
		require.LessOrEqual(t, to.called(), b.asked()*(1+maxFailuresInARow), "an unavailable broker is not called for each entry")

		to.setDown(nil)
		time.Sleep(p.config.MaxBackoff)
		synctest.Wait()
		require.Zero(t, b.left())
		require.Len(t, to.payloads("a"), 50)
		require.Equal(t, 1, strings.Count(logged.String(), "dead letters are relayed again"), logged)
		require.InDelta(t, 0, testutil.ToFloat64(p.metrics.failing.WithLabelValues("test")), 0)
	})
}

func TestRelayWhenTheOutboxFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, to := &box{}, newTopics()
		b.breakWith(errors.New("no database"))
		b.add(entriesTo("a", 3)...)
		p, logged := running(t, b, to)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(logged.String(), "no database"), logged)
		b.breakWith(nil)
		time.Sleep(p.config.MaxBackoff)
		synctest.Wait()
		require.Len(t, to.payloads("a"), 3)
	})
}

// While a relay fails, the log has the reason of the moment: another one once a minute, and what a person must repair at once.
func TestAnotherReasonIsLoggedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, to := &box{}, newTopics()
		b.breakWith(errors.New("no database"))
		b.add(newEntry("a", "poison"))
		b.add(entriesTo("a", 3)...)
		p, logged := running(t, b, to)
		lines := func(text string) int { return strings.Count(logged.String(), text) }
		time.Sleep(10 * time.Minute)
		b.breakWith(errors.New("no right on the table"))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		require.Equal(t, []int{1, 1}, []int{lines("no database"), lines("no right on the table")}, logged)
		b.breakWith(nil)
		time.Sleep(p.config.MaxBackoff)
		synctest.Wait()
		require.Len(t, to.payloads("a"), 3)
		require.Equal(t, 1, lines("level=ERROR msg=\"dead letters can't be relayed\""), logged)
		require.Equal(t, 1, lines(errTooLarge.Error()), logged)

		for n := range 60 { // the reasons alternate
			b.breakWith(fmt.Errorf("reason %d", n%2))
			time.Sleep(p.config.MaxBackoff)
		}
		require.LessOrEqual(t, lines("reason"), 30, logged)
	})
}

// hanging is an outbox whose server does not answer at first, as one that is frozen, or from which the name has moved.
type hanging struct {
	*box
	calls int
}

func (h *hanging) Relay(ctx context.Context, limit int, publish func(context.Context, []Entry) error) (int, error) {
	if h.calls++; h.calls <= 2 {
		<-ctx.Done()
		return 0, ctx.Err()
	}
	return h.box.Relay(ctx, limit, publish)
}

func TestARelayGivesUpADatabaseThatDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, to := &hanging{box: &box{}}, newTopics()
		b.add(entriesTo("a", 3)...)
		p, logged := running(t, b, to)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(logged.String(), "dead letters can't be relayed"), logged)
		require.InDelta(t, 1, testutil.ToFloat64(p.metrics.failing.WithLabelValues("test")), 0)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Len(t, to.payloads("a"), 3)
		require.Contains(t, logged.String(), "dead letters are relayed again")
	})
}

func TestRelayOutlivesAPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		o := outboxFunc(func() (int, error) {
			if calls++; calls == 1 {
				panic("nil row")
			}
			return 0, nil
		})
		_, logged := running(t, o, newTopics())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		require.Contains(t, logged.String(), "panic: nil row")
		require.Greater(t, calls, 1)
	})
}

type outboxFunc func() (int, error)

func (f outboxFunc) Relay(context.Context, int, func(context.Context, []Entry) error) (int, error) {
	return f()
}

// A dead letter that the broker refuses stays in the outbox, and is logged once.
func TestARefusedDeadLetterDoesNotBlockTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, to := &box{}, newTopics()
		b.add(newEntry("a", "poison"), newEntry("", "nowhere"))
		b.add(entriesTo("a", 5)...)
		b.add(entriesTo("b", 5)...)
		p, logged := running(t, b, to)
		synctest.Wait()
		require.Len(t, to.payloads("a"), 5)
		require.Len(t, to.payloads("b"), 5)
		require.Equal(t, 2, b.left())
		require.Contains(t, logged.String(), "level=ERROR", "a person must look at it")
		require.Contains(t, logged.String(), errTooLarge.Error())

		b.add(entriesTo("b", 1)...)
		time.Sleep(2 * p.config.MaxBackoff)
		synctest.Wait()
		require.Len(t, to.payloads("b"), 6)
		require.Equal(t, 1, strings.Count(logged.String(), "can't be relayed"), logged)
	})
}

func TestStop(t *testing.T) {
	t.Run("waits for the batch in flight", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, to := &box{}, newTopics()
			to.block = make(chan struct{})
			b.add(entriesTo("a", 3)...)
			service := New(to).Relay("test", b)
			require.NoError(t, service.Start(t.Context()))
			synctest.Wait()
			stopped := make(chan error)
			go func() { stopped <- service.Stop(t.Context()) }()
			synctest.Wait()
			close(to.block)
			require.NoError(t, <-stopped)
			require.Zero(t, b.left())
			require.Len(t, to.payloads("a"), 3)
		})
	})
	t.Run("bounded by its context, and nothing is lost", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, to := &box{}, newTopics()
			to.block = make(chan struct{})
			b.add(entriesTo("a", 3)...)
			service := New(to).Relay("test", b)
			require.NoError(t, service.Start(t.Context()))
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			require.ErrorIs(t, service.Stop(ctx), context.DeadlineExceeded)
			require.NoError(t, service.Stop(t.Context()), "again, until it has ended")
			require.Equal(t, 3, b.left())
		})
	})
	t.Run("before the start", func(t *testing.T) {
		service := New(newTopics()).Relay("test", &box{})
		require.NoError(t, service.Stop(t.Context()))
		require.NoError(t, service.Stop(t.Context()))
		require.Error(t, service.Start(t.Context()), "a relay runs once")
	})
	t.Run("the starting context does not end it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b, to := &box{}, newTopics()
			service := New(to).Relay("test", b)
			ctx, cancel := context.WithCancel(t.Context())
			require.NoError(t, service.Start(ctx))
			cancel()
			b.add(entriesTo("a", 1)...)
			time.Sleep(time.Second)
			require.NoError(t, service.Stop(t.Context()))
			require.Zero(t, b.left())
		})
	})
}

// TestPublishNamesExactlyWhatIsNotDurable compares publish's error with what the broker holds, for
// any mixture of topics and poison.
func TestPublishNamesExactlyWhatIsNotDurable(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		to := newTopics()
		to.parts = rapid.Bool().Draw(t, "parts")
		batch := make([]Entry, rapid.IntRange(1, 30).Draw(t, "size"))
		for i := range batch {
			kind := rapid.SampledFrom([]string{"good", "good", "poison"}).Draw(t, "kind")
			batch[i] = newEntry(rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "topic"), fmt.Sprintf("%s-%d", kind, i))
		}
		failed := map[int]error{}
		if err := New(to).publishEntries(context.Background(), "test", batch); err != nil {
			var partial *pipeline.PartialError
			require.ErrorAs(t, err, &partial)
			require.NotEmpty(t, partial.Failed)
			require.Equal(t, len(batch), partial.Size)
			failed = partial.Failed
		}
		for i, l := range batch {
			published := strings.Count(strings.Join(to.payloads(l.Topic), " ")+" ", string(l.Payload)+" ")
			require.Equal(t, failed[i] == nil, published == 1, "entry %d", i)
			require.LessOrEqual(t, published, 1, "entry %d", i)
		}
	})
}

func TestSink(t *testing.T) {
	t.Parallel()
	to := newTopics()
	p := New(to)
	s := p.Sink("a")
	require.Equal(t, pipeline.Endpoint{Kind: "kafka", Name: "a"}, s.Describe())
	require.NoError(t, s.Publish(t.Context(), message.NewMessage("1", []byte("x")), message.NewMessage("2", []byte("y"))))
	require.Equal(t, []string{"x", "y"}, to.payloads("a"))
	require.ErrorIs(t, s.Publish(t.Context(), message.NewMessage("3", []byte("poison"))), errTooLarge)
	require.InDelta(t, 2, testutil.ToFloat64(p.metrics.published.WithLabelValues("a")), 0, "only what is durable counts")
}

func TestConformance(t *testing.T) {
	pipelinetest.Conformance(t, func() []pipeline.Plugin { return []pipeline.Plugin{New(newTopics())} })
}

func TestValidate(t *testing.T) {
	t.Parallel()
	c := Config{BatchSize: 0, Interval: -1, PublishTimeout: 0, MaxBackoff: -2}
	err := c.Validate()
	for _, want := range []string{
		"interval: must be > 0, got -1ns", "batch_size: must be from 1 to 10000, got 0",
		"publish_timeout: must be > 0, got 0s", "max_backoff: must be at least interval (-1ns), got -2ns",
	} {
		require.ErrorContains(t, err, want)
	}
}
