package kafka

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// resets is a process that runs nothing, as a command, with a route that reads a topic with the group of that name.
type resets struct {
	p        *Plugin // that runs
	topic    string
	reg      *pipeline.Registry
	action   operate.Action
	began    time.Time // the time of the records with offset 0; each next one is a minute later
	recorder *recorder
}

// recorder keeps changes, and calls a function with each.
type recorder struct {
	mu      sync.Mutex
	changes []operate.Change
	on      func(operate.Change) error
	alone   int // changes that had no connection of Connect
	opened  int
	closed  int
}

type recorderConnection struct{ of *recorder }

func (r *recorder) Connect(ctx context.Context) (context.Context, func(), error) {
	r.opened++
	return context.WithValue(ctx, recorderConnection{r}, true), func() { r.closed++ }, nil
}

func (*recorder) Name() string                          { return "audit" }
func (r *recorder) Register(g *pipeline.Registry) error { g.Offer(r); return nil }

func (r *recorder) RecordChange(ctx context.Context, c operate.Change) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx.Value(recorderConnection{r}) == nil {
		r.alone++
	}
	r.changes = append(r.changes, c)
	if r.on != nil {
		return r.on(c)
	}
	return nil
}

const (
	resetPartitions = 2
	resetRecords    = 20 // in each partition
)

// resetting returns a topic with records of other times, and a process that can reset the group.
func resetting(t *testing.T, brokers []string, adapt ...func(*Config)) *resets {
	t.Helper()
	adapt = append(adapt, func(c *Config) { c.Partitions = resetPartitions })
	p := start(t, brokers, adapt...)
	r := &resets{p: p, topic: topicFor(t, p), began: time.Now().Add(-5 * time.Hour).Truncate(time.Millisecond), recorder: &recorder{}}
	require.NoError(t, p.ensureTopics(t.Context(), r.topic, r.topic+"-retry"))
	t.Cleanup(func() { deleteTopics(t, p, r.topic+"-retry") })
	command := New()
	quick(&command.config)
	command.config.Brokers = brokers
	for _, f := range adapt {
		f(&command.config)
	}
	handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	retry := pipeline.Retry{To: command.Sink(r.topic + "-retry"), From: command.Source(r.topic+"-retry", r.topic+"-again")}
	var err error
	r.reg, err = pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, command, r.recorder, router{
		{Name: "orders", From: command.Source(r.topic, r.topic), Handle: handle, Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: retry}},
		{Name: "news", From: command.Broadcast(r.topic), Handle: handle, Policy: pipeline.Policy{DeadLetter: pipeline.Drop}},
	})
	require.NoError(t, err)
	r.action = command.resetAction()
	r.write(t)
	return r
}

// write publishes the records: "partition/offset" with its time.
func (r *resets) write(t *testing.T) {
	t.Helper()
	conf, err := producerConfig(r.p.config, nil)
	require.NoError(t, err)
	conf.Producer.Partitioner = sarama.NewManualPartitioner
	producer, err := sarama.NewSyncProducer(r.p.config.Brokers, conf)
	require.NoError(t, err)
	var records []*sarama.ProducerMessage
	for i := range resetRecords {
		for partition := range int32(resetPartitions) {
			records = append(records, &sarama.ProducerMessage{
				Topic: r.topic, Partition: partition, Timestamp: r.at(i), Value: sarama.StringEncoder(fmt.Sprintf("%d/%d", partition, i)),
			})
		}
	}
	require.NoError(t, producer.SendMessages(records))
	require.NoError(t, producer.Close())
}

// at is the time of the records with an offset.
func (r *resets) at(offset int) time.Time { return r.began.Add(time.Duration(offset) * time.Minute) }

// handleAllBut runs the records, of which those with an offset are not done when the run ends.
func (r *resets) handleAllBut(t *testing.T, offset int) {
	t.Helper()
	sub, out := subscribe(t, r.p.Source(r.topic, r.topic), pipeline.Flow{})
	for range resetPartitions * resetRecords {
		if m := next(t, out); !strings.HasSuffix(string(m.Payload), fmt.Sprint("/", offset)) {
			m.Ack()
		}
	}
	require.NoError(t, sub.Close())
	for partition := range int32(resetPartitions) {
		require.EqualValues(t, offset, r.committed(t, partition).base)
		require.Len(t, r.committed(t, partition).done, resetRecords-offset-1, "they are done beyond it")
	}
}

func (r *resets) committed(t *testing.T, partition int32) progress {
	t.Helper()
	live, err := r.p.connected()
	require.NoError(t, err)
	commit, _, err := committed{live.client, r.topic, r.topic, r.p.log}.of(partition)
	require.NoError(t, err)
	return commit
}

// preview returns what a dry run says, also for programs.
func (r *resets) preview(t *testing.T, to string) (operate.Answer, resetReport) {
	t.Helper()
	a, err := r.action.Preview(t.Context(), r.reg, r.input("orders", to))
	require.NoError(t, err)
	return a, reportOf(t, a)
}

func (r *resets) do(t *testing.T, to string) (operate.Answer, error) {
	t.Helper()
	return r.action.Do(t.Context(), r.reg, r.input("orders", to), operate.Use{Who: "ann", Why: "ticket 7"})
}

func (r *resets) input(route, to string) operate.Input {
	return operate.Input{"route": {route}, "to": {to}}
}

// reportOf is the answer as a program reads it.
func reportOf(t *testing.T, a operate.Answer) (r resetReport) {
	t.Helper()
	text, err := json.Marshal(a.Value)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &r))
	return r
}

// A run after a reset handles exactly the records from the time on, once each, also those that were done beyond the commit.
func TestAResetToATimeHandlesTheRecordsFromThereAgain(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		r := resetting(t, brokers)
		r.handleAllBut(t, 12)
		to := r.at(5).Add(-time.Second).UTC().Format(time.RFC3339Nano)

		a, report := r.preview(t, to)
		row := func(partition int32) resetPartition {
			committed := int64(12)
			return resetPartition{Partition: partition, Committed: &committed, Offset: 5, Again: 14} // 5 to 11, and 13 to 19
		}
		require.Equal(t, []resetPartition{row(0), row(1)}, report.Partitions)
		require.True(t, report.Changed)
		require.True(t, report.DryRun)
		require.EqualValues(t, 28, report.Again)
		require.Zero(t, report.Skipped)
		require.Equal(t, to, report.Time.Format(time.RFC3339Nano))
		require.Empty(t, a.Checks)
		require.Equal(t, fmt.Sprintf("Would set the group %s of topic %s to %s: 28 records are handled again, and 0 records are skipped.", r.topic, r.topic, to), a.Lines[0])
		require.Equal(t, []string{"0", "12", "5", "14", "0"}, a.Tables[0].Rows[0])
		notes := strings.Join(a.Notes, "\n")
		require.Contains(t, notes, "happens once only where the handler uses the ledger (once, campaigns). All others happen again.")
		require.Contains(t, notes, "The retry topic "+r.topic+"-retry is not touched")
		require.NotContains(t, notes, "removed")
		require.EqualValues(t, 12, r.committed(t, 0).base, "a preview changes nothing")
		require.Empty(t, r.recorder.changes)

		r.recorder.on = func(c operate.Change) error {
			if c.Outcome == operate.OutcomeBegun {
				require.EqualValues(t, 12, r.committed(t, 0).base, "the row comes before the effect")
			}
			return nil
		}
		a, err := r.do(t, to)
		require.NoError(t, err)
		require.Empty(t, a.Checks)
		require.Contains(t, a.Lines[0], "Set the group "+r.topic)
		detail := fmt.Sprintf("group %s of %s, 28 again, 0 skipped, 0: 12 to 5, 1: 12 to 5", r.topic, r.topic)
		change := operate.Change{Who: "ann", Why: "ticket 7", Action: "reset", Subject: "orders", Outcome: "begun", Detail: detail}
		done := change
		done.Outcome, done.Detail = "done", ""
		require.Equal(t, []operate.Change{change, done}, r.recorder.changes)
		live, err := r.p.connected()
		require.NoError(t, err)
		id, err := leaderTopicID(live.client)(r.topic, 0)
		require.NoError(t, err)
		require.NotZero(t, id)
		for partition := range int32(resetPartitions) {
			require.Equal(t, progress{base: 5, topic: id}, r.committed(t, partition), "it has what commits of the subscriber have")
		}
		_, report = r.preview(t, to)
		require.False(t, report.Changed)
		a, err = r.do(t, to)
		require.NoError(t, err)
		require.Contains(t, a.Lines[0], "already, so nothing is changed")
		require.Len(t, r.recorder.changes, 2, "what changes nothing is not recorded")

		w := newWork()
		sub, out := subscribe(t, r.p.Source(r.topic, r.topic), pipeline.Flow{})
		w.on(out, 0)
		w.waitFor(t, resetPartitions*15)
		require.NoError(t, sub.Close())
		w.wait.Wait()
		expected := map[string]int{}
		for i := range resetRecords - 5 {
			for partition := range resetPartitions {
				expected[fmt.Sprintf("%d/%d", partition, i+5)] = 1
			}
		}
		require.Equal(t, expected, w.runs)
		require.EqualValues(t, resetRecords, r.committed(t, 0).base)
	})
}

// Every place says what it would handle again and skip.
func TestPlacesOfAReset(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		r := resetting(t, brokers)
		rows := func(to string) (texts []string) {
			a, _ := r.preview(t, to)
			for _, row := range a.Tables[0].Rows {
				texts = append(texts, strings.Join(row, " "))
			}
			return texts
		}
		require.Equal(t, []string{"0 - 0 0 0", "1 - 0 0 0"}, rows("oldest"), "it has committed nothing, and begins there")
		r.handleAllBut(t, 12)
		require.Equal(t, []string{"0 12 0 19 0", "1 12 0 19 0"}, rows("oldest"))
		require.Equal(t, []string{"0 12 20 0 1", "1 12 20 0 1"}, rows("newest"), "only the record 12 is not done")
		require.Equal(t, []string{"0 12 20 0 1", "1 12 20 0 1"}, rows("1h"), "no record is that late")
		require.Equal(t, []string{"0 12 0 19 0", "1 12 0 19 0"}, rows("6h"), "nothing was removed, so the topic has all of them")
		require.Equal(t, []string{"1 12 14 6 1"}, rows("1=14"))
		require.Equal(t, []string{"0 12 12 7 0", "1 12 19 1 1"}, rows("1=19, 0=12"), "what is done beyond the commit is handled again")
		require.Equal(t, []string{"0 12 11 8 0", "1 12 11 8 0"}, rows(r.at(11).Format(time.RFC3339Nano)), "the time of a record is its place")

		a, err := r.do(t, "1=14")
		require.NoError(t, err)
		require.Contains(t, strings.Join(a.Notes, "\n"), "Nobody handles the skipped records")
		require.EqualValues(t, 14, r.committed(t, 1).base)
		require.EqualValues(t, 12, r.committed(t, 0).base)
		require.Len(t, r.committed(t, 0).done, 7, "the other partition stays as it is")

		for to, problem := range map[string]string{
			"5":    " has 2 partitions, so --to must name the partition of each offset, such as 0=5",
			"0=21": "partition 0 has the offsets 0 to 20, got 21",
			"2=1":  " has no partition 2; it has 2",
		} {
			_, err := r.action.Preview(t.Context(), r.reg, r.input("orders", to))
			wrong := &operate.InputError{}
			require.ErrorAs(t, err, &wrong, to)
			require.Equal(t, "to", wrong.Field)
			require.ErrorContains(t, err, problem)
		}
	})
}

// An active member refuses a reset, also one that joins after the preview and the check: its coordinator refuses the
// commit.
func TestAResetIsRefusedWhileMembersAreActive(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		r := resetting(t, brokers, func(c *Config) { c.ClientID = "shop" })
		r.handleAllBut(t, 12)
		_, report := r.preview(t, "oldest")
		require.Empty(t, report.Members)
		var sub pipeline.Subscription
		join := func() {
			var out <-chan *message.Message
			sub, out = subscribe(t, r.p.Source(r.topic, r.topic), pipeline.Flow{})
			next(t, out) // it is a member; the record 12 is not done
		}

		r.recorder.on = func(c operate.Change) error {
			if c.Outcome == operate.OutcomeBegun {
				join()
			}
			return nil
		}
		a, err := r.do(t, "oldest")
		require.ErrorContains(t, err, "a member has joined the group "+r.topic+" meanwhile, so nothing was changed")
		require.Nil(t, a.Value)
		require.Len(t, r.recorder.changes, 2)
		require.Equal(t, "failed", r.recorder.changes[1].Outcome)
		require.Contains(t, r.recorder.changes[1].Detail, "a member has joined")
		require.EqualValues(t, 12, r.committed(t, 0).base)

		a, report = r.preview(t, "oldest")
		require.True(t, a.Failed())
		require.Len(t, report.Members, 1)
		require.Equal(t, []string{"shop", r.topic}, append([]string{report.Members[0].Client}, report.Members[0].Topics...))
		require.EqualValues(t, 38, report.Again, "the numbers are known all the same")
		a, err = r.do(t, "oldest")
		require.NoError(t, err)
		require.True(t, a.Failed())
		require.Regexp(t, `^group \S+: it has 1 active member, so its commits can't be set: \S+ \(shop, reads \S+\); stop every instance that reads with this group`, a.Checks[0].String())
		require.Contains(t, a.Lines[0], "Would set")
		require.Len(t, r.recorder.changes, 2, "a refusal is not recorded")
		require.EqualValues(t, 12, r.committed(t, 0).base)

		require.NoError(t, sub.Close())
		r.recorder.on = nil
		a, err = r.do(t, "oldest")
		require.NoError(t, err)
		require.False(t, a.Failed())
		require.EqualValues(t, 0, r.committed(t, 0).base)
	})
}

// A reset that can't be recorded changes nothing.
func TestAResetThatIsNotRecordedChangesNothing(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		r := resetting(t, brokers)
		r.handleAllBut(t, 12)
		r.recorder.on = func(operate.Change) error { return fmt.Errorf("no answer: %w", pipeline.ErrUnavailable) }
		_, err := r.do(t, "oldest")
		require.ErrorIs(t, err, pipeline.ErrUnavailable)
		require.ErrorContains(t, err, "record the reset of route orders, so nothing was changed")
		require.EqualValues(t, 12, r.committed(t, 0).base)
	})
}

// A time before the retention is refused when records were removed. Within it, a note names the partitions that lack some.
func TestAResetToATimeBeforeTheRetentionIsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		r := resetting(t, brokers)
		live, err := r.p.connected()
		require.NoError(t, err)
		admin, err := sarama.NewClusterAdminFromClient(live.client)
		require.NoError(t, err)
		require.NoError(t, admin.DeleteRecords(r.topic, map[int32]int64{1: 8}))
		a, _ := r.preview(t, r.at(3).Format(time.RFC3339Nano))
		require.Contains(t, strings.Join(a.Notes, "\n"), "Earlier records of partition 1 were removed. If some of them are of the asked time")
		require.Equal(t, "8", a.Tables[0].Rows[1][2])
		a, _ = r.preview(t, r.at(9).Format(time.RFC3339Nano))
		require.NotContains(t, strings.Join(a.Notes, "\n"), "removed")

		kept := fmt.Sprint((5*time.Hour - time.Minute).Milliseconds()) // the first record is older
		require.NoError(t, admin.AlterConfig(sarama.TopicResource, r.topic, map[string]*string{configRetention: &kept}, false))
		require.Eventually(t, func() bool { // the broker may not know the setting yet
			_, err = r.action.Preview(t.Context(), r.reg, r.input("orders", "6h"))
			return err != nil
		}, 2*time.Minute, 10*time.Millisecond)
		wrong := &operate.InputError{}
		require.ErrorAs(t, err, &wrong)
		require.Equal(t, "to", wrong.Field)
		require.ErrorContains(t, err, "keeps records for 4h59m0s, and those of ")
		require.ErrorContains(t, err, " were removed from partition 1; oldest begins with what is left")
	})
}

// The command says what it would do without a reason, and needs one to do it. Its exit codes tell a refusal from a mistake.
func TestResetByCommand(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, brokers []string) {
		p := start(t, brokers, func(c *Config) { c.Partitions = 1 })
		prefix := "kafka-test-" + watermill.NewShortUUID() + "-"
		orders := prefix + "orders"
		code, out, errs := runShop(t, brokers, prefix, "routes", "reset", "shop.orders", "--to", "oldest", "--dry-run")
		require.Equal(t, app.ExitUnavailable, code, errs)
		require.Empty(t, out)
		require.Contains(t, errs, "the topic "+orders+" of route shop.orders does not exist")
		require.NoError(t, p.ensureTopics(t.Context(), orders))
		t.Cleanup(func() { deleteTopics(t, p, orders) })
		publish(t, p, orders, texts("a", "b", "c")...)

		code, out, errs = runShop(t, brokers, prefix, "routes", "reset", "shop.orders", "--to", "2", "--dry-run", "--json")
		require.Equal(t, app.ExitOK, code, errs)
		var r resetReport
		require.NoError(t, json.Unmarshal([]byte(out), &r), out)
		require.Equal(t, resetReport{DryRun: true, Route: "shop.orders", Topic: orders, Group: prefix, Changed: true, Skipped: 2, Members: []groupMember{}, Partitions: []resetPartition{{Offset: 2, Skipped: 2}}}, r)
		code, _, errs = runShop(t, brokers, prefix, "routes", "reset", "shop.orders", "--to", "2")
		require.Equal(t, app.ExitUsage, code, errs)
		require.Contains(t, errs, "--why REASON required, for the audit")
		code, out, errs = runShop(t, brokers, prefix, "routes", "reset", "shop.orders", "--to", "2", "--why", "ticket 7")
		require.Equal(t, app.ExitOK, code, errs)
		require.Regexp(t, `^Set the group \S+ of topic \S+ to the given offsets: 0 records are handled again, and 2 records are skipped\.\nPARTITION +COMMITTED +NEW +HANDLED AGAIN +SKIPPED\n0 +- +2 +0 +2\n`, out)
		require.Contains(t, out, "No plugin of this binary keeps an audit of routes")

		_, messages := subscribe(t, p.Source(orders, prefix), pipeline.Flow{})
		require.Equal(t, "c", string(next(t, messages).Payload))
		code, out, errs = runShop(t, brokers, prefix, "routes", "reset", "shop.orders", "--to", "oldest", "--why", "ticket 7")
		require.Equal(t, app.ExitBad, code, errs)
		require.Contains(t, out, "it has 1 active member, so its commits can't be set: ")
	})
}
