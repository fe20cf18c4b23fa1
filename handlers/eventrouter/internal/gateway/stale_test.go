package gateway

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The feed of a gateway is behind, and still has the whole first history of a job whose log was lost: with more
// numbers than the second one has so far, and with its end. None of it reaches a client of the second history, which
// goes on.
func TestAnOldEndAboveAllNewNumbers(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for name, when := range map[string]string{"before": "the client is attached", "after": "the client is attached"} {
			t.Run(name+" "+when, func(t *testing.T) {
				r := newRedis(t, s)
				p := r.start("", func(c *Config) { c.GapWait = 0 }) // what is missing is reported at once
				old := r.store(r.life("job", "old", 6, "done")...)
				r.loses("job")
				r.store(r.event("job", 1, "step"), r.event("job", 2, "step"))
				if name == "before" {
					early := p.newStream([]jobKey{{r.domain, "job"}}, "")
					defer early.leave()
					r.publish(old...)
					r.readsFeed(p)
				}
				w := p.watch(r.domain, "job", "").wait("2")
				redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
				if name == "after" {
					r.publish(old...)
					r.readsFeed(p)
				}
				d := p.domain(r.domain)
				redistest.Eventually(t, "the log was asked", func() bool {
					d.mu.Lock()
					defer d.mu.Unlock()
					j := d.jobs["job"]
					return !j.reading && j.pendingReason == "" && j.retry == nil
				})
				r.add(r.event("job", 3, "step"))
				r.add(r.event("job", 4, "done"))
				require.Equal(t, []string{"1", "2", "3", "4", "closed done"}, withoutStates(w.ends()))
			})
		}
	})
}

// newer returns an item of a history whose entries begin after a time.
func newer(millis, n int64, end string) item {
	return item{seq: n, end: end, content: uint64(millis + n), entry: entry{millis + n, 0}}
}

// The same without a clock. What the log does not confirm was of an earlier history, and what it confirms is sent.
func TestOnlyTheLogDecidesAboutOlderEntries(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	second := func(n int64) item { return newer(1000, n, "") }
	logOf := func(after int64, begun time.Time, items ...item) page {
		p := page{after: after, begun: begun, state: &items[len(items)-1], top: items[len(items)-1].seq}
		for _, it := range items {
			if it.end != "" {
				p.end = it.seq
			}
			if it.seq > after {
				p.items = append(p.items, it)
			}
		}
		return p
	}
	begin := func(t *testing.T) *sequence {
		t.Helper()
		s := newSequence(time.Second)
		p := logOf(0, now, second(1), second(2))
		_, next := s.readPage(0, 0, p, now)
		require.EqualValues(t, 2, next)
		require.True(t, s.attach(next, p))
		delete(s.sent, 1) // as for a client that came with a cursor
		return s
	}
	for name, it := range map[string]item{
		"the next number": newer(0, 3, ""), "a higher number": newer(0, 9, ""), "the end": newer(0, 9, "done"), "the end as the next number": newer(0, 3, "done"),
		"the end below": newer(0, 1, "done"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			out, late := s.feed(it, now)
			require.Empty(t, out)
			require.False(t, late)
			require.True(t, s.needsLog(), "the log is asked")
			later := now.Add(time.Hour)
			require.Empty(t, s.page(logOf(s.next(), later, second(1), second(2)), later))
			require.False(t, s.needsLog(), "once")
			require.Empty(t, s.page(logOf(s.next(), later.Add(time.Hour), second(1), second(2)), later.Add(time.Hour)), "no gap")
			out, _ = s.feed(second(3), later)
			require.Len(t, out, 1, "the second history goes on")
			out, _ = s.feed(newer(1000, 4, "done"), later)
			require.Len(t, out, 1)
			require.True(t, s.finished)
		})
		t.Run(name+" of a router that was slow", func(t *testing.T) {
			t.Parallel()
			s := begin(t)
			s.feed(it, now)
			log := []item{second(1), second(2)}
			if it.seq == 1 {
				log[0] = it
			} else {
				log = append(log, it)
			}
			var got []int64
			for i := 0; i < 5 && s.needsLog(); i++ {
				now := now.Add(time.Duration(i) * time.Second)
				for _, one := range s.page(logOf(s.next(), now, log...), now) {
					if one.kind == numbered {
						got = append(got, one.item.seq)
					}
				}
			}
			require.Equal(t, []int64{it.seq}, got, "the log has it")
			require.Equal(t, it.end != "", s.finished)
		})
	}
}

// A client has later events than the log, and an event with one of its numbers comes between the read of the page and
// the attachment of the client, or right after it.
func TestAClientAheadOfTheLogIsAttachedAsALateEventComes(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		for name, before := range map[string]bool{"before the attachment": true, "after the attachment": false} {
			for _, others := range []int{0, 1} {
				r := newRedis(t, s)
				first, p := r.start("", nil), r.start("", nil)
				events := r.life("job", "old", 5, "step")
				r.add(events...)
				w := first.readUntil(r.domain, "job", "5")
				r.readsFeed(p)
				r.loses("job")
				r.store(events[:3]...)
				for range others {
					p.watch(r.domain, "job", "").wait("3")
				}
				redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == others })
				st := p.newStream([]jobKey{{r.domain, "job"}}, w.client.LastEventID)
				require.NoError(t, st.first(t.Context(), false), name)
				c := st.watchers[0]
				require.True(t, c.cursor.ahead, name)
				if before {
					r.add(r.event("job", 4, "step"))
					r.readsFeed(p)
					require.False(t, st.attach(), name)
					require.NoError(t, st.readPages(t.Context()))
					require.EqualValues(t, 3, c.cursor.at, name)
					require.Equal(t, []int64{4, 5}, []int64{c.taken[0].from, c.taken[0].to}, name)
				}
				st.leave()
				if !before {
					back := p.resume(r.domain, "job", w).run()
					redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == others+1 })
					r.add(r.event("job", 4, "step"))
					r.add(r.event("job", 5, "done"))
					require.Equal(t, []string{"gap 4-5", "4", "5", "closed done"}, withoutStates(back.ends()), name)
				}
			}
		}
	})
}
