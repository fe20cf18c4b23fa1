package gateway

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// hasPassedGap returns a client that has received a gap of number 2 and the events 3 and 4 after it, and the
// missing event.
func (r *redisRig) hasPassedGap(p *process, id string) (w *watch, missing func(publish bool)) {
	r.t.Helper()
	r.steps(id, 1, 1)
	late := r.event(id, 2, "step")
	r.steps(id, 3, 4)
	w = p.readUntil(r.domain, id, "4")
	require.Equal(r.t, []string{"1", "gap 2-2", "3", "4"}, withoutStates(w.received()))
	return w, func(publish bool) {
		if texts := r.store(late); publish {
			r.publish(texts...)
		}
	}
}

// A client has received a gap and later events, and goes. The missing event comes while it is away, so it is
// told when it comes back, at the gateway that knows of the gap and at one that does not.
func TestAClientThatComesBackPastAGapReceivesWhatCameLate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		w, missing := r.hasPassedGap(first, "job")
		missing(true)
		want := []string{"gap 2-4", "2", "3", "4"}
		for _, p := range []*process{first, second} {
			r.readsFeed(p) // otherwise the news of the missing event may come later, and it is sent again
			back := p.resume(r.domain, "job", w).run().wait("4")
			require.Equal(t, want, withoutStates(back.received()))
			back.cancel()
			<-back.done
			redistest.Eventually(t, "left", func() bool { return p.attached(r.domain, "job") == 0 })
			again := p.resume(r.domain, "job", back).run()
			redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
			require.Empty(t, withoutStates(again.received()), "it has all")
			again.cancel()
			<-again.done
		}
	})
}

// The client is back before the missing event comes, at a gateway that does not know of the gap, with another
// client that has it, too, and one that has nothing.
func TestAClientThatIsBackPastAGapReceivesWhatComesLate(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		w, missing := r.hasPassedGap(first, "job")
		r.readsFeed(second)
		back := []*watch{second.resume(r.domain, "job", w).run(), second.resume(r.domain, "job", w).run()}
		redistest.Eventually(t, "attached", func() bool { return second.attached(r.domain, "job") == 2 })
		missing(true)
		r.add(r.event("job", 5, "done"))
		for _, one := range back {
			require.Equal(t, []string{"gap 2-4", "2", "3", "4", "5", "closed done"}, withoutStates(one.ends()))
			require.NoError(t, one.client.Run(t.Context()), "204")
		}
	})
}

// The news of a missing event does not arrive, because the feed was trimmed or could not be read.
func TestALateEventWhoseNewsAreMissed(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	first, p := r.start("", nil), r.start("", nil)
	w, missing := r.hasPassedGap(first, "job")
	back := p.resume(r.domain, "job", w).run()
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	missing(false)
	p.domain(r.domain).lost()
	back.wait("4")
	require.Equal(t, []string{"gap 2-4", "2", "3", "4"}, withoutStates(back.received()))
}

// A missing event comes between the read of the log and the attachment of the client.
func TestALateEventThatComesBeforeTheAttachment(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	first, p := r.start("", nil), r.start("", nil)
	w, missing := r.hasPassedGap(first, "job")
	s := p.newStream([]jobKey{{r.domain, "job"}}, w.client.LastEventID)
	defer s.leave()
	require.NoError(t, s.first(t.Context(), false))
	missing(true)
	r.readsFeed(p)
	require.False(t, s.attach())
	require.NoError(t, s.readPages(t.Context()))
	require.EqualValues(t, 1, s.watchers[0].cursor.at)
	require.Equal(t, []int64{2, 4}, []int64{s.watchers[0].taken[0].from, s.watchers[0].taken[0].to})
}

// Only the newest gaps are kept, and what is taken back is no gap any more.
func TestTheGapsOfACursor(t *testing.T) {
	t.Parallel()
	at := func(n int64) outgoing { return outgoing{kind: numbered, item: item{seq: n, entry: entry{n, 0}}} }
	var c cursor
	for n := int64(2); n <= 12; n += 2 {
		for _, one := range []outgoing{{kind: missing, from: n - 1, to: n - 1}, at(n)} {
			_, c, _ = take(c, one)
		}
	}
	require.Equal(t, "12.12-0~5~7~9~11", c.String())
	_, c, _ = take(c, outgoing{kind: missing, from: 13, to: 20})
	require.Equal(t, "20.12-0.12~5~7~9~11", c.String())
	require.Equal(t, gaps{{7, 7}, {9, 9}, {11, 11}, {13, 20}}, c.missing())
	_, late, _ := take(c, outgoing{kind: again, from: 15, to: 20})
	require.Equal(t, "14.12-0.12~5~7~9~11", late.String(), "its events stay")
	_, c, _ = take(c, outgoing{kind: again, from: 9, to: 20, item: item{seq: 8, entry: entry{8, 0}}})
	require.Equal(t, "8.8-0~5~7", c.String())
	_, c, _ = take(c, at(9))
	require.Equal(t, "9.9-0~5~7", c.String())
	_, c, _ = take(c, outgoing{kind: again, from: 1, to: 9})
	require.Equal(t, cursor{}, c)
}

// The ids of a stream with many jobs stay within their limit.
func TestTheGapsOfManyJobs(t *testing.T) {
	t.Parallel()
	s := &stream{several: true}
	for i := range maxJobs {
		c := cursor{at: newest, mark: mark{seq: newest, entry: entry{1732662934123, 10}}}
		for n := int64(1); n <= gapsKept; n++ {
			c.gaps[n-1] = span{n * newest / 10, n*newest/10 + 1}
		}
		s.watchers = append(s.watchers, &watcher{key: jobKey{"scan", fmt.Sprint(i)}, cursor: c})
	}
	id := s.id(s.watchers[0])
	require.LessOrEqual(t, len(id), maxIDBytes)
	require.Len(t, cursors(id), maxJobs)
	require.Greater(t, strings.Count(id, "~"), gapsKept)
}
