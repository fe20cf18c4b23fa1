package kafka

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

func TestAClaimCommitsThatItOwnsThePartition(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{}, benchOption{former: &progress{}}, func(t *testing.T, b *bench) {
		b.write("", "", "")
		got := b.out()
		require.Equal(t, []int64{0, 1, 2}, offsets(got), "nobody has died")
		require.Equal(t, progress{owned: true}, b.committed())
		require.Len(t, b.commits, 1)
		got[0].Ack()
		synctest.Wait()
		require.Equal(t, progress{base: 1, owned: true}, b.last(), "each mark says it")
		b.endSess()
		<-b.ended
		require.Equal(t, progress{base: 1}, b.last())
	})
}

// The next owner of a partition whose owner died bounds what can have been in flight when it dies
// as well.
func TestAWaryClaimCommitsEachOfItsWindows(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{Window: 100}, benchOption{plain: true, former: &progress{owned: true}}, func(t *testing.T, b *bench) {
		suspects := int64(2*normally + 100)
		for b.marked() < suspects+wary {
			for range 40 {
				b.write("")
			}
			for got := b.out(); len(got) > 0; got = b.out() {
				for _, m := range got {
					if offsetOf(m) >= suspects-wary {
						continue // the reader may be past them
					}
					require.LessOrEqual(t, len(got), wary)
					require.Equal(t, 1, b.committed().deaths)
					require.Less(t, offsetOf(m), b.committed().base+2*wary, "a careful claim begins at the commit")
				}
				for _, m := range got {
					m.Ack()
				}
			}
		}
		require.True(t, b.last().owned)
		require.Zero(t, b.last().deaths, "what was in flight at the death is done")
	})
}

// Records of a retry topic that are not due were not in flight at a death, so they take no place.
func TestRecordsThatAreNotDueDoNotFillAWaryWindow(t *testing.T) {
	t.Parallel()
	for name, deaths := range map[string]int{"wary": 0, "careful": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			former := &progress{owned: true, deaths: deaths}
			onBench(t, pipeline.Flow{Window: 200}, benchOption{former: former}, func(t *testing.T, b *bench) {
				atOnce := wary
				if deaths > 0 {
					atOnce = 1
				}
				for range 2 * wary {
					b.writeRecord("", due(time.Hour), "later")
				}
				b.write(make([]string, 2*wary)...)
				for at := 2 * wary; at < 4*wary; at += atOnce {
					got := b.out()
					require.Len(t, got, atOnce)
					for i, m := range got {
						require.EqualValues(t, at+i, offsetOf(m), "each passes those that are not due, and what is done behind them")
						m.Ack()
					}
				}
				require.Empty(t, b.again.Messages(), "nothing had to be moved")
			})
		})
	}
}

// What a wary owner of a retry topic may have had in flight is known to be suspect by the next one.
func TestACarefulClaimOfARetryTopicSuspectsTheWholeWindow(t *testing.T) {
	t.Parallel()
	former := &progress{owned: true, deaths: 1}
	onBench(t, pipeline.Flow{Window: 100}, benchOption{former: former}, func(t *testing.T, b *bench) {
		const suspects = 100 + wary
		b.write(make([]string, suspects+10)...)
		for at := range int64(suspects - 1) {
			got := b.out()
			require.Equal(t, []int64{at}, offsets(got))
			got[0].Ack()
		}
		require.Len(t, b.out(), 11, "the others were not in flight at a death")
	})
}

func TestACarefulClaimRunsOneRecordAtATime(t *testing.T) {
	t.Parallel()
	former := &progress{owned: true, deaths: 1, counts: map[int64]int{1: 1}}
	onBench(t, pipeline.Flow{Window: 100}, benchOption{plain: true, former: former}, func(t *testing.T, b *bench) {
		for range 2*wary + 10 {
			b.write("")
		}
		for at := range int64(2 * wary) {
			got := b.out()
			if at == 2*wary-1 {
				require.Len(t, got, 11, "the others were not in flight at a death")
			} else {
				require.Equal(t, []int64{at}, offsets(got))
			}
			want := progress{base: at, owned: true, deaths: 2, counts: map[int64]int{at: 1}}
			delivered := int64(1)
			switch at {
			case 0:
				want.counts[1] = 1
			case 1:
				want.counts[1], delivered = 2, 2
			case 2*wary - 1: // the reader is past it, and has said so
				want.deaths = 0
			}
			committed := b.committed()
			if at > 0 && committed.base == at-1 {
				committed.base = at // the handler has answered the one before, which is marked a moment later
			}
			require.Equal(t, want, committed, "before it runs")
			require.Equal(t, delivered, pipeline.DeliveryFrom(got[0].Context()).Delivered)
			got[0].Ack()
			synctest.Wait()
		}
		require.Equal(t, progress{base: 2 * wary, owned: true}, b.last())
	})
}

// A nack, a revoked partition and a stop are no deaths.
func TestOnlyADeathCounts(t *testing.T) {
	t.Parallel()
	former := &progress{owned: true, deaths: 1, counts: map[int64]int{0: 1}}
	onBench(t, pipeline.Flow{}, benchOption{former: former}, func(t *testing.T, b *bench) {
		b.write("", "")
		got := b.out()
		require.Equal(t, []int64{0}, offsets(got))
		got[0].Nack()
		synctest.Wait()
		require.Equal(t, 1, b.last().counts[0])
		for len(got) < 3 { // 1 runs meanwhile, and 0 again
			time.Sleep(time.Second)
			for _, m := range b.out() {
				got = append(got, m)
				m.Nack()
			}
		}
		b.endSess()
		<-b.ended
		require.Equal(t, progress{owned: true, deaths: 1, counts: map[int64]int{0: 1}}, b.last(), "the next owner is as careful as this one")
	})
}

func TestAStopIsNoDeath(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{}, benchOption{former: &progress{owned: true, deaths: 1}}, func(t *testing.T, b *bench) {
		b.write("")
		require.Len(t, b.out(), 1)
		require.Equal(t, map[int64]int{0: 1}, b.committed().counts)
		b.sub.Stop()
		b.sub.Abandon()
		<-b.ended
		require.Equal(t, progress{owned: true, deaths: 1}, b.last())
	})
}

// A claim that ends in a rebalance hands on what it suspects.
func TestACleanEndHandsOnTheSuspicion(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		former  progress
		acks    int   // of two records
		markers int64 // of transactions, behind them
		want    progress
	}{
		"nobody died":                    {progress{}, 1, 0, progress{base: 1}},
		"wary, one is unanswered":        {progress{owned: true}, 1, 0, progress{base: 1, owned: true}},
		"careful, one is unanswered":     {progress{owned: true, deaths: 1}, 1, 0, progress{base: 1, owned: true, deaths: 1, counts: map[int64]int{1: 1}}},
		"wary, all that exists is done":  {progress{owned: true}, 2, 0, progress{base: 2}},
		"careful, all is done as well":   {progress{owned: true, deaths: 1}, 2, 0, progress{base: 2}},
		"wary, nothing has been read":    {progress{owned: true}, -1, 0, progress{owned: true}},
		"careful, nothing has been read": {progress{owned: true, deaths: 1}, -1, 0, progress{owned: true, deaths: 1}},
		"wary, and a marker":             {progress{owned: true}, 2, 1, progress{base: 2, owned: true}},
		"careful, and a marker":          {progress{owned: true, deaths: 1}, 2, 1, progress{base: 2, owned: true, deaths: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			onBench(t, pipeline.Flow{}, benchOption{plain: true, former: &tt.former}, func(t *testing.T, b *bench) {
				b.mark(0, encodeProgress(tt.former))
				if tt.acks >= 0 {
					b.write("", "")
				}
				for acked := 0; acked < tt.acks; {
					for _, m := range b.out() {
						if acked++; acked <= tt.acks {
							m.Ack()
						}
					}
				}
				b.out() // the next one is in flight
				b.endTransactions(tt.markers)
				b.endSess()
				<-b.ended
				require.Equal(t, tt.want, b.last())
			})
		})
	}
}

// A member that gets a partition back knows that what runs there since has not killed it.
func TestALateAnswerInTheSameProcessTakesTheCountBack(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{}, benchOption{plain: true, former: &progress{owned: true, deaths: 1}}, func(t *testing.T, b *bench) {
		b.write("")
		got := b.out()
		b.endSess()
		<-b.ended
		left := b.last()
		require.Equal(t, progress{owned: true, deaths: 1, counts: map[int64]int{0: 1}}, left)
		session, end := context.WithCancel(b.sub.Reading)
		again := newClaim(session, b.sub, 3, 0, left, b.mark, b.highWater)
		again.countCrashes(left, b.commit)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			again.run(b.records)
		}()
		b.next = 0
		b.write("") // it is read again
		require.Empty(t, b.out(), "its handler still runs")
		require.Equal(t, map[int64]int{0: 1}, b.last().counts)
		got[0].Nack()
		synctest.Wait()
		require.Empty(t, b.last().counts)
		end()
		<-ended
		require.Equal(t, progress{owned: true, deaths: 1}, b.last())
	})
}

// What runs in another partition of the process when it dies is not counted.
func TestCarefulClaimsOfAProcessTakeTurns(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{}, benchOption{former: &progress{owned: true, deaths: 1}}, func(t *testing.T, b *bench) {
		b.sub.turn <- struct{}{} // another partition runs a record
		b.write("")
		require.Empty(t, b.out())
		<-b.sub.turn
		require.Equal(t, []int64{0}, offsets(b.out()))
	})
}

// A route whose gate closes while its record is about to run keeps no other route waiting.
func TestACarefulClaimGivesItsTurnBackWhenItsGateCloses(t *testing.T) {
	t.Parallel()
	var closed atomic.Bool
	flow := pipeline.Flow{MaxInFlight: 1, Gate: func() bool { return !closed.Load() }}
	onBench(t, flow, benchOption{plain: true, former: &progress{owned: true, deaths: 1}}, func(t *testing.T, b *bench) {
		b.write("")
		synctest.Wait() // it is offered, and nobody takes it
		require.Len(t, b.sub.turn, 1)
		require.Equal(t, map[int64]int{0: 1}, b.last().counts)
		closed.Store(true)
		time.Sleep(gateInterval)
		synctest.Wait()
		require.Empty(t, b.sub.turn, "it is free")
		require.Empty(t, b.last().counts, "it did not run")
		b.sub.turn <- struct{}{} // another route runs its record
		closed.Store(false)
		time.Sleep(gateInterval)
		require.Empty(t, b.out())
		<-b.sub.turn
		require.Equal(t, []int64{0}, offsets(b.out()))
		require.Equal(t, map[int64]int{0: 1}, b.committed().counts)
	})
}

// A record that takes long keeps the suspects of other partitions and routes waiting for a while only.
func TestASlowRecordOfACarefulClaimGivesItsTurnBack(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{}, benchOption{plain: true, former: &progress{owned: true, deaths: 1}}, func(t *testing.T, b *bench) {
		b.write("", "")
		slow := b.out()
		require.Equal(t, []int64{0}, offsets(slow))
		require.Len(t, b.sub.turn, 1)
		time.Sleep(longestTurn)
		synctest.Wait()
		require.Empty(t, b.sub.turn, "others go on")
		require.Equal(t, map[int64]int{0: 1}, b.committed().counts, "it may still kill the process")
		b.sub.turn <- struct{}{} // a record of another route
		slow[0].Ack()
		synctest.Wait()
		require.Len(t, b.sub.turn, 1, "the other one keeps it")
		<-b.sub.turn
		require.Equal(t, []int64{1}, offsets(b.out()))
	})
}

// A handler that is slower than each rebalance is no reason to believe in more deaths.
func TestARebalanceAddsNoDeath(t *testing.T) {
	t.Parallel()
	former := &progress{owned: true, deaths: 1, counts: map[int64]int{0: 3}}
	onBench(t, pipeline.Flow{}, benchOption{plain: true, former: former}, func(t *testing.T, b *bench) {
		b.write("")
		require.Len(t, b.out(), 1)
		require.Equal(t, map[int64]int{0: 4}, b.committed().counts)
		b.endSess()
		<-b.ended
		require.Equal(t, map[int64]int{0: 3}, b.last().counts)
	})
}

const (
	killing  = "killer"
	crashing = "MILLRACE_TEST_CRASHING" // topic and brokers of the process that TestCrashing is
)

// crashRoute hands on what it reads, unless it is the killer.
func crashRoute(p *Plugin, topic string) pipeline.Route {
	return pipeline.Route{
		Name: "crashing", From: p.Source(topic, topic), To: p.Sink(topic + "-out"),
		Handle: func(m *message.Message) ([]*message.Message, error) {
			if string(m.Payload) == killing {
				os.Exit(3)
			}
			time.Sleep(2 * time.Millisecond) // the work itself
			return message.Messages{message.NewMessage(m.UUID, m.Payload)}, nil
		},
		Policy: pipeline.Policy{DeadLetter: p.Sink(topic + "-dead")},
	}
}

const crashLimit = 2 // so that the test needs few processes

// TestCrashing is the process of the test below.
func TestCrashing(t *testing.T) {
	topic, brokers, started := strings.Cut(os.Getenv(crashing), " ")
	if !started {
		return
	}
	p := New()
	p.deathLimit = crashLimit
	c, ours := p.Settings().(*Config)
	require.True(t, ours)
	quick(c)
	c.Brokers, c.Partitions, c.StaticMembership = strings.Split(brokers, ","), newPartitions, true // a restart waits for no timeout
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "crashing", InstanceConfigured: true, Logger: pipelinetest.Logger(t)}, p, router{crashRoute(p, topic)})
	require.NoError(t, err)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: middleware.New(reg, middleware.Options{}).Wrap})
	require.NoError(t, rt.Start(t.Context()))
	<-rt.Failed()
}

// A record that kills the process becomes a dead letter, and none of its neighbours does.
func TestARecordThatKillsTheProcessBecomesADeadLetter(t *testing.T) {
	t.Parallel()
	brokers := realServer().brokers(t)
	p := start(t, brokers, func(c *Config) { c.Partitions = newPartitions })
	topic := topicFor(t, p)
	t.Cleanup(func() { deleteTopics(t, p, topic+"-out", topic+"-dead") })
	require.NoError(t, p.ensureTopics(t.Context(), topic))
	fill(t, p, topic, "good", 10)
	publish(t, p, topic, texts(killing)...)
	fill(t, p, topic, "later", 40)
	_, out := subscribe(t, p.Source(topic+"-out", topic), pipeline.Flow{})
	handled := newWork()
	handled.on(out, 0)
	_, dead := subscribe(t, p.Source(topic+"-dead", topic), pipeline.Flow{})
	var letters []*message.Message
	done := func() bool {
		for {
			select {
			case m := <-dead:
				letters = append(letters, m)
				m.Ack()
			default:
				return len(letters) > 0 && handled.count() == 50*newPartitions
			}
		}
	}

	deaths := 0
	for !done() {
		require.LessOrEqual(t, deaths, 10, "it has a limit")
		ctx, kill := context.WithCancel(t.Context())
		process := exec.CommandContext(ctx, os.Args[0], "-test.run=^TestCrashing$")
		process.Env = append(os.Environ(), crashing+"="+topic+" "+strings.Join(brokers, ","))
		require.NoError(t, process.Start())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = process.Wait() // its exit code is below
		}()
		require.Eventually(t, func() bool {
			select {
			case <-ended:
				return true
			default:
				return done()
			}
		}, 2*time.Minute, 20*time.Millisecond)
		kill()
		<-ended
		if process.ProcessState.ExitCode() == 3 {
			deaths++
		}
	}
	require.Equal(t, crashLimit+2, deaths, "the first two name no record")
	require.Len(t, letters, 1)
	require.Equal(t, killing, string(letters[0].Payload))
	require.Equal(t, classProcessDeath, letters[0].Metadata.Get(pipeline.MetaDeadClass))
}

// The default limit needs no setting of a route that keeps its dead letters.
func TestDeathsAreCountedWhereDeadLettersAreKept(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		policy pipeline.Policy
		counts bool
	}{
		"dead letters":                         {pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")}, true},
		"dead letters, no limit of deliveries": {pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead"), MaxDeliveries: -1}, true},
		"a dead letter would be lost":          {pipeline.Policy{DeadLetter: pipeline.Drop, MaxDeliveries: 3}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := New()
			handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
			route := pipeline.Route{Name: "deaths", From: p.Source("topic", "group"), Handle: handle, Policy: tt.policy}
			_, err := pipeline.NewRegistry(pipeline.Env{Logger: pipelinetest.Logger(t)}, p, router{route})
			require.NoError(t, err)
			require.Equal(t, tt.counts, p.keepsDead(p.Source("topic", "group").Describe()))
			require.False(t, p.keepsDead(p.Source("topic", "another").Describe()))
			require.Equal(t, 5, p.deathLimit)
		})
	}
}

// A record at its limit is marked for the chain, and has no other one beside it, whatever the owner
// knows of earlier owners.
func TestARecordAtTheLimitOfDeathsIsNotHandled(t *testing.T) {
	t.Parallel()
	former := &progress{counts: map[int64]int{0: deathLimit - 1, 1: deathLimit}}
	onBench(t, pipeline.Flow{}, benchOption{plain: true, former: former}, func(t *testing.T, b *bench) {
		b.sub.deathLimit = deathLimit
		b.write("", "", "")
		first := b.out()
		require.Equal(t, []int64{0}, offsets(first), "it runs alone")
		require.Equal(t, progress{owned: true, counts: map[int64]int{0: deathLimit, 1: deathLimit}}, b.committed())
		require.NoError(t, pipeline.DeliveryFrom(first[0].Context()).Malformed)
		first[0].Ack()
		got := b.out()
		require.EqualValues(t, 1, offsetOf(got[0]))
		origin := pipeline.DeliveryFrom(got[0].Context())
		require.EqualError(t, origin.Malformed, "5 processes died while they ran this record, so it is not run again; look in their logs for the cause")
		require.Equal(t, classProcessDeath, pipeline.Class(origin.Malformed))
	})
}

// While a join is pending, the coordinator of a cooperative group answers no commit. What the member
// keeps goes on meanwhile.
func TestACommitWithoutAnAnswerStopsNoReader(t *testing.T) {
	t.Parallel()
	onBench(t, pipeline.Flow{}, benchOption{plain: true, former: &progress{}}, func(t *testing.T, b *bench) {
		answer := make(chan struct{})
		defer close(answer)
		b.write("")
		first := b.out()
		require.Len(t, first, 1, "the first commit is waited for")
		first[0].Ack()
		b.claim.crashes.commit = func() { <-answer }
		for range 3*normally - 1 {
			b.write("")
			got := b.out()
			require.Len(t, got, 1)
			got[0].Ack()
		}
	})
}
