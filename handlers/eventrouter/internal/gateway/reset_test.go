package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// reset resets a job, and returns when the gateway has read of it.
func (r *redisRig) reset(p *process, id string) {
	r.t.Helper()
	require.NoError(r.t, r.log.Reset(context.Background(), r.domain, 0, id))
	r.readsFeed(p)
}

// A job runs again after a reset. Those that watch it, and those that come back, are told which
// numbers they have to forget, and receive the second run.
func TestWatchersOfAJobThatWasReset(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRedis(t, s)
		p := r.start("", nil)

		r.steps("runs", 1, 3)
		live := newWatch(t, p, p.path(r.domain, "runs")+"/events")
		live.restarts = true
		live.run().wait("3")
		redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "runs") == 1 })
		require.NoError(t, r.log.Reset(t.Context(), r.domain, 0, "runs"))
		r.steps("runs", 1, 1) // the same content as in the first run
		r.add(r.event("runs", 2, "done"))
		require.Equal(t, []string{"1", "2", "3", "gap 1-3", "1", "2", "closed done"}, withoutStates(live.ends()))

		r.steps("ended", 1, 1)
		r.add(r.event("ended", 2, "done"))
		first := p.watch(r.domain, "ended", "")
		require.Equal(t, []string{"1", "2", "closed done"}, withoutStates(first.ends()))
		cursor := first.client.LastEventID
		require.NotEmpty(t, cursor)
		r.reset(p, "ended")
		back := newWatch(t, p, p.path(r.domain, "ended")+"/events")
		back.client.LastEventID, back.restarts, back.at = cursor, true, 2
		back.run()
		late := p.watch(r.domain, "ended", "")
		redistest.Eventually(t, "it waits for the second run", func() bool { return p.attached(r.domain, "ended") == 2 })
		r.steps("ended", 1, 2)
		r.add(r.event("ended", 3, "done"))
		require.Equal(t, []string{"gap 1-2", "1", "2", "3", "closed done"}, withoutStates(back.ends()))
		require.Equal(t, []string{"1", "2", "3", "closed done"}, withoutStates(late.ends()))
	})
}

// The end of the first run waits for a client without room when the job is reset. It reaches neither
// this client nor one that comes now, because the streams of both would end with it.
func TestAResetWhileTheEndWaitsForRoom(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 2)
	slow := newWatch(t, p, p.path(r.domain, "job")+"/events")
	slow.restarts = true
	slow.run().wait("2")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	d := p.domain(r.domain)
	d.mu.Lock()
	j := d.jobs["job"]
	j.waiting = true
	d.mu.Unlock()
	r.add(r.event("job", 3, "done"))
	redistest.Eventually(t, "the end waits", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		return len(j.out) == 1
	})
	r.reset(p, "job")
	second := p.watch(r.domain, "job", "")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 2 })
	d.mu.Lock()
	j.waiting = false
	j.rounds(0)
	d.mu.Unlock()
	r.steps("job", 1, 1)
	r.add(r.event("job", 2, "done"))
	require.Equal(t, []string{"1", "2", "gap 1-3", "1", "2", "closed done"}, withoutStates(slow.ends()))
	require.Equal(t, []string{"1", "2", "closed done"}, withoutStates(second.ends()))
}

// response is that of a stream. Each event of the backlog is written before wrote has returned.
type response struct {
	header http.Header
	wrote  func(number int64)
	got    []string
}

func (r *response) Header() http.Header              { return r.header }
func (r *response) WriteHeader(int)                  {}
func (r *response) FlushError() error                { return nil }
func (r *response) SetWriteDeadline(time.Time) error { return nil }

func (r *response) Write(frame []byte) (int, error) {
	_, rest, _ := strings.Cut(string(frame), "event: ")
	name, text, _ := strings.Cut(rest, "\ndata: ")
	var data struct{ Seq, From, To int64 }
	if text != "" {
		if err := json.Unmarshal([]byte(text), &data); err != nil {
			return 0, err
		}
	}
	switch name {
	case "event":
		r.got = append(r.got, fmt.Sprint(data.Seq))
		r.wrote(data.Seq)
	case "gap":
		r.got = append(r.got, fmt.Sprintf("gap %d-%d", data.From, data.To))
	case "closed":
		r.got = append(r.got, name)
	}
	return len(frame), nil
}

// serve answers a request for the stream of jobs, until ended is closed.
func (r *redisRig) serve(p *process, ids []string, wrote func(number int64)) (answer *response, ended chan struct{}) {
	request := httptest.NewRequestWithContext(context.Background(), http.MethodGet, "/?job="+r.domain+"/"+ids[len(ids)-1], http.NoBody)
	request.SetPathValue("domain", r.domain)
	request.SetPathValue("job", ids[0])
	request.RemoteAddr, request.Host = "127.0.0.1:1", "127.0.0.1"
	answer, ended = &response{header: http.Header{}, wrote: wrote}, make(chan struct{})
	go func() {
		defer close(ended)
		p.events().ServeHTTP(answer, request)
	}()
	return answer, ended
}

// A job is reset while a client receives the first page of a backlog with two of them.
func TestAResetBetweenTwoPagesOfABacklog(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.store(r.numbers("job", 1, pageEvents+1)...)
	answer, ended := r.serve(p, []string{"job"}, func(number int64) {
		if number == pageEvents {
			r.reset(p, "job")
		}
	})
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	r.steps("job", 1, 1)
	r.add(r.event("job", 2, "done"))
	<-ended
	require.Equal(t, []string{"gap 1-64", "1", "2", "closed"}, answer.got[pageEvents:])
}

// A job has ended in the backlog of a client, and is reset before the client has received the end of
// another one. The stream does not end without the second run.
func TestAResetInFrontOfTheLastEndOfABacklog(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.store(append(r.numbers("a", 1, 2), r.event("a", 3, "done"))...)
	r.store(append(r.numbers("b", 1, pageEvents), r.event("b", pageEvents+1, "done"))...)
	answer, ended := r.serve(p, []string{"a", "b"}, func(number int64) {
		if number == pageEvents {
			r.reset(p, "a")
		}
	})
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "a") == 1 })
	r.add(r.event("a", 1, "done"))
	<-ended
	require.Equal(t, []string{"65", "gap 1-3", "1", "closed"}, answer.got[3+pageEvents:])
}

// Another job of the stream makes it read this one again, which has begun again meanwhile.
func TestACursorIsComparedWithEachPage(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.add(r.life("job", "old", 2, "step")...)
	client := p.readUntil(r.domain, "job", "2")
	r.loses("job")
	s := p.newStream([]jobKey{{r.domain, "job"}}, client.client.LastEventID)
	defer s.leave()
	require.NoError(t, s.first(t.Context(), false))
	w := s.watchers[0]
	require.True(t, w.cursor.ahead)
	r.store(r.life("job", "new", 1, "step")...)
	require.NoError(t, s.readPages(t.Context()))
	require.Equal(t, cursor{}, w.cursor)
	require.Equal(t, []int64{1, 2}, []int64{w.taken[0].from, w.taken[0].to})
}

// A client that has the end of a job, and waits for others, is not told of numbers that others have to
// give back: without the ones before them it would not have the second history. Nor is one whose stream
// is closed told of a reset.
func TestWhoIsToldOfNumbersAfterTheEnd(t *testing.T) {
	for name, tc := range map[string]struct {
		open int
		one  outgoing
	}{
		"a later number": {1, outgoing{kind: again, from: 2, to: 3}},
		"an event":       {1, outgoing{kind: numbered, item: item{seq: 4}}},
		"a state":        {1, outgoing{kind: latest}},
		"closed":         {0, outgoing{kind: again, from: 1, to: 3}},
	} {
		w := &watcher{ended: true, cursor: cursor{at: 3}, stream: &stream{open: tc.open, several: true}}
		w.send(tc.one, &encoded{})
		require.Equal(t, cursor{at: 3}, w.cursor, name)
		require.True(t, w.ended, name)
		require.Equal(t, tc.open, w.stream.open, name)
	}
}
