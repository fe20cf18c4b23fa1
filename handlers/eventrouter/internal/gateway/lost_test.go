package gateway

import (
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// attached returns the sequence of a job with a watcher at number 1, which the log has.
func attached(t *testing.T, now time.Time) *sequence {
	t.Helper()
	s := newSequence(time.Second)
	read := page{top: 1, items: []item{{seq: 1}}}
	_, next := s.readPage(0, 0, read, now)
	require.EqualValues(t, 1, next)
	require.True(t, s.attach(next, read))
	return s
}

// After a failover the log can lack its newest numbers, and no higher one shows the hole.
func TestNumbersThatTheLogHasLostAreReported(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	out, _ := s.feed(item{seq: 3}, now)
	require.Empty(t, out)
	require.Empty(t, s.page(page{top: 1}, now))
	require.Equal(t, []outgoing{{kind: missing, from: 2, to: 3}}, s.page(page{top: 1}, now.Add(time.Second)))
}

func TestATerminalItemThatTheLogHasLostArrives(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	done := item{seq: 3, end: "done"}
	out, _ := s.feed(done, now)
	require.Empty(t, out)
	want := []outgoing{{kind: missing, from: 2, to: 2}, {kind: numbered, item: done, ends: true}}
	require.Equal(t, want, s.page(page{top: 1}, now.Add(time.Second)))
}

// A new watcher does not wait for what other watchers have received and the log has lost.
func TestDecidedNumbersAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	out, _ := s.feed(item{seq: 2}, now)
	require.Len(t, out, 1)
	steps, next := s.readPage(1, s.decided(1), page{top: 1}, now)
	require.Equal(t, []outgoing{{kind: missing, from: 2, to: 2}}, steps)
	require.True(t, s.attach(next, page{top: 1}))
}

func TestAReadThatFailsIsRepeated(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 1)
	w := p.watch(r.domain, "job", "").wait("1")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	r.store(r.event("job", 2, "done"))
	d := p.domain(r.domain)
	d.mu.Lock()
	j := d.jobs["job"]
	d.mu.Unlock()
	j.caughtUp(page{}, errors.New("not now"), readLost, time.Now(), 0)
	require.Equal(t, []string{"state 1", "1", "2", "closed done"}, w.ends())
}

// While the log is not readable, a missing number may arrive there.
func TestTheWaitForANumberStopsWhileTheLogIsNotReadable(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	s.feed(item{seq: 3}, now)
	s.unreadable(now.Add(time.Second / 4))
	s.unreadable(now.Add(time.Second / 2))
	s.feed(item{seq: 5}, now.Add(time.Second/2))
	back := now.Add(time.Minute)
	require.Empty(t, s.page(page{top: 5, items: []item{{seq: 3}, {seq: 5}}}, back))
	due, _ := s.due()
	require.Equal(t, back.Add(3*time.Second/4), due)
	late := s.page(page{top: 5, items: []item{{seq: 3}, {seq: 5}}}, due)
	require.Equal(t, []outgoing{{kind: missing, from: 2, to: 2}, {kind: numbered, item: item{seq: 3}}}, late)
}

// A failover has lost number 10, and the producer gives it to another event.
func TestANumberThatIsGivenAgainAfterAFailover(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 9)
	state := r.client.Get(t.Context(), joblog.StateKey(r.domain, "job")).Val()
	r.steps("job", 10, 10)
	w := p.watch(r.domain, "job", "").wait("10")
	redistest.Eventually(t, "attached", func() bool { return p.attached(r.domain, "job") == 1 })
	require.NoError(t, r.client.HDel(t.Context(), joblog.LogKey(r.domain, "job"), "10").Err())
	require.NoError(t, r.client.HSet(t.Context(), joblog.LogKey(r.domain, "job"), "top", "9").Err())
	require.NoError(t, r.client.Set(t.Context(), joblog.StateKey(r.domain, "job"), state, time.Hour).Err())
	other := r.event("job", 10, "step")
	other.Status, other.StreamID = "another event", strconv.FormatInt(time.Now().Add(time.Second).UnixMilli(), 10)+"-0"
	w.mu.Lock()
	w.restarts = true
	w.mu.Unlock()
	r.add(other)
	r.add(r.event("job", 11, "done"))
	got := slices.DeleteFunc(w.ends(), func(s string) bool { return strings.HasPrefix(s, "state") })
	require.Equal(t, []string{"10", "gap 10-10", "10", "11", "closed done"}, got[9:])
}

// A failover may lose events that come again in another entry: nothing is sent twice.
func TestARepetitionIsNoRestart(t *testing.T) {
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	s.feed(item{seq: 2, entry: entry{1, 2}, content: 7}, now)
	for _, repeated := range []item{{seq: 2, entry: entry{1, 2}, content: 7}, {seq: 2, entry: entry{9, 0}, content: 7}} {
		out, _ := s.feed(repeated, now)
		require.Empty(t, out)
		require.Empty(t, s.page(page{first: 1, top: 2, state: &repeated}, now))
	}
	require.Empty(t, s.page(page{first: 1, top: 1, state: &item{seq: 1}}, now))
}

// Transient items that have waited for a number keep their places, also in front of the end. Those
// after it are left out.
func TestTransientItemsThatWaitKeepTheirPlaces(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	events := []item{{seq: 3}, {}, {seq: 4}, {}, {seq: 5, end: "done"}, {}}
	for i, it := range events {
		it.content = uint64(i)
		out, _ := s.feed(it, now)
		require.Empty(t, out, "2 is missing")
	}
	var got []int64
	for _, one := range s.page(page{after: 1, top: 5, end: 5, items: []item{{seq: 2}, {seq: 3}, {seq: 4}, {seq: 5, end: "done"}}}, now) {
		got = append(got, one.item.seq)
	}
	require.Equal(t, []int64{2, 3, 0, 4, 0, 5}, got)
}
