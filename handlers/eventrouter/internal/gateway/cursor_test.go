package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
	"github.com/millrace-io/millrace/plugins/sse/ssetest"
)

func TestACursorIsWrittenAndRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]cursor{
		"0":                   {},
		"37":                  {at: 37, trusted: true},
		"37.0-0.0":            {at: 37},
		"37.1732662934123-2":  {at: 37, mark: mark{seq: 37, entry: entry{1732662934123, 2}}},
		"40.1732662934123-02": {at: 40, mark: mark{seq: 40, entry: entry{1732662934123, 2}}},
		"40.9-1.37":           {at: 40, mark: mark{seq: 37, entry: entry{9, 1}}},
		"40.9-1.37~2-5~8":     {at: 40, mark: mark{seq: 37, entry: entry{9, 1}}, gaps: gaps{{2, 5}, {8, 8}}},
		"9.9-1~1~3~5~7-8":     {at: 9, mark: mark{seq: 9, entry: entry{9, 1}}, gaps: gaps{{1, 1}, {3, 3}, {5, 5}, {7, 8}}},
	} {
		got, ok := parseCursor(text)
		require.True(t, ok, text)
		require.Equal(t, want, got)
		again, ok := parseCursor(got.String())
		require.True(t, ok)
		require.Equal(t, got, again)
	}
	for _, text := range []string{"", "x", "-1", "1.", "1.5", "1.5-", "1.-5-1", "1.5-1.", "1.5-1.2", "1.5-1.0", "0.5-1", "1.5-1.1.1", "1.5-1.0", "1.0-0.x", "99999999999999999999",
		"9.9-1~", "9.9-1~0", "9.9-1~9", "9.9-1~x", "9.9-1~5-4", "9.9-1~5-", "9.9-1~5~5", "9.9-1~5~3", "9.9-1~2-9", "9.9-1~1~2~3~4~5", "9.9-1.7~7", "9~2", "9.0-0.0~2",
	} {
		_, ok := parseCursor(text)
		require.False(t, ok, text)
	}
}

// loses removes a job from Redis, as a failover, a restored backup or the end of its lifetime does.
func (r *redisRig) loses(id string) {
	r.t.Helper()
	require.NoError(r.t, r.client.Del(context.Background(), joblog.LogKey(r.domain, id), joblog.StateKey(r.domain, id)).Err())
}

// readsFeed returns when a process has read all that is in the feed. Only the feed has the transient
// event behind it.
func (r *redisRig) readsFeed(p *process) {
	r.t.Helper()
	fence := fmt.Sprint("fence-", r.entries.Add(1))
	w := p.watch(r.domain, fence, "")
	redistest.Eventually(r.t, "attached", func() bool { return p.attached(r.domain, fence) == 1 })
	r.add(r.event(fence, 0, "token"))
	w.wait("token ")
	w.cancel()
	<-w.done
}

// life returns the events from number 1 on of a job that begins, and ends with its last number.
func (r *redisRig) life(id, status string, last int64, stage string) (events []event.Event) {
	for n := int64(1); n <= last; n++ {
		e := r.event(id, n, "step")
		e.Status = status
		if n == last {
			e.Stage = stage
		}
		events = append(events, e)
	}
	return events
}

// readUntil watches until what was received, and returns a client that goes on there.
func (p *process) readUntil(domain, id, until string) *watch {
	w := p.watch(domain, id, "").wait(until)
	w.cancel()
	<-w.done
	return w
}

// resume returns a client with the cursor of another one.
func (p *process) resume(domain, id string, from *watch) *watch {
	w := newWatch(p.t, p, p.path(domain, id)+"/events")
	w.client.LastEventID, w.at, w.restarts = from.client.LastEventID, from.at, true
	return w
}

func withoutStates(got []string) []string {
	return slices.DeleteFunc(got, func(s string) bool { return strings.HasPrefix(s, "state") })
}

// Redis has lost a job whose numbers are given to other events. A client that comes back is told
// from where on, at the gateway that it knows and at another one.
func TestAClientThatComesBackIsToldOfNumbersThatAreGivenAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		for _, tc := range []struct {
			name string
			last int64 // of the second life
			want []string
		}{
			{"more", 8, []string{"gap 1-5", "1", "2", "3", "4", "5", "6", "7", "8", "closed done"}},
			{"as-many", 5, []string{"gap 1-5", "1", "2", "3", "4", "5", "closed done"}},
			{"fewer", 2, []string{"gap 1-5", "1", "2", "closed done"}},
		} {
			r.add(r.life(tc.name, "old", 5, "step")...)
			w := first.readUntil(r.domain, tc.name, "5")
			r.loses(tc.name)
			r.add(r.life(tc.name, "new", tc.last, "done")...)
			for _, p := range []*process{first, second} {
				require.Equal(t, tc.want, withoutStates(p.resume(r.domain, tc.name, w).run().ends()), tc.name)
			}
			plain := second.resume(r.domain, tc.name, w)
			plain.client.LastEventID, _, _ = strings.Cut(plain.client.LastEventID, ".")
			if tc.last > 5 {
				require.Equal(t, []string{"6", "7", "8", "closed done"}, withoutStates(plain.run().ends()), "a number alone is trusted")
			}
		}
	})
}

// The log has what the client has up to a number, and other events from there on.
func TestAClientKeepsWhatTheLogStillHas(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		common := r.life("job", "common", 150, "step")
		r.store(common...)
		r.store(r.event("job", 151, "step"), r.event("job", 152, "step"))
		w := first.readUntil(r.domain, "job", "152")
		r.loses("job")
		r.store(common...) // the replica has these
		r.store(r.event("job", 151, "step"), r.event("job", 152, "done"))
		require.Equal(t, []string{"gap 151-152", "151", "152", "closed done"}, withoutStates(second.resume(r.domain, "job", w).run().ends()))
	})
}

// A client comes back after the loss, and before the numbers are given again.
func TestAClientAheadOfTheLogIsToldWhenItsNumbersAreGivenAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		first, second := r.start("", nil), r.start("", nil)
		common := r.life("job", "common", 3, "step")
		lost := []event.Event{r.event("job", 4, "step"), r.event("job", 5, "step")}
		r.add(append(common, lost...)...)
		w := first.readUntil(r.domain, "job", "5")
		r.readsFeed(second)
		r.loses("job")
		r.store(common...)
		back := second.resume(r.domain, "job", w).run()
		redistest.Eventually(t, "attached", func() bool { return second.attached(r.domain, "job") == 1 })
		r.add(lost[0]) // a router had read it, and repeats it
		other := r.event("job", 5, "step")
		other.Status = "another event"
		r.add(other, r.event("job", 6, "done"))
		require.Equal(t, []string{"gap 5-5", "5", "6", "closed done"}, withoutStates(back.ends()), "4 is the same event")

		r.add(r.life("gone", "old", 2, "step")...)
		w = first.readUntil(r.domain, "gone", "2")
		r.readsFeed(second)
		r.loses("gone")
		stored := r.client.Time(t.Context()).Val()
		redistest.Eventually(t, "the entries of the next life are newer", func() bool {
			return r.client.Time(t.Context()).Val().After(stored.Add(time.Millisecond))
		})
		back = second.resume(r.domain, "gone", w).run()
		redistest.Eventually(t, "attached", func() bool { return second.attached(r.domain, "gone") == 1 })
		r.add(r.life("gone", "new", 2, "done")...)
		require.Equal(t, []string{"gap 1-2", "1", "2", "closed done"}, withoutStates(back.ends()))
	})
}

// A terminal event may have a lower number than what the client has. It arrives, and once.
func TestALowTerminalEventArrivesOnce(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 2)
	r.steps("job", 4, 5)
	w := p.readUntil(r.domain, "job", "5")
	r.add(r.event("job", 3, "done"))
	back := newWatch(t, p, p.path(r.domain, "job")+"/events")
	var got []string
	back.client.LastEventID, back.client.Event = w.client.LastEventID, func(e ssetest.Event) error {
		if got = append(got, e.Name); e.Name == "closed" {
			return errClosed
		}
		return nil
	}
	require.ErrorIs(t, back.client.Run(t.Context()), errClosed)
	require.Equal(t, []string{"state", "event", "closed"}, got)
	require.NoError(t, back.client.Run(t.Context()), "204")
}

// Redis has lost the numbers that a client knows from a gap, and they are given again up to a lower
// end. The end reaches the client, and once.
func TestTheEndReachesAClientThatHasGapsOnly(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 2)
	r.add(r.event("job", 3, "done"))
	w := newWatch(t, p, p.path(r.domain, "job")+"/events")
	w.client.LastEventID = "7"
	ended := false
	w.client.Event = func(e ssetest.Event) error {
		ended = ended || e.Name == "event" && strings.Contains(e.Data, `"seq":3`)
		if e.Name == "closed" {
			return errClosed
		}
		return nil
	}
	require.ErrorIs(t, w.client.Run(t.Context()), errClosed)
	require.True(t, ended)
	require.NoError(t, w.client.Run(t.Context()), "204")
}

// The feed brings a low terminal event after the client was attached. The log ends at it, so the client
// is ahead of the log.
func TestALateTerminalEventTakesNothingBack(t *testing.T) {
	client := cursor{at: 5, mark: mark{seq: 5, entry: entry{millis: 10}}, ahead: true}
	late := item{seq: 3, entry: entry{millis: 11}}
	require.True(t, client.givenAgain(late))
	late.end = "done"
	require.False(t, client.givenAgain(late))
	late.seq = 1
	require.True(t, client.givenAgain(late), "no number is in front of it, so it is another history")
}

// A cursor whose number has left the log cannot be compared.
func TestACursorOlderThanTheLogIsTrusted(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	r.config.LogMax = 5
	r.log = joblog.New(connect(t, r.addr), r.config, event.DefaultStages())
	p := r.start("", nil)
	r.steps("job", 1, 2)
	w := p.readUntil(r.domain, "job", "2")
	r.steps("job", 3, 9)
	r.add(r.event("job", 10, "done"))
	require.Equal(t, []string{"gap 3-5", "6", "7", "8", "9", "10", "closed done"}, withoutStates(p.resume(r.domain, "job", w).run().ends()))
}

// A number that came between the read of a page and its use is not missing, however long that
// takes.
func TestWhatCameAfterAPageWasReadIsNotMissing(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	read := now.Add(time.Second)
	for n := int64(3); n <= 4; n++ { // 2 came through another router, later in the feed
		out, _ := s.feed(item{seq: n}, read.Add(time.Millisecond))
		require.Empty(t, out)
	}
	stale := page{begun: read, top: 1, items: []item{{seq: 1}}}
	require.Empty(t, s.page(stale, read.Add(5*time.Second)))
	steps, _ := s.readPage(1, s.decided(1), stale, read.Add(5*time.Second))
	require.Empty(t, steps)
	fresh := page{begun: read.Add(5 * time.Second), top: 4, items: []item{{seq: 2}, {seq: 3}, {seq: 4}}}
	var got []int64
	for _, one := range s.page(fresh, read.Add(6*time.Second)) {
		require.Equal(t, numbered, one.kind)
		got = append(got, one.item.seq)
	}
	require.Equal(t, []int64{2, 3, 4}, got)
}

// seenBy is a client that reconnects, with all that it has: the entry of each number, or "gap".
type seenBy struct {
	*watch
	view map[int64]string
}

func (h *seenBy) take(e ssetest.Event) error {
	var data struct {
		Seq, From, To int64
		Entry         string `json:"stream_id"`
	}
	if err := json.Unmarshal([]byte(e.Data), &data); err != nil {
		return err
	}
	h.mu.Lock()
	switch e.Name {
	case "event":
		if had := h.view[data.Seq]; had != "" && had != "gap" {
			h.mu.Unlock()
			return fmt.Errorf("%d is sent again without a gap", data.Seq)
		}
		if h.view[data.Seq] == "gap" { // the end arrives all the same
			h.at = data.Seq - 1
		}
		h.view[data.Seq] = data.Entry
	case "gap":
		c, _ := parseCursor(e.ID)
		for n := data.From; n <= data.To; n++ {
			if h.view[n] = "gap"; c.at < data.From {
				delete(h.view, n)
			}
		}
	}
	h.mu.Unlock()
	h.restarts = true
	return h.watch.take(e)
}

// Redis loses its newest events several times, and the producer gives their numbers again. Clients
// reconnect to two gateways all the time. In the end each has the events that the log has, also those that
// were missing when it came.
func TestClientsThatReconnectHaveTheEventsOfTheLog(t *testing.T) {
	s := redistest.Mini(t)
	r := newRedis(t, s)
	gateways := []*process{r.start("", nil), r.start("", nil)}
	for seed := range uint64(15) {
		rng := rand.New(rand.NewPCG(seed, 3))
		id := fmt.Sprint("job-", seed)
		var events []event.Event // of the current history
		var histories []*seenBy
		for range 4 {
			h := &seenBy{watch: newWatch(t, gateways[0], ""), view: map[int64]string{}}
			h.client.Event = h.take
			histories = append(histories, h)
		}
		for round := range 6 {
			if round > 0 { // the failover
				events = events[:rng.IntN(len(events)+1)]
				r.loses(id)
				r.store(events...)
				stored := r.client.Time(t.Context()).Val()
				require.Eventually(t, func() bool { // the entries of the next life are newer
					return r.client.Time(t.Context()).Val().After(stored.Add(time.Millisecond))
				}, 2*time.Minute, time.Millisecond)
			}
			visit(t, rng, r, gateways, histories, id)
			for range 1 + rng.IntN(6) {
				e := r.event(id, int64(len(events)+1), "step")
				e.Status = fmt.Sprint(round)
				events = append(events, e)
				r.add(e)
				if rng.IntN(3) == 0 {
					visit(t, rng, r, gateways, histories, id)
				}
			}
		}
		end := r.event(id, int64(len(events)+1), "done")
		events = append(events, end)
		r.add(end)
		for i, h := range histories {
			h.client.URL = gateways[i%2].path(r.domain, id) + "/events"
			require.ErrorIs(t, h.client.Run(t.Context()), errClosed, "seed %d: %v", seed, h.received())
			for _, e := range events {
				require.Equal(t, e.StreamID, h.view[e.Seq], "seed %d, client %d, number %d: %v", seed, i, e.Seq, h.received())
			}
		}
	}
}

// visit connects some of the clients until each has the state of the job, or is attached.
func visit(t *testing.T, rng *rand.Rand, r *redisRig, gateways []*process, clients []*seenBy, id string) {
	t.Helper()
	for _, h := range clients {
		if rng.IntN(2) == 0 {
			continue
		}
		p := gateways[rng.IntN(len(gateways))]
		ctx, cancel := context.WithCancel(t.Context())
		h.client.URL = p.path(r.domain, id) + "/events"
		done := make(chan error, 1)
		go func() { done <- h.client.Run(ctx) }()
		redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, id) == 1 })
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			require.NoError(t, err, "client at %s", h.client.LastEventID)
		}
		redistest.Eventually(t, "left", func() bool { return p.attached(r.domain, id) == 0 })
	}
}

// A client may have the cursors of several jobs, and one of them begins again.
func TestOneOfSeveralJobsBeginsAgain(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.add(r.life("a", "old", 3, "step")...)
	r.add(r.life("b", "same", 3, "step")...)
	got := map[string][]string{}
	quit := errors.New("quit")
	client := ssetest.Client{
		URL: p.path(r.domain, "a") + "/events?job=" + r.domain + "/b", HTTP: p.client, Retry: func(time.Duration) time.Duration { return time.Millisecond },
	}
	client.Event = func(e ssetest.Event) error {
		var data struct {
			Seq, From, To int64
			Job           string `json:"job_id"`
		}
		if err := json.Unmarshal([]byte(e.Data), &data); err != nil {
			return err
		}
		switch e.Name {
		case "event":
			got[data.Job] = append(got[data.Job], strconv.FormatInt(data.Seq, 10))
		case "gap":
			got[data.Job] = append(got[data.Job], fmt.Sprintf("gap %d-%d", data.From, data.To))
		case "closed":
			return errClosed
		}
		if len(got["a"]) == 3 && len(got["b"]) == 3 {
			return quit
		}
		return nil
	}
	require.ErrorIs(t, client.Run(t.Context()), quit)
	r.loses("a")
	r.add(r.life("a", "new", 2, "done")...)
	r.add(r.event("b", 4, "done"))
	got = map[string][]string{}
	require.ErrorIs(t, client.Run(t.Context()), errClosed)
	require.Equal(t, map[string][]string{"a": {"gap 1-3", "1", "2"}, "b": {"4"}}, got)
	require.NoError(t, client.Run(t.Context()), "204")
}
