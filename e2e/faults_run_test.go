package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/faults"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
)

// caseRun is one run of a case.
type caseRun struct {
	*faultDeployment
	work  work
	c     faults.Case
	id    payouts.Promotion
	rand  *rand.Rand
	next  int64 // target
	offer map[int64]offer
	began time.Time
	ends  map[string]int64 // where the topics of dead letters and results ended before: topic/partition
	watch *watch           // of its stream
	notes []string         // what took long, for the log

	// Exceptions that the case allows.
	padding      int            // spaces behind every payload
	letters      map[string]int // dead letters by class that must be there
	startedDead  map[string]int // the same, of the topic of started events
	badly        map[int64]bool // targets that may be FAILED or UNKNOWN
	cancels      bool           // rows may be CANCELLED, or UNKNOWN when they were perhaps charged
	redisLost    bool           // the case takes data from Redis
	quiet        bool           // no payout may be attempted twice or interrupted
	hung         bool           // slots are stuck: what they hold is aged
	panicsBefore int            // how many there were when the case began
	frozen       bool           // a worker that was frozen before its call must not call
}

// offer is one record as it was published.
type offer struct {
	target, amount int64
	voucher        string
	partition      int32
	offset         int64
}

func (s *faultDeployment) run(c faults.Case) *caseRun {
	s.promotion++
	t := &caseRun{
		faultDeployment: s, c: c, id: payouts.Promotion{Type: payouts.Type(c.Kind), ID: s.promotion}, began: time.Now(),
		rand: rand.New(rand.NewPCG(c.Draw, 0)), offer: map[int64]offer{}, letters: map[string]int{}, startedDead: map[string]int{},
	}
	t.work = s.business.begin(t)
	return t
}

func (t *caseRun) note(format string, args ...any) {
	t.notes = append(t.notes, fmt.Errorf(format, args...).Error())
}

// publish offers n new targets, and says so.
func (t *caseRun) publish(ctx context.Context, n int) error {
	var records []*kgo.Record
	var offers []offer
	for range n {
		t.next++
		o := offer{target: t.next, amount: 1 + t.rand.Int64N(10_000), voucher: fmt.Sprintf("V-%d", t.rand.IntN(100))}
		offers = append(offers, o)
		records = append(records, t.record(o))
	}
	sent, err := t.produce(ctx, append(records, t.work.announcement()...))
	if err != nil {
		return err
	}
	for i, o := range offers {
		o.partition, o.offset = sent[i].Partition, sent[i].Offset
		t.offer[o.target] = o
	}
	return nil
}

func (t *caseRun) record(o offer) *kgo.Record {
	return &kgo.Record{Topic: t.work.source(), Key: strconv.AppendInt(nil, o.target, 10), Value: []byte(t.work.payload(o) + strings.Repeat(" ", t.padding))}
}

// produce answers the records in the order in which they were given.
func (t *caseRun) produce(ctx context.Context, records []*kgo.Record) ([]*kgo.Record, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return records, t.kafka.ProduceSync(ctx, records...).FirstErr()
}

func (t *caseRun) counts(ctx context.Context) ledger.Counts { return t.work.counts(ctx) }

// offered is how much is accepted when all records are.
func (t *caseRun) offered() int { return len(t.offer) * t.work.each() }

// settledShare waits until this percentage of what was published is settled.
func (t *caseRun) settledShare(ctx context.Context, percent int) error {
	want := int64(t.offered() * percent / 100)
	return until(ctx, time.Minute, fmt.Sprintf("%d settled", want), func() error {
		if c := t.counts(ctx); settled(c) < want {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
}

func (t *caseRun) victim() *member { return t.members[t.c.Victim] }

func (t *caseRun) streamName() string {
	return fmt.Sprintf("campaign-promotion-stream:%s:%d", t.c.Kind, t.id.ID)
}

func (t *caseRun) groupName() string {
	return fmt.Sprintf("campaign-promotion-group:%s:%d", t.c.Kind, t.id.ID)
}

// age makes what dead instances hold look as old as it would be minutes later.
func (t *caseRun) age(ctx context.Context) error {
	alive := map[string]bool{}
	for _, m := range t.members {
		if m != nil && !m.ended() {
			alive[m.name] = true
		}
	}
	meta := "{" + t.streamName() + "}:meta"
	if by, err := t.deployment.redis.HGet(ctx, meta, "reclaim:by").Result(); err == nil && by != "" && !alive[by] {
		// A reclaimer was killed while it had the lease: the lease ends now instead of half a
		// minute later.
		if err := t.deployment.redis.HDel(ctx, meta, "reclaim:until").Err(); err != nil {
			return err
		}
	}
	pending, err := t.deployment.redis.XPendingExt(ctx, &redis.XPendingExtArgs{
		Stream: t.streamName(), Group: t.groupName(), Start: "-", End: "+", Count: 10_000,
	}).Result()
	if err != nil {
		return nil //nolint:nilerr // a stream that is gone holds nothing
	}
	for _, p := range pending {
		owner := p.Consumer[:strings.LastIndexByte(p.Consumer, '-')]
		if p.Idle >= faultMinIdle || alive[owner] && (!t.hung || p.Idle < faultMinIdle/2) {
			continue
		}
		if err := t.deployment.redis.Do(ctx, "XCLAIM", t.streamName(), t.groupName(), p.Consumer, 0, p.ID,
			"IDLE", faultMinIdle.Milliseconds(), "JUSTID").Err(); err != nil && !strings.Contains(err.Error(), "NOGROUP") {
			return err
		}
	}
	return nil
}

// endsOf returns where topics end, by partition.
func (t *caseRun) endsOf(ctx context.Context, topics ...string) (map[string]int64, error) {
	ends := map[string]int64{}
	if len(topics) == 0 {
		return ends, nil // and not all topics
	}
	listed, err := t.admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, err
	}
	for topic, partitions := range listed {
		for p, o := range partitions {
			if o.Err == nil {
				ends[fmt.Sprintf("%s/%d", topic, p)] = o.Offset
			}
		}
	}
	return ends, nil
}

// deadLetters counts what came since, by topic and class.
func (t *caseRun) deadLetters(ctx context.Context) (byTopic map[string]map[string]int, err error) {
	byTopic = map[string]map[string]int{}
	for _, topic := range t.work.dead() {
		byTopic[topic] = map[string]int{}
	}
	return byTopic, t.sinceBegin(ctx, t.work.dead(), func(r *kgo.Record) {
		for _, h := range r.Headers {
			if h.Key == "millrace-dead-class" {
				byTopic[r.Topic][string(h.Value)]++
			}
		}
	})
}

// sinceBegin passes the records that have come to topics since the case began.
func (t *caseRun) sinceBegin(ctx context.Context, topics []string, each func(*kgo.Record)) error {
	ends, err := t.endsOf(ctx, topics...)
	if err != nil {
		return err
	}
	from := map[string]map[int32]kgo.Offset{}
	missing := int64(0)
	for at, end := range ends {
		if end == t.ends[at] {
			continue
		}
		missing += end - t.ends[at]
		topic, partition, _ := strings.Cut(at, "/")
		n, err := strconv.ParseInt(partition, 10, 32)
		if err != nil {
			return err
		}
		if from[topic] == nil {
			from[topic] = map[int32]kgo.Offset{}
		}
		from[topic][int32(n)] = kgo.NewOffset().At(t.ends[at])
	}
	if missing == 0 {
		return nil
	}
	client, err := kgo.NewClient(kgo.SeedBrokers(t.kafka.OptValue(kgo.SeedBrokers).([]string)...), kgo.ConsumePartitions(from),
		kgo.FetchMaxPartitionBytes(8<<20))
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	for missing > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%d records of %v could not be read: %w", missing, topics, ctx.Err())
		}
		fetches.EachRecord(func(r *kgo.Record) {
			missing--
			each(r)
		})
	}
	return nil
}

// requestOf reads the request of a row.
func requestOf(row ledger.Payout) (amount int64, voucher string, err error) {
	var request struct {
		Amount    int64
		VoucherID string
	}
	err = json.Unmarshal(row.Request, &request)
	return request.Amount, request.VoucherID, err
}

var errNotReached = errors.New("the point was not reached")
