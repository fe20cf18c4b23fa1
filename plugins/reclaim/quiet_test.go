package reclaim

import (
	"context"
	"errors"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// marked is when instances renewed their presence last.
type marked struct {
	mu  sync.Mutex
	at  map[string]int64
	err error
}

func (m *marked) read(context.Context) (map[string]int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.at), m.err
}

func (m *marked) set(at map[string]int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.at, m.err = at, err
}

// quietRig is a domain of instance "me" with two streams, which "other" also reads.
type quietRig struct {
	*domain
	s        server
	target   *fakeTarget
	reader   *fakeReader
	commands *counter
	presence *presence
	marks    *marked
	read     string // by "other"
}

func newQuietRig(t *testing.T, s server) *quietRig {
	q := &quietRig{
		s: s, target: &fakeTarget{client: s.client, minIdle: time.Hour}, reader: &fakeReader{free: 10}, commands: &counter{only: "xinfo"},
		presence: present("me", "other"), marks: &marked{at: map[string]int64{"me": 100_000, "other": 50_000, "forgotten": 1000}},
	}
	for _, name := range []string{"one", "two"} {
		q.target.streams = append(q.target.streams, s.stream(t, name, "me-0", q.reader))
	}
	q.read = s.hold(t, q.target.streams[0], "other-0", 1)[0]
	s.client.AddHook(q.commands)
	r := newRig(quick(), "me", q.presence, q.target)
	r.opts.Config.MinIdle = time.Hour
	r.opts.Marks = q.marks.read
	q.domain = newDomain(r.Reclaimer, q.target)
	q.round(t.Context(), true)
	require.EqualValues(t, 2, q.commands.n.Swap(0))
	return q
}

// claimed makes rounds for the dead until the reader has entries.
func (q *quietRig) claimed(t *testing.T, want ...string) {
	t.Helper()
	require.Eventually(t, func() bool { q.round(t.Context(), false); return len(q.reader.got()) > 0 }, 2*time.Minute, time.Millisecond)
	require.Equal(t, want, q.reader.got())
}

// While all instances live, a check for the dead reads streams that are new, and no other one.
func TestACheckReadsNoStreamWhileAllInstancesLive(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s server) {
		q := newQuietRig(t, s)
		q.round(t.Context(), false)
		require.Zero(t, q.commands.n.Swap(0))
		q.target.streams = append(q.target.streams, s.stream(t, "three", "me-0", q.reader))
		q.round(t.Context(), false)
		require.EqualValues(t, 1, q.commands.n.Swap(0))
		q.round(t.Context(), false)
		require.Zero(t, q.commands.n.Swap(0))
		q.round(t.Context(), true)
		require.EqualValues(t, 3, q.commands.n.Swap(0), "a round for idle entries")

		q.presence.set("other", false)
		q.claimed(t, q.read)
		require.Greater(t, q.commands.n.Swap(0), int64(2))
		q.marks.set(map[string]int64{"me": 200_000, "other": 99_000}, nil)
		q.round(t.Context(), false) // its mark is old now, and it has no reader
		q.commands.n.Store(0)
		q.round(t.Context(), false)
		require.Zero(t, q.commands.n.Swap(0))
	})
}

// An instance that got its first entries after the last round over all streams is found.
func TestAnInstanceThatCameAfterTheRoundIsFound(t *testing.T) {
	t.Parallel()
	for name, mark := range map[string]int64{"it came later": 101_000, "it had no entries yet": 96_000} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eachServer(t, func(t *testing.T, s server) {
				q := newQuietRig(t, s)
				id := s.hold(t, q.target.streams[1], "third-0", 1)[0]
				q.marks.set(map[string]int64{"me": 100_000, "other": 99_000, "third": mark}, nil)
				q.claimed(t, id)
			})
		})
	}
}

// A presence that returns and is gone again is gone since then.
func TestAPresenceThatReturnsEndsTheAbsence(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s server) {
		q := newQuietRig(t, s)
		q.r.opts.Config.PresenceTimeout = time.Hour
		q.presence.set("other", false)
		q.round(t.Context(), false)
		first := q.gone["other"]
		require.False(t, first.IsZero())
		q.round(t.Context(), false)
		require.Equal(t, first, q.gone["other"])
		q.presence.set("other", true)
		q.round(t.Context(), false)
		require.Empty(t, q.gone)
		q.presence.set("other", false)
		q.round(t.Context(), false)
		require.True(t, q.gone["other"].After(first))
	})
}

// When marks can't be read, or a stream fails, the check reads the streams.
func TestWhatIsNotKnownIsRead(t *testing.T) {
	t.Parallel()
	eachServer(t, func(t *testing.T, s server) {
		q := newQuietRig(t, s)
		q.marks.set(nil, errors.New("of a test"))
		q.round(t.Context(), false)
		require.EqualValues(t, 2, q.commands.n.Swap(0))
		q.marks.set(map[string]int64{"me": 100_000, "other": 99_000}, nil)
		q.round(t.Context(), false)
		q.round(t.Context(), false)
		q.commands.n.Store(0)
		q.round(t.Context(), false)
		require.Zero(t, q.commands.n.Swap(0))

		broken := s.stream(t, "broken", "me-0", q.reader)
		require.NoError(t, s.client.Del(t.Context(), broken.Name).Err())
		require.NoError(t, s.client.Set(t.Context(), broken.Name, "text", 0).Err())
		q.target.streams = append(q.target.streams, broken)
		for range 3 {
			q.round(t.Context(), false)
			require.EqualValues(t, 1, q.commands.n.Swap(0))
		}
	})
}
