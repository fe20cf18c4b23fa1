package joblog_test

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

const (
	added     = joblog.Added
	duplicate = joblog.Duplicate
	afterEnd  = joblog.AfterEnd
	expired   = joblog.Expired
	conflict  = joblog.Conflict
)

func TestTheFirstContentOfANumberStays(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		first, second := r.event(job, 1, "step"), r.event(job, 1, "step")
		first.Status, second.Status = "first", "second"
		second.StreamID = entryID(time.Second)
		require.Equal(t, []joblog.Outcome{added, conflict}, r.append(first, second))
		result := r.log.Append(t.Context(), r.domain, [][]event.Event{{second}})[0]
		text, err := first.JSON()
		require.NoError(t, err)
		require.Equal(t, []joblog.Answer{{Outcome: conflict, Text: string(text)}}, result.Answers, "the feed gets the first")
		require.Zero(t, result.StateUpdates)
		snapshot := r.read(job, 0, 10)
		require.Equal(t, []event.Event{first}, snapshot.Events)
		require.Equal(t, &first, snapshot.State)
	})
}

func TestTheStateHasTheHighestNumber(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		require.Equal(t, []joblog.Outcome{added, added, added}, r.steps(job, 2, 5, 3))
		snapshot := r.read(job, 0, 10)
		require.EqualValues(t, 5, snapshot.State.Seq)
		require.EqualValues(t, 5, snapshot.Top)
		require.Equal(t, []int64{2, 3, 5}, numbers(snapshot.Events))
		require.Zero(t, snapshot.End)
		require.True(t, snapshot.Found)
		require.Equal(t, joblog.Snapshot{First: 1}, r.read(newJob(), 0, 10))
	})
}

func TestTheFirstTerminalEventEndsTheJob(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		r.steps(job, 1, 5, 6)
		require.Equal(t, []joblog.Outcome{added, afterEnd, added, added, duplicate},
			r.append(r.event(job, 4, "done"), r.event(job, 7, "step"), r.event(job, 2, "step"), r.event(job, 3, "error"), r.event(job, 4, "done")))
		require.Equal(t, []joblog.Outcome{afterEnd, afterEnd}, r.steps(job, 5, 9))
		snapshot := r.read(job, 0, 10)
		require.Equal(t, []int64{1, 2, 3, 4}, numbers(snapshot.Events), "what came before the end with a greater number is not shown")
		require.EqualValues(t, 4, snapshot.End)
		require.EqualValues(t, 4, snapshot.Top)
		require.Equal(t, "done", snapshot.State.Stage)
	})
}

func TestALogHasALimit(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s, func(c *joblog.Config) { c.LogMax = 5 }), newJob()
		r.steps(job, 1, 2, 10, 20, 1_700_000_000_000, 1_700_000_000_001, 30)
		snapshot := r.read(job, 0, 3)
		require.Equal(t, []int64{10, 20, 30}, numbers(snapshot.Events), "the lowest numbers leave")
		require.EqualValues(t, 3, snapshot.First)
		require.Equal(t, []int64{1_700_000_000_000, 1_700_000_000_001}, numbers(r.read(job, 30, 3).Events))
		require.Equal(t, []joblog.Outcome{duplicate}, r.steps(job, 2), "it was in the log, or is too late for it")
		require.Equal(t, []int64{10, 20, 30}, numbers(r.read(job, 0, 3).Events))
	})
}

// Sorting is expensive, so it is not done for each event.
func TestALogWithHolesExceedsItsLimitByATenth(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s, func(c *joblog.Config) { c.LogMax = 20 }), newJob()
		for n := int64(1); n <= 43; n += 2 {
			r.steps(job, n)
		}
		require.Len(t, numbers(r.read(job, 0, 100).Events), 21, "1 left without sorting")
		r.steps(job, 45, 47)
		snapshot := r.read(job, 0, 100)
		require.Len(t, numbers(snapshot.Events), 20)
		require.EqualValues(t, 8, snapshot.First)
		r.append(r.event(job, 49, "done"), r.event(job, 51, "step"))
		require.Equal(t, []joblog.Outcome{duplicate, afterEnd}, r.steps(job, 3, 53))
	})
}

// BenchmarkAppendToALogWithHoles: one event per call, and the log is full.
func BenchmarkAppendToALogWithHoles(b *testing.B) {
	for _, longest := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(longest), func(b *testing.B) {
			r, job := newRig(b, redistest.Real(b, "redis"), func(c *joblog.Config) { c.LogMax = longest }), newJob()
			var events []event.Event
			for n := range int64(longest) {
				events = append(events, r.event(job, 2*n+1, "step"))
			}
			r.append(events...)
			for n := int64(longest); b.Loop(); n++ {
				r.steps(job, 2*n+1)
			}
		})
	}
}

// R19: the log is gone, and the entry comes again much later.
func TestAnOldEntryDoesNotBeginAJobAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s, func(c *joblog.Config) { c.StateTTL = time.Minute }), newJob()
		old := r.event(job, 5, "step")
		old.StreamID = entryID(2 * time.Minute)
		require.Equal(t, []joblog.Outcome{expired}, r.append(old))
		require.False(t, r.read(job, 0, 1).Found)
		require.Equal(t, []joblog.Outcome{added}, r.steps(job, 6))
		require.Equal(t, []joblog.Outcome{added}, r.append(old), "the log is there, and does not have it")
	})
}

// R19 after the end: the log expires long before the state.
func TestTheStateOutlivesTheLog(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		r.append(r.event(job, 1, "step"), r.event(job, 2, "done"))
		require.NoError(t, r.client.Del(t.Context(), joblog.LogKey(r.domain, job)).Err())
		require.Equal(t, []joblog.Outcome{expired, expired, afterEnd}, r.steps(job, 1, 2, 3))
		snapshot := r.read(job, 0, 10)
		require.Equal(t, "done", snapshot.State.Stage)
		require.Equal(t, []int64{2, 3, 2}, []int64{snapshot.Top, snapshot.First, snapshot.End})
		require.Empty(t, snapshot.Events)

		job = newJob()
		r.steps(job, 1, 2)
		require.NoError(t, r.client.Del(t.Context(), joblog.LogKey(r.domain, job)).Err())
		require.Equal(t, []joblog.Outcome{expired, added, duplicate}, r.steps(job, 2, 4, 1))
		snapshot = r.read(job, 0, 10)
		require.Equal(t, []int64{4, 3, 0}, []int64{snapshot.Top, snapshot.First, snapshot.End}, "the log begins after the state")
	})
}

func TestKeysExpire(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s, func(c *joblog.Config) {
			c.StateTTL, c.LogTTL, c.LogTTLAfterEnd = time.Hour, 2*time.Hour, 10*time.Minute
		}), newJob()
		expect := func(key string, want time.Duration) {
			t.Helper()
			ttl := r.client.PTTL(context.Background(), key).Val()
			require.LessOrEqual(t, ttl, want)
			require.Greater(t, ttl, want-time.Minute)
		}
		log, state := joblog.LogKey(r.domain, job), joblog.StateKey(r.domain, job)
		r.steps(job, 1)
		expect(log, 2*time.Hour)
		expect(state, time.Hour)
		require.NoError(t, r.client.PExpire(t.Context(), log, time.Minute).Err())
		require.NoError(t, r.client.PExpire(t.Context(), state, time.Minute).Err())
		r.steps(job, 1)
		expect(log, time.Minute)
		expect(state, time.Minute)
		r.steps(job, 3)
		expect(log, 2*time.Hour)
		expect(state, time.Hour)
		r.append(r.event(job, 4, "done"))
		expect(log, 10*time.Minute)
		require.NoError(t, r.client.PExpire(t.Context(), log, 5*time.Minute).Err())
		require.NoError(t, r.client.Del(t.Context(), state).Err())
		r.steps(job, 2)
		expect(log, 5*time.Minute)
		expect(state, time.Hour)
		require.EqualValues(t, 4, r.read(job, 0, 1).State.Seq)
		require.NoError(t, r.log.Publish(t.Context(), r.domain, 0, []string{"{}"}))
		expect(joblog.FeedKey(r.domain, 0), 2*time.Hour)
	})
}

func TestAJobThatFailsFailsAlone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, bad, good := newRig(t, s), newJob(), newJob()
		require.NoError(t, r.client.Set(t.Context(), joblog.LogKey(r.domain, bad), "text", 0).Err())
		results := r.log.Append(t.Context(), r.domain, [][]event.Event{{r.event(bad, 1, "step")}, {r.event(good, 1, "step")}})
		require.ErrorContains(t, results[0].Err, "WRONGTYPE")
		require.NoError(t, results[1].Err)
		require.Equal(t, 1, results[1].StateUpdates)
		snapshots := r.log.Read(t.Context(), []joblog.Query{{r.domain, bad, 0, 1}, {r.domain, good, 0, 1}})
		require.ErrorContains(t, snapshots[0].Err, "WRONGTYPE")
		require.EqualValues(t, 1, snapshots[1].Top)
	})
}

func TestATextThatIsNoEventIsMissing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		r.steps(job, 1, 2, 3)
		for _, number := range []string{"2", "3"} {
			require.NoError(t, r.client.HSet(t.Context(), joblog.LogKey(r.domain, job), number, "{").Err())
		}
		require.NoError(t, r.client.Set(t.Context(), joblog.StateKey(r.domain, job), "{", 0).Err())
		snapshot := r.read(job, 0, 10)
		require.Equal(t, []int64{1}, numbers(snapshot.Events))
		require.Nil(t, snapshot.State)
		require.True(t, snapshot.Found)
		require.EqualValues(t, 3, snapshot.Top)
		require.Equal(t, []joblog.Outcome{added}, r.steps(job, 4))
		require.Equal(t, []int64{1, 4}, numbers(r.read(job, 0, 10).Events))
	})
}

// R3: the same job in two domains.
func TestDomainsShareNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		r.steps(job, 1)
		r.domain += "-chat"
		require.False(t, r.read(job, 0, 1).Found)
		require.Equal(t, []joblog.Outcome{added}, r.steps(job, 1))
	})
}

func TestManyEventsOfOneJob(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		var events []event.Event
		for n := range int64(1100) {
			events = append(events, r.event(job, n+1, "step"))
		}
		for _, outcome := range r.append(events...) {
			require.Equal(t, added, outcome)
		}
		var all []int64
		for after := int64(0); ; {
			page := r.read(job, after, 64)
			require.EqualValues(t, 101, page.First)
			if len(page.Events) == 0 {
				break
			}
			require.LessOrEqual(t, len(page.Events), 64)
			all = append(all, numbers(page.Events)...)
			after = all[len(all)-1]
		}
		require.Len(t, all, 1000)
		require.EqualValues(t, 101, all[0])
		require.EqualValues(t, 1100, all[999])
	})
}

func TestTheFeedKeepsTheOrder(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.NoError(t, r.log.Publish(t.Context(), r.domain, 3, []string{"b", "a", "b"}))
		entries, err := r.client.XRange(t.Context(), joblog.FeedKey(r.domain, 3), "-", "+").Result()
		require.NoError(t, err)
		require.Len(t, entries, 3)
		for i, want := range []string{"b", "a", "b"} {
			require.Equal(t, want, entries[i].Values[joblog.FeedField])
		}
		require.NoError(t, r.client.Set(t.Context(), joblog.FeedKey(r.domain, 4), "text", 0).Err())
		require.ErrorContains(t, r.log.Publish(t.Context(), r.domain, 4, []string{"b"}), "WRONGTYPE")
	})
}

// Another program may have written a state or fields of a log that are no event and no number.
func TestAForeignStateCountsAsNone(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		for _, text := range []string{"", "junk", `{"job_id":"old","stage":"vision"}`, `{"stage":"vision","seq":"1"}`} {
			job := newJob()
			require.NoError(t, r.client.Set(t.Context(), joblog.StateKey(r.domain, job), text, 0).Err())
			require.Equal(t, []joblog.Outcome{joblog.Added, joblog.Added}, r.steps(job, 1, 2), text)
			snapshot := r.read(job, 0, 10)
			require.Equal(t, []int64{1, 2}, numbers(snapshot.Events))
			require.EqualValues(t, 2, snapshot.State.Seq)
		}
		for _, field := range []string{"top", "first", "end"} {
			job := newJob()
			require.NoError(t, r.client.HSet(t.Context(), joblog.LogKey(r.domain, job), field, "junk").Err())
			require.Equal(t, []joblog.Outcome{joblog.Added}, r.steps(job, 1), field)
		}
	})
}

// A worker that repeats an event writes another entry, with another id and time. Only an event that
// says something else is lost.
func TestARepetitionIsNoConflict(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		first := r.event(job, 1, "step")
		first.Data, first.Timestamp, first.EventID = json.RawMessage(`{"text": "<a>"}`), "1700000000", "e1"
		again := first
		again.StreamID, again.Timestamp, again.EventID = entryID(0)+"1", "1700000009", "e2"
		require.Equal(t, []joblog.Outcome{added, duplicate, duplicate}, r.append(first, first, again))
		for _, change := range []func(*event.Event){
			func(e *event.Event) { e.Stage = "done" }, func(e *event.Event) { e.Status = "other" }, func(e *event.Event) { e.Data = nil },
			func(e *event.Event) { e.Data = json.RawMessage(`{"text":"<b>"}`) },
		} {
			other := again
			change(&other)
			require.Equal(t, []joblog.Outcome{conflict}, r.append(other))
		}
		require.Equal(t, []int64{1}, numbers(r.read(job, 0, 10).Events))
		require.Zero(t, r.read(job, 0, 10).End)
	})
}

func TestAJobThatWasResetRunsAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r, job := newRig(t, s), newJob()
		kept := func() joblog.Kept {
			k, err := r.log.Kept(t.Context(), r.domain, job)
			require.NoError(t, err)
			return k
		}
		require.Zero(t, kept())
		r.append(r.event(job, 1, "step"), r.event(job, 2, "done"))
		require.Equal(t, joblog.Kept{State: true, Log: true, Top: 2, End: 2}, kept())
		require.Equal(t, []joblog.Outcome{afterEnd}, r.steps(job, 3))
		require.NoError(t, r.client.Del(t.Context(), joblog.LogKey(r.domain, job)).Err())
		require.Equal(t, joblog.Kept{State: true, Top: 2, End: 2}, kept())
		require.NoError(t, r.log.Reset(t.Context(), r.domain, 0, job))
		require.Zero(t, kept())
		require.Equal(t, []joblog.Outcome{added, added}, r.steps(job, 1, 3))

		require.NoError(t, r.log.Reset(t.Context(), r.domain, 0, job))
		require.NoError(t, r.client.Set(t.Context(), joblog.LogKey(r.domain, job), "text", 0).Err())
		require.Equal(t, joblog.Kept{Log: true}, kept(), "of another type")
		require.NoError(t, r.log.Reset(t.Context(), r.domain, 0, job))
		require.Equal(t, []joblog.Outcome{added}, r.steps(job, 1))
	})
}
