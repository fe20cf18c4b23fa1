package kafka

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// bench is one claim with a scripted broker on one side and the test as the handler on the other.
// It runs in a synctest bubble, so time costs nothing and "nothing happens" can be seen.
type bench struct {
	t       *testing.T
	sub     *subscription
	claim   *claim
	records chan *sarama.ConsumerMessage
	endSess context.CancelFunc
	ended   chan struct{}
	log     *pipelinetest.Buffer
	again   *pipelinetest.Recorder // what was moved to the end of the topic

	mu      sync.Mutex
	written []time.Time // by offset
	marks   []int64
	meta    string
	commits []progress
	next    int64
}

type benchOption struct {
	plain    bool // no retry topic
	comeBack bool // what is moved comes to the same claim
	config   func(*Config)
	done     []int64
	former   *progress // the commit of a former owner; the claim counts crashes
}

func onBench(t *testing.T, f pipeline.Flow, opt benchOption, test func(t *testing.T, b *bench)) {
	synctest.Test(t, func(t *testing.T) {
		c := defaultConfig()
		if opt.config != nil {
			opt.config(&c)
		}
		b := &bench{t: t, records: make(chan *sarama.ConsumerMessage, 1000), ended: make(chan struct{}), log: &pipelinetest.Buffer{}}
		b.sub = newSubscription(c, "topic", "group", f, slog.New(slog.NewTextHandler(b.log, nil)), newMetrics())
		b.sub.values = t.Context()
		b.again = pipelinetest.NewRecorder("topic")
		switch {
		case opt.comeBack:
			b.sub.retries = comingBack{b.again, b}
		case !opt.plain:
			b.sub.retries = b.again
		}
		session, end := context.WithCancel(b.sub.Reading)
		b.endSess = end
		b.claim = newClaim(session, b.sub, 3, 0, progress{done: opt.done}, b.mark, b.highWater)
		if opt.former != nil {
			b.claim.countCrashes(*opt.former, b.commit)
		}
		b.sub.claims[b.claim] = struct{}{}
		go b.sub.gate.watch(b.sub.Reading)
		go b.sub.watchWindows()
		go func() {
			defer close(b.ended)
			b.claim.run(b.records)
		}()
		defer func() { // also after a failure, because synctest panics when a goroutine is left
			b.sub.Stop()
			b.sub.Abandon()
			<-b.ended
			b.sub.deliverers.Wait()
		}()
		test(t, b)
	})
}

func (b *bench) mark(offset int64, metadata string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.marks, b.meta = append(b.marks, offset), metadata
}

func (b *bench) commit() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.commits = append(b.commits, decodeProgress(b.marks[len(b.marks)-1], b.meta))
}

// committed returns the last commit that the claim waited for.
func (b *bench) committed() progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.commits[len(b.commits)-1]
}

// endTransactions adds the markers of n transactions, which no consumer sees.
func (b *bench) endTransactions(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.next += n
}

// last returns the last mark.
func (b *bench) last() progress {
	b.mu.Lock()
	defer b.mu.Unlock()
	return decodeProgress(b.marks[len(b.marks)-1], b.meta)
}

func (b *bench) marked() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.marks) == 0 {
		return 0
	}
	return b.marks[len(b.marks)-1]
}

func (b *bench) highWater() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.next
}

// comingBack is a retry topic of one partition.
type comingBack struct {
	*pipelinetest.Recorder
	b *bench
}

func (s comingBack) Publish(ctx context.Context, msgs ...*message.Message) error {
	if err := s.Recorder.Publish(ctx, msgs...); err != nil {
		return err
	}
	for _, m := range msgs {
		s.b.writeRecord("", m.Metadata, string(m.Payload))
	}
	return nil
}

// write appends records with these keys to the partition.
func (b *bench) write(keys ...string) {
	for _, k := range keys {
		b.writeRecord(k, nil, "x")
	}
}

func (b *bench) writeRecord(key string, headers map[string]string, value string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	r := &sarama.ConsumerMessage{Topic: "topic", Partition: 3, Offset: b.next, Timestamp: time.Now(), Key: []byte(key), Value: []byte(value)}
	for k, v := range headers {
		r.Headers = append(r.Headers, &sarama.RecordHeader{Key: []byte(k), Value: []byte(v)})
	}
	b.next++
	b.written = append(b.written, r.Timestamp)
	b.records <- r
}

// out returns what is delivered now, without waiting.
func (b *bench) out() []*message.Message {
	var got []*message.Message
	for {
		synctest.Wait()
		select {
		case m := <-b.sub.Out:
			got = append(got, m)
		default:
			return got
		}
	}
}

// placeOf returns the partition and the offset in the position of m.
func placeOf(m *message.Message) (partition int32, offset int64) {
	origin := pipeline.DeliveryFrom(m.Context())
	if _, err := fmt.Sscanf(strings.TrimPrefix(origin.Position, origin.Source), "/%d@%d", &partition, &offset); err != nil {
		panic(err)
	}
	return partition, offset
}

func partitionOf(m *message.Message) int32 { partition, _ := placeOf(m); return partition }

func offsetOf(m *message.Message) int64 { _, offset := placeOf(m); return offset }

func offsets(msgs []*message.Message) []int64 {
	var all []int64
	for _, m := range msgs {
		all = append(all, offsetOf(m))
	}
	return all
}

func due(in time.Duration) map[string]string {
	return map[string]string{pipeline.MetaDue: time.Now().Add(in).UTC().Format(time.RFC3339Nano)}
}
