package gateway

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// attached returns the sequence of a job with a watcher at number 1, which the log has.
func attached(t *testing.T, now time.Time) *sequence {
	t.Helper()
	s := newSequence(time.Second)
	_, next := s.read(0, 0, page{top: 1, items: []item{{seq: 1}}}, now)
	require.EqualValues(t, 1, next)
	require.True(t, s.attach(next))
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
	require.Equal(t, []step{{kind: missing, from: 2, to: 3}}, s.page(page{top: 1}, now.Add(time.Second)))
}

func TestATerminalItemThatTheLogHasLostArrives(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	done := item{seq: 3, end: "done"}
	out, _ := s.feed(done, now)
	require.Empty(t, out)
	want := []step{{kind: missing, from: 2, to: 2}, {kind: numbered, item: done, ends: true}}
	require.Equal(t, want, s.page(page{top: 1}, now.Add(time.Second)))
}

// A new watcher does not wait for what other watchers have received and the log has lost.
func TestDecidedNumbersAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	now := time.Unix(1e9, 0)
	s := attached(t, now)
	out, _ := s.feed(item{seq: 2}, now)
	require.Len(t, out, 1)
	steps, next := s.read(1, s.decided(1), page{top: 1}, now)
	require.Equal(t, []step{{kind: missing, from: 2, to: 2}}, steps)
	require.True(t, s.attach(next))
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
	j.caughtUp(page{}, errors.New("not now"), readLost, time.Now())
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
	require.Equal(t, []step{{kind: missing, from: 2, to: 2}, {kind: numbered, item: item{seq: 3}}}, late)
}
