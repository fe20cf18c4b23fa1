package gateway

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// hasGap returns a client that has the first events of a job, which are kept, and a gap up to 5. Another
// client has received the numbers of the gap, so nobody waits for them when Redis has lost them.
func (r *redisRig) hasGap(p *process, id string, kept int) *watch {
	r.t.Helper()
	other := p.watch(r.domain, id, "")
	redistest.Eventually(r.t, "attached", func() bool { return p.attached(r.domain, id) == 1 })
	events := r.life(id, "old", 5, "step")
	r.add(events...)
	other.wait("5")
	r.loses(id)
	r.store(events[:kept]...)
	w := p.readUntil(r.domain, id, fmt.Sprintf("gap %d-5", kept+1))
	other.cancel()
	<-other.done
	return w
}

// afterGap is what a client of hasGap receives when all five numbers are there, by the events that were kept.
var afterGap = map[int][]string{
	0: {"gap 1-5", "1", "2", "3", "4", "5", "closed done"},
	2: {"gap 3-5", "3", "4", "5", "closed done"},
}

// A client was told that numbers are missing, and goes. They are given to other events, or come late. When
// the client comes back, it receives them, and the end among them.
func TestAClientThatComesBackReceivesWhatWasMissing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		for kept, want := range afterGap {
			id := fmt.Sprint("kept-", kept)
			w := r.hasGap(first, id, kept)
			r.add(r.life(id, "new", 5, "done")...)
			for _, p := range []*process{second, first} {
				require.Equal(t, want, withoutStates(p.resume(r.domain, id, w).run().ends()), id)
			}
		}
	})
}

// The same client comes back before the numbers do, to a gateway that does not know of them.
func TestAClientThatIsBackReceivesWhatWasMissing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		for kept, want := range afterGap {
			id := fmt.Sprint("kept-", kept)
			w := r.hasGap(first, id, kept)
			r.readsFeed(second)
			back := second.resume(r.domain, id, w).run()
			redistest.Eventually(t, "attached", func() bool { return second.attached(r.domain, id) == 1 })
			r.add(r.life(id, "new", 5, "done")[kept:]...)
			require.Equal(t, want, withoutStates(back.ends()), id)
			require.NoError(t, back.client.Run(t.Context()), "204")
		}
	})
}

// A number comes between the read of the page and the attachment of a client that has it as missing.
func TestAMissingNumberThatComesBeforeTheAttachment(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	s := p.newStream([]jobKey{{r.domain, "job"}}, "5.0-0.0")
	defer s.leave()
	require.NoError(t, s.first(t.Context(), false))
	w := s.watchers[0]
	require.Equal(t, cursor{at: 5}, w.cursor)
	r.add(r.event("job", 1, "step"))
	r.readsFeed(p)
	require.False(t, s.attach())
	require.NoError(t, s.readPages(t.Context()))
	require.Equal(t, cursor{}, w.cursor)
	require.Equal(t, []int64{1, 5}, []int64{w.taken[0].from, w.taken[0].to})
}

// The feed of a gateway is behind, and brings numbers that Redis has lost before their client is attached.
// They are given again, and the client is told.
func TestAFeedThatIsBehindALoss(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	first, second := r.start("", nil), r.start("", func(c *Config) { c.GapWait = time.Minute })
	texts := r.store(r.life("job", "old", 5, "step")...)
	w := first.readUntil(r.domain, "job", "5")
	r.loses("job")
	early := second.newStream([]jobKey{{r.domain, "job"}}, "")
	defer early.leave()
	r.publish(texts...)
	r.readsFeed(second)
	back := second.resume(r.domain, "job", w).run()
	redistest.Eventually(t, "attached", func() bool { return second.attached(r.domain, "job") == 1 })
	r.add(r.life("job", "new", 3, "done")...)
	require.Equal(t, []string{"gap 1-5", "1", "2", "3", "closed done"}, withoutStates(back.ends()))
}

// A client has the last number of a job, Redis has lost it, and it is given to the end.
func TestTheEndHasTheNumberThatAClientHas(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, p := r.start("", nil), r.start("", nil)
		events := r.life("job", "old", 3, "step")
		r.add(events...)
		w := first.readUntil(r.domain, "job", "3")
		r.readsFeed(p)
		r.loses("job")
		r.store(events[:2]...)
		back := p.resume(r.domain, "job", w).run()
		redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
		r.add(r.event("job", 3, "done"))
		require.Equal(t, []string{"gap 3-3", "3", "closed done"}, withoutStates(back.ends()))
	})
}

// The feed brings the end of an earlier history after the log has shown another event with its number.
func TestAnEndThatTheFeedBringsTooLate(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := newSequence(time.Second)
	require.True(t, s.attach(0, page{}))
	for n := int64(1); n <= 3; n++ {
		s.feed(item{seq: n, content: uint64(n), entry: entry{20 + n, 0}}, now)
	}
	for n := int64(2); n <= 3; n++ {
		out, late := s.feed(item{seq: n, end: "done", content: 9, entry: entry{10 + n, 0}}, now)
		require.Empty(t, out)
		require.False(t, late)
	}
	out, _ := s.feed(item{seq: 4, end: "done", entry: entry{30, 0}}, now)
	require.Len(t, out, 1)
	require.True(t, s.finished)
}

// A gap never has the end, so only a client that names the number alone is trusted to have it.
func TestWhoHasTheEnd(t *testing.T) {
	for text, want := range map[string]bool{"5": true, "5.9-1": true, "7.9-1.5": true, "5.0-0.0": false, "5.9-1.4": false, "7": false} {
		c, ok := parseCursor(text)
		require.True(t, ok)
		require.Equal(t, want, c.hasEnd(5), text)
		_, _, send := take(c, outgoing{kind: numbered, item: item{seq: 5, end: "done"}, ends: true})
		require.Equal(t, !want, send, text)
	}
}

// Numbers come after they were reported as missing. Each is sent in its place, and nobody waits again for
// those that are still missing.
func TestLateNumbersAreSentInTheirPlaces(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	at := func(n int64) item { return item{seq: n, content: uint64(n), entry: entry{n, 0}} }
	late := func(n int64) item { return item{seq: n, content: uint64(n), entry: entry{100 + n, 0}} }
	var got []string
	send := func(steps []outgoing) {
		for _, one := range steps {
			switch one.kind {
			case numbered:
				got = append(got, fmt.Sprint(one.item.seq))
			case missing, again:
				got = append(got, fmt.Sprint(map[kind]string{missing: "gap ", again: "back "}[one.kind], one.from, "-", one.to))
			case transient, latest:
			}
		}
	}
	log := []item{{seq: 1}}
	read := func() {
		p := page{after: s.next(), top: log[len(log)-1].seq, begun: now}
		for _, it := range log {
			if it.seq > p.after {
				p.items = append(p.items, it)
			}
		}
		p.state = &log[len(log)-1]
		send(s.page(p, now))
	}
	add := func(i int, it item, want bool) {
		log = slices.Insert(log, i, it)
		out, isLate := s.feed(it, now)
		require.Equal(t, want, isLate)
		send(out)
	}
	add(1, at(6), false)
	now = now.Add(time.Second)
	read()
	require.Equal(t, []string{"gap 2-5", "6"}, got)
	got = nil
	add(1, late(3), true)
	for s.needsLog() {
		read()
	}
	require.Equal(t, []string{"back 3-6", "3", "gap 4-5", "6"}, got)
	got = nil
	add(2, late(5), true)
	add(1, late(2), true) // while the log is read for the other one
	for s.needsLog() {
		read()
	}
	require.Equal(t, []string{"back 2-6", "2", "3", "gap 4-4", "5", "6"}, got)
	out, isLate := s.feed(late(2), now)
	require.Empty(t, out)
	require.False(t, isLate)
	require.False(t, s.needsLog())
}

// A router needs longer than gap_wait for an event, and later ones are in the log before it. The clients of all
// gateways receive it in its place, and so does one that has changed the gateway after the gap.
func TestALateEventReachesAllClients(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		r.steps("job", 1, 1)
		var clients []*watch
		for _, p := range []*process{first, second, first} {
			w := newWatch(t, p, p.path(r.domain, "job")+"/events")
			w.restarts = true
			clients = append(clients, w.run().wait("1"))
		}
		late := r.event("job", 2, "step")
		r.steps("job", 3, 4)
		for _, w := range clients {
			w.wait("4")
		}
		moved := clients[2]
		moved.cancel()
		<-moved.done
		clients[2] = second.resume(r.domain, "job", moved).run()
		redistest.Eventually(t, "attached", func() bool {
			return first.attached(r.domain, "job") == 1 && second.attached(r.domain, "job") == 2
		})
		r.add(late)
		for i, w := range clients {
			w.wait("2")
			redistest.Eventually(t, "all are sent again", func() bool {
				got := withoutStates(w.received())
				return got[len(got)-1] == "4"
			})
			want := []string{"1", "gap 2-2", "3", "4", "gap 2-4", "2", "3", "4"}
			if i == 2 {
				want = want[4:]
			}
			require.Equal(t, want, withoutStates(w.received()))
		}
		r.add(r.event("job", 5, "done"))
		for _, w := range clients {
			w.ends()
		}
	})
}
