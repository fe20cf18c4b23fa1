package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
)

func (t *caseRun) kafkaFails(ctx context.Context, what string) error {
	switch what {
	case "produce-errors":
		return t.produceErrors(ctx)
	case "held-back":
		return t.heldBack(ctx)
	case "compressed":
		return t.compressed(ctx)
	}
	if err := t.underLoad(ctx); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets/2); err != nil {
		return err
	}
	switch what {
	case "restart":
		// The started events go on too: a bad one becomes a dead letter in each instance.
		return errors.Join(t.fleet.restart(ctx, servers.Kafka), t.poison(ctx, t.everywhere()))
	case "coordinator":
		return t.moveCoordinator(ctx)
	case "kill":
		ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
		defer cancel()
		if r := t.fleet.Kill(ctx, servers.Kafka)[0]; r.Err != nil {
			return r.Err
		}
		// A process that is killed may hold its port for a moment longer.
		err := until(ctx, time.Minute, "Kafka is up again", func() error { return t.fleet.Up(ctx, servers.Kafka)[0].Err })
		return errors.Join(err, t.poison(ctx, t.everywhere()))
	case "rebalance-storm":
		for range 6 {
			if err := t.joinAndLeave(ctx); err != nil {
				return err
			}
			if err := t.publish(ctx, t.c.Targets/6); err != nil {
				return err
			}
		}
		return nil
	case "duplicates":
		var again []*kgo.Record
		for _, o := range t.offer {
			if o.target%10 == 0 {
				again = append(again, t.record(o))
			}
		}
		_, err := t.produce(ctx, again)
		return err
	}
	return errors.New("no such fault of Kafka: " + what)
}

const unknownType = "unknown-type"

// everywhere is a poison that each instance must notice, if the work has one.
func (t *caseRun) everywhere() string {
	if len(t.work.announcement()) > 0 {
		return unknownType
	}
	return "undecodable"
}

// moveCoordinator gives the groups' coordinators to a second broker, and after some work back.
func (t *caseRun) moveCoordinator(ctx context.Context) error {
	meta, err := t.admin.BrokerMetadata(ctx)
	if err != nil {
		return err
	}
	second, err := t.spare(ctx, servers.Kafka, &servers.Cluster{ID: meta.Cluster, Controller: fmt.Sprintf("127.0.0.1:%d", t.fleet.ports["controller"])})
	if err != nil {
		return err
	}
	if err := t.coordinateOn(ctx, 2); err != nil {
		return err
	}
	if err := errors.Join(t.publish(ctx, t.c.Targets), t.settledShare(ctx, 80)); err != nil {
		return err
	}
	if err := errors.Join(t.publish(ctx, t.c.Targets/2), t.coordinateOn(ctx, 1)); err != nil {
		return err
	}
	stop, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return second.Wipe(stop, servers.Kafka)[0].Err
}

// coordinateOn moves what is known of all groups to a broker, and with it who coordinates them.
func (t *caseRun) coordinateOn(ctx context.Context, broker int32) error {
	const offsets = "__consumer_offsets"
	topics, err := t.admin.ListTopicsWithInternal(ctx, offsets)
	if err != nil {
		return err
	}
	var to kadm.AlterPartitionAssignmentsReq
	for _, p := range topics[offsets].Partitions {
		to.Assign(offsets, p.Partition, []int32{broker})
	}
	moved, err := t.admin.AlterPartitionAssignments(ctx, to)
	if err = errors.Join(err, moved.Error()); err != nil {
		return fmt.Errorf("move the coordinators to broker %d: %w", broker, err)
	}
	return until(ctx, time.Minute, fmt.Sprintf("broker %d coordinates", broker), func() error {
		for _, c := range t.admin.FindGroupCoordinators(ctx, t.business.groups()...) {
			if c.Err != nil || c.NodeID != broker {
				return fmt.Errorf("group %s is coordinated by broker %d: %w", c.Name, c.NodeID, c.Err)
			}
		}
		return nil
	})
}

// heldBack kills an instance when all records but those of one batch are accepted, because the
// handler of that one has not returned. The records after it are acknowledged, and must not be
// committed.
func (t *caseRun) heldBack(ctx context.Context) error {
	// After a death of an owner few records of its partitions are in flight, so a batch that hangs would hold
	// back the others. An earlier case may have left that; an orderly restart with nothing in flight ends it.
	group := t.work.readers()[0]
	if err := t.replace(ctx, t.c.Victim); err != nil {
		return err
	}
	if err := until(ctx, time.Minute, "each instance has partitions", func() error {
		groups, err := t.admin.DescribeGroups(ctx, group)
		if g := groups[group]; err != nil || g.State != "Stable" || len(g.Members) != len(t.members) {
			return fmt.Errorf("%s with %d members: %w", g.State, len(g.Members), err)
		}
		return nil
	}); err != nil {
		return err
	}
	m := t.victim()
	if err := m.arm(ctx, string(failpoint.BeforeInsert)+":1:hang"); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets/2); err != nil {
		return err
	}
	if err := until(ctx, 30*time.Second, "a batch hangs", func() error {
		if !m.says(`"action":"hang"`) {
			return errNotReached
		}
		return nil
	}); err != nil {
		return err
	}
	if err := t.publish(ctx, t.c.Targets); err != nil {
		return err
	}
	if err := until(ctx, 30*time.Second, "all but one batch are accepted", func() error {
		least := t.offered() - pipeline.DefaultBatch().MaxRecords
		if c := t.counts(ctx); c.Accepted < int64(least) || c.Accepted == int64(t.offered()) {
			return fmt.Errorf("%d of %d: %+v", c.Accepted, t.offered(), c)
		}
		return nil
	}); err != nil {
		return err
	}
	wait(ctx, 500*time.Millisecond) // what is marked is committed every 20 ms
	m.kill()
	return nil
}

// joinAndLeave makes the groups rebalance twice. The member commits nothing: what it was given is
// read again.
func (t *caseRun) joinAndLeave(ctx context.Context) error {
	assigned := make(chan struct{}, 100)
	member, err := kgo.NewClient(kgo.SeedBrokers(t.fleet.server(t.t, servers.Kafka)), kgo.ConsumerGroup(t.work.readers()[0]),
		kgo.ConsumeTopics(t.work.source()), kgo.DisableAutoCommit(), kgo.SessionTimeout(3*time.Second), kgo.HeartbeatInterval(500*time.Millisecond),
		kgo.Balancers(kgo.RangeBalancer(), kgo.RoundRobinBalancer(), kgo.StickyBalancer()),
		kgo.OnPartitionsAssigned(func(context.Context, *kgo.Client, map[string][]int32) { assigned <- struct{}{} }))
	if err != nil {
		return err
	}
	defer member.Close() // leaves
	select {
	case <-assigned:
		return nil
	case <-time.After(2 * time.Minute):
		return errors.New("the extra member was not let in")
	case <-ctx.Done():
		return ctx.Err()
	}
}

// produceErrors makes the broker refuse retry records and dead letters, while there are some to
// write.
func (t *caseRun) produceErrors(ctx context.Context) error {
	replicas := func(n string) error {
		answers, err := t.admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "min.insync.replicas", Value: &n}},
			t.work.written()...)
		if err != nil {
			return err
		}
		for _, a := range answers {
			if a.Err != nil {
				return fmt.Errorf("%s: %w %s", a.Name, a.Err, a.ErrMessage)
			}
		}
		return nil
	}
	// A topic without a record does not exist yet.
	made, err := t.admin.CreateTopics(ctx, -1, -1, nil, t.work.written()...)
	if err != nil {
		return err
	}
	for _, m := range made {
		if m.Err != nil && !errors.Is(m.Err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("%s: %w %s", m.Topic, m.Err, m.ErrMessage)
		}
	}
	if err := replicas("2"); err != nil {
		return err
	}
	f := usualMoney
	f.FailRate, f.Seed = 0.1, t.c.Draw
	if err := t.business.SetFaults(f); err != nil {
		return err
	}
	err = errors.Join(t.publish(ctx, t.c.Targets), t.poison(ctx, "undecodable"))
	if err == nil {
		err = t.settledShare(ctx, t.c.At)
	}
	wait(ctx, 2*time.Second)
	return errors.Join(err, replicas("1"))
}

// poison publishes one bad record for every hundred good ones.
func (t *caseRun) poison(ctx context.Context, what string) error {
	var bad []*kgo.Record
	for i := range max(3, t.c.Targets/100) {
		if what == unknownType {
			bad = append(bad, &kgo.Record{Topic: startedTopic, Key: fmt.Appendf(nil, "%d", i), Value: []byte(`{"promotionId":1,"promotionType":"CASH","totalCount":5}`)})
			t.startedDead["unknown_type"] += len(t.members) // a broadcast: each instance reports it
			continue
		}
		r, class := t.work.bad(what, i)
		t.letters[class] += t.work.each()
		bad = append(bad, r)
	}
	for _, r := range bad { // one by one: a batch of large ones is more than the topic takes
		if _, err := t.produce(ctx, []*kgo.Record{r}); err != nil {
			return err
		}
	}
	return nil
}

func (t *caseRun) poisoned(ctx context.Context, what string) error {
	switch what {
	case "panic":
		return t.eachHundredth(ctx, what, failpoint.AfterInsert, failpoint.BeforeSending, failpoint.AfterCall)
	case "hang":
		points := []failpoint.Point{failpoint.BeforeSending, failpoint.AfterSending}
		if err := t.eachHundredth(ctx, what, points[t.rand.IntN(len(points))]); err != nil {
			return err
		}
		return t.endTheHung(ctx)
	}
	if err := t.publish(ctx, t.c.Targets/2); err != nil {
		return err
	}
	if what == "conflict" { // batches of a partition are accepted side by side, so the later record could be the first one
		if err := t.settledShare(ctx, 100); err != nil {
			return err
		}
	}
	if err := t.poison(ctx, what); err != nil {
		return err
	}
	return t.publish(ctx, t.c.Targets/2)
}

// eachHundredth makes every hundredth pass of the points go wrong, in all instances.
func (t *caseRun) eachHundredth(ctx context.Context, action string, points ...failpoint.Point) error {
	var spec []string
	for _, p := range points {
		spec = append(spec, fmt.Sprintf("%s:*100:%s", p, action))
	}
	for _, m := range t.members {
		if err := m.arm(ctx, strings.Join(spec, ",")); err != nil {
			return err
		}
	}
	return t.underLoad(ctx)
}

// panics counts the panics that end in a dead letter. They happen when a record is accepted, or in
// the route of a retry topic. Nacked, such a record would come back at once, without end.
func (s *faultDeployment) panics() (n int) {
	for _, m := range s.all {
		log, _ := os.ReadFile(m.log)
		for line := range strings.Lines(string(log)) {
			accepted := strings.Contains(line, `"failpoint"`) && strings.Contains(line, string(failpoint.AfterInsert))
			retried := strings.Contains(line, `"class"`) && strings.Contains(line, `.retry"`)
			if strings.Contains(line, `"panic"`) && (accepted || retried) {
				n++
			}
		}
	}
	return n
}

// endTheHung waits until others have paid what stuck handlers hold, and ends the instances: their
// slots never come back.
func (t *caseRun) endTheHung(ctx context.Context) error {
	t.hung = true
	if err := until(ctx, time.Minute, "all is paid although handlers hang", func() error {
		if err := t.age(ctx); err != nil {
			return err
		}
		return t.nothingLost(ctx)
	}); err != nil {
		return &brokenError{"nothing is lost", err}
	}
	for _, m := range t.members {
		m.kill()
	}
	return nil
}

func TestPanicsAreCounted(t *testing.T) {
	t.Parallel()
	log := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(log, []byte(`{"msg":"failpoint","point":"after-insert","reached":100,"action":"panic"}
{"msg":"failpoint","point":"after-insert","reached":1,"action":"stop"}
{"msg":"failpoint","point":"before-sending","reached":100,"action":"panic"}
{"msg":"message not handled","route":"promotion.voucher.retry","outcome":"dead","class":"panic"}
{"msg":"message not handled","route":"promotion.voucher.retry","outcome":"nacked","class":"timeout"}
{"msg":"message not handled","route":"promotion.voucher.accept","outcome":"dead","class":"panic"}
`), 0o600))
	require.Equal(t, 2, (&faultDeployment{all: []*member{{log: log}}}).panics())
}
