package kafka

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

func TestClaimHandsOutAWindowInOrder(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 3}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("", "", "", "", "")
		first := b.out()
		require.Equal(t, []int64{0, 1, 2}, offsets(first))

		first[1].Ack()
		require.Empty(t, b.out(), "the window spans from the first unacknowledged record")
		require.Zero(t, b.marked())
		first[0].Ack()
		require.Equal(t, []int64{3, 4}, offsets(b.out()))
		require.EqualValues(t, 2, b.marked())
	})
}

func TestClaimWindowOfOneIsStrict(t *testing.T) {
	for name, f := range map[string]pipeline.Flow{
		"window 1":        {Window: 1},
		"order partition": {Window: 100, Order: pipeline.OrderPartition},
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, f, benchOption{}, func(t *testing.T, b *bench) {
				b.write("a", "b", "c")
				for want := range int64(3) {
					got := b.out()
					require.Equal(t, []int64{want}, offsets(got))
					got[0].Nack()
					require.Empty(t, b.out(), "a nacked record keeps its place")
					time.Sleep(time.Second)
					got = b.out()
					require.Equal(t, []int64{want}, offsets(got))
					require.EqualValues(t, 2, pipeline.DeliveryFrom(got[0].Context()).Delivered)
					got[0].Ack()
				}
				synctest.Wait()
				require.EqualValues(t, 3, b.marked())
			})
		})
	}
}

func TestClaimKeepsTheOrderOfAKey(t *testing.T) {
	onBench(t, pipeline.Flow{Order: pipeline.OrderKey}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("a", "a", "b", "", "", "a", "b")
		got := b.out()
		require.Equal(t, []int64{0, 2, 3, 4}, offsets(got), "one of each key, and all without one")
		got[0].Ack()
		second := b.out()
		require.Equal(t, []int64{1}, offsets(second))
		second[0].Nack()
		require.Empty(t, b.out(), "a failed record is not overtaken by its key's next")
		got[1].Ack()
		require.Equal(t, []int64{6}, offsets(b.out()))
		time.Sleep(time.Second)
		again := b.out()
		require.Equal(t, []int64{1}, offsets(again))
		again[0].Ack()
		require.Equal(t, []int64{5}, offsets(b.out()))
		require.EqualValues(t, 3, b.marked())
	})
}

func TestClaimBoundsWhatIsInFlight(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 100, MaxInFlight: 2}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("", "", "", "")
		got := b.out()
		require.Equal(t, []int64{0, 1}, offsets(got))
		got[0].Nack()
		require.Equal(t, []int64{2}, offsets(b.out()), "a record that pauses after a nack is not in flight")
		got[1].Ack()
		require.Equal(t, []int64{3}, offsets(b.out()))
		time.Sleep(time.Minute)
		require.Empty(t, b.out())
	})
}

// A message learns that its partition is taken away while its context goes on.
func TestAWaitEndsWhenThePartitionIsTakenAway(t *testing.T) {
	onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("")
		got := b.out()[0]
		select {
		case <-pipeline.DeliveryFrom(got.Context()).Revoked:
			require.Fail(t, "it is still here")
		default:
		}
		began := time.Now()
		b.endSess()
		<-pipeline.DeliveryFrom(got.Context()).Revoked
		require.NoError(t, got.Context().Err())
		got.Nack()
		<-b.ended
		require.Zero(t, time.Since(began), "nothing waits for the drain timeout")
		require.Zero(t, b.marked())
	})
}

func TestClaimBoundsBytes(t *testing.T) {
	onBench(t, pipeline.Flow{}, benchOption{config: func(c *Config) { c.WindowBytes = 1000 }}, func(t *testing.T, b *bench) {
		huge := string(make([]byte, 5000))
		for range 4 {
			b.writeRecord("", nil, huge)
		}
		got := b.out()
		require.Equal(t, []int64{0, 1}, offsets(got), "the first is free, the second takes all there is")
		got[0].Ack()
		require.Empty(t, b.out())
		got[1].Ack()
		require.Equal(t, []int64{2, 3}, offsets(b.out()), "the window was empty again")
		_, ok := b.sub.budget.take(1000)
		require.False(t, ok)
		b.endSess()
		<-b.ended
		_, ok = b.sub.budget.take(1000)
		require.True(t, ok, "a claim that ended takes nothing from the others")
	})
}

func TestClaimHoldsWhatIsNotDue(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 4}, benchOption{}, func(t *testing.T, b *bench) {
		b.again.FailWith(errors.New("it stays where it is"))
		b.writeRecord("", due(time.Hour), "later")
		b.writeRecord("", map[string]string{pipeline.MetaDue: "next tuesday"}, "unreadable")
		b.writeRecord("", due(-time.Hour), "past")
		b.writeRecord("", due(longestHold+time.Hour), "far away")
		b.write("beyond the window")

		got := b.out()
		require.Equal(t, []int64{1, 2}, offsets(got), "records behind it are not blocked within the window")
		for _, m := range got {
			m.Ack()
		}
		require.Empty(t, b.out())
		require.Equal(t, 2, b.claim.status(time.Now()).notDue)
		time.Sleep(time.Hour - time.Second)
		require.Empty(t, b.out(), "a second too early")
		time.Sleep(time.Second)
		got = b.out()
		require.Equal(t, []int64{0}, offsets(got))
		got[0].Ack()
		require.Equal(t, []int64{4}, offsets(b.out()))
		require.EqualValues(t, 3, b.marked())
	})
}

func TestClaimObeysTheGate(t *testing.T) {
	var open atomic.Bool
	open.Store(true)
	onBench(t, pipeline.Flow{Window: 10, Gate: open.Load}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("", "")
		inFlight := b.out()
		require.Len(t, inFlight, 2)
		open.Store(false)
		b.write("", "")
		time.Sleep(time.Minute)
		require.Empty(t, b.out())
		inFlight[0].Ack()
		inFlight[1].Nack()
		time.Sleep(time.Minute)
		require.Empty(t, b.out(), "nothing is delivered again either")
		require.EqualValues(t, 1, b.marked(), "what is in flight goes on")
		open.Store(true)
		time.Sleep(2 * gateInterval)
		require.ElementsMatch(t, []int64{1, 2, 3}, offsets(b.out()))
	})
}

// A gate that closes while a record waits for a reader takes it back.
func TestClaimGateClosesOnAWaitingRecord(t *testing.T) {
	var open atomic.Bool
	open.Store(true)
	onBench(t, pipeline.Flow{Gate: open.Load}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("")
		synctest.Wait() // it waits for a reader now
		open.Store(false)
		time.Sleep(2 * gateInterval)
		require.Empty(t, b.out())
		open.Store(true)
		time.Sleep(2 * gateInterval)
		require.Equal(t, []int64{0}, offsets(b.out()))
	})
}

func TestClaimRedeliversAtABoundedRate(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 10}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("", "")
		runs := map[int64]int{}
		begin := time.Now()
		for time.Since(begin) < 10*time.Minute {
			for _, m := range b.out() {
				o, offset := pipeline.DeliveryFrom(m.Context()), offsetOf(m)
				runs[offset]++
				require.EqualValues(t, runs[offset], o.Delivered)
				m.Metadata.Set("scribble", "of a handler")
				require.Equal(t, "x", string(m.Payload))
				if offset == 0 {
					m.Nack()
				} else {
					m.Ack()
				}
			}
			time.Sleep(50 * time.Millisecond)
		}
		require.Equal(t, 1, runs[1], "its neighbour is done at once")
		require.Greater(t, runs[0], 100)
		require.Less(t, runs[0], 200, "with up to five seconds between them")
	})
}

func TestClaimRedeliversAFreshCopy(t *testing.T) {
	onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
		b.writeRecord("k", map[string]string{"own": "1"}, "x")
		first := b.out()[0]
		first.Metadata.Set("own", "2")
		first.Metadata.Set("more", "3")
		first.Nack()
		time.Sleep(time.Second)
		again := b.out()[0]
		require.Equal(t, message.Metadata{"own": "1", pipeline.MetaKey: "k"}, again.Metadata)
	})
}

func TestClaimContextLivesUntilTheAnswer(t *testing.T) {
	onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("a", "b", "c")
		got := b.out()
		got[0].Ack()
		synctest.Wait()
		require.Error(t, got[0].Context().Err())
		b.endSess()
		time.Sleep(time.Hour) // the drain timeout is long over
		<-b.ended
		require.NoError(t, got[1].Context().Err(), "the partition is gone, the outcome is still worth having")
		got[1].Ack()
		synctest.Wait()
		require.Error(t, got[1].Context().Err())
		require.EqualValues(t, 1, b.marked(), "too late for a mark")
		require.NoError(t, got[2].Context().Err())
		b.sub.Stop()
		b.sub.Abandon()
		synctest.Wait()
		require.Error(t, got[2].Context().Err(), "abandoned")
	})
}

func TestClaimDrainsWhenItsPartitionIsTakenAway(t *testing.T) {
	for name, end := range map[string]func(*bench){
		"session ends":      func(b *bench) { b.endSess() },
		"records end":       func(b *bench) { close(b.records) },
		"subscription ends": func(b *bench) { b.sub.Stop() },
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, pipeline.Flow{Window: 4}, benchOption{}, func(t *testing.T, b *bench) {
				b.write("", "", "", "", "")
				got := b.out()
				require.Len(t, got, 4)
				got[0].Ack()
				require.Len(t, b.out(), 1)
				end(b)
				synctest.Wait()
				select {
				case <-b.ended:
					require.Fail(t, "the claim let go with records in flight")
				default:
				}
				time.Sleep(10 * time.Second)
				got[1].Ack()
				got[3].Ack()
				got[2].Nack()
				require.Empty(t, b.out(), "nothing is delivered again")
				require.EqualValues(t, 2, b.marked())
			})
		})
	}
}

// A rebalance makes the whole group wait, so it has a limit; a stop has the limit of its caller.
func TestClaimDrainHasTheRightLimit(t *testing.T) {
	onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("")
		require.Len(t, b.out(), 1)
		begin := time.Now()
		b.endSess()
		<-b.ended
		require.Equal(t, b.sub.config.DrainTimeout, time.Since(begin))
		require.Contains(t, b.log.String(), "still in flight")
	})
	onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("")
		got := b.out()
		b.sub.Stop()
		time.Sleep(10 * b.sub.config.DrainTimeout)
		got[0].Ack()
		<-b.ended
		require.EqualValues(t, 1, b.marked())
	})
}

func TestClaimEndsAtOnceWhenAllIsAnswered(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 8}, benchOption{}, func(t *testing.T, b *bench) {
		b.write("", "")
		b.writeRecord("", due(time.Hour), "held")
		got := b.out()
		b.endSess()
		begin := time.Now()
		got[0].Ack()
		got[1].Ack()
		<-b.ended
		require.Zero(t, time.Since(begin), "held records are not waited for")
	})
}

func TestClaimHandsProgressToTheNextOwner(t *testing.T) {
	var meta string
	onBench(t, pipeline.Flow{Window: 8}, benchOption{}, func(t *testing.T, b *bench) {
		b.writeRecord("", due(time.Hour), "held")
		b.write("", "", "", "")
		got := b.out()
		require.Equal(t, []int64{1, 2, 3, 4}, offsets(got))
		got[0].Ack()
		got[2].Ack()
		got[3].Nack()
		got[1].Ack()
		synctest.Wait()
		b.endSess()
		<-b.ended
		require.Zero(t, b.marked(), "the mark stays at the held record")
		meta = b.meta
	})
	done := decodeProgress(0, meta).done
	require.Equal(t, doneBefore{1, 2, 3}, done)

	// The next owner is stopped before it has read everything: the rest is handed on as well.
	onBench(t, pipeline.Flow{Window: 8}, benchOption{done: done}, func(t *testing.T, b *bench) {
		b.writeRecord("", due(time.Hour), "held")
		b.write("")
		require.Empty(t, b.out())
		b.endSess()
		<-b.ended
		require.Equal(t, done, decodeProgress(0, b.meta).done)
	})
	onBench(t, pipeline.Flow{Window: 8}, benchOption{done: done}, func(t *testing.T, b *bench) {
		b.write("", "", "", "", "", "")
		got := b.out()
		require.Equal(t, []int64{0, 4, 5}, offsets(got), "only what is not done")
		for _, m := range got {
			m.Ack()
		}
		synctest.Wait()
		require.EqualValues(t, 6, b.marked())
		b.endSess()
		<-b.ended
		require.Empty(t, b.meta)
	})
}

func TestClaimNamesTheHeadOfLine(t *testing.T) {
	onBench(t, pipeline.Flow{Window: 10}, benchOption{}, func(t *testing.T, b *bench) {
		b.sub.config.HeadOfLineWarnAfter = 30 * time.Second
		go b.sub.watchHeads()
		for i := range 10 {
			b.write(fmt.Sprint(i))
		}
		got := b.out()
		got[0].Ack()
		b.out()
		for _, m := range got[2:8] {
			m.Ack()
		}
		synctest.Wait()
		time.Sleep(20 * time.Second)
		synctest.Wait()
		l := b.claim.status(time.Now())
		require.Equal(t, claimStatus{inFlight: 3, heldBack: 6, lag: 9, lagAge: 20 * time.Second, headOffset: 1, headFor: 20 * time.Second}, l)
		require.Empty(t, b.log.String(), "not yet")
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Equal(t, 1, strings.Count(b.log.String(), "holds back"), "once per record")
		require.Contains(t, b.log.String(), "topic=topic group=group partition=3 offset=1 count=6 held_for=30s")
		got[1].Ack()
		synctest.Wait()
		require.Zero(t, b.claim.status(time.Now()).heldBack)
	})
}

func TestTroubleIsLoggedOnceAChange(t *testing.T) {
	for name, cure := range map[string]func(*bench){
		"a session begins": func(b *bench) { b.sub.joined(0) },
		"a record comes":   func(b *bench) { b.write("") },
	} {
		t.Run(name, func(t *testing.T) {
			onBench(t, pipeline.Flow{}, benchOption{}, func(t *testing.T, b *bench) {
				for round := 1; round <= 2; round++ {
					for range 10 {
						b.sub.markDown(errors.New("broker away"))
					}
					require.Equal(t, round, strings.Count(b.log.String(), "level=WARN"))
					cure(b)
					cure(b)
					b.out()
					require.Equal(t, round, strings.Count(b.log.String(), "has recovered"))
				}
			})
		})
	}
}
