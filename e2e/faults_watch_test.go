package e2e

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// watch checks a campaign's stream during a case. An entry that was not delivered must be there at
// the next check, or must have been delivered. The service repairs such a loss: it enqueues overdue
// rows again. No other check would detect it.
type watch struct {
	redis               *redis.Client
	stream, meta, group string

	before sight
	end    context.CancelFunc
	ended  sync.WaitGroup

	mu   sync.Mutex
	lost error // the first loss
}

// sight is what was seen of the stream at a moment.
type sight struct {
	asked, at   time.Time // it was seen between the two
	incarnation string    // of the stream; changes when it is made again
	delivered   entryID
	unread      string // id of the first entry that is not delivered; empty: none
}

// entryID is an entry's id as two numbers.
type entryID struct{ millis, seq uint64 }

func parseID(text string) (id entryID) {
	_, _ = fmt.Sscanf(text, "%d-%d", &id.millis, &id.seq) // what is no id is before all of them
	return id
}

func (a entryID) before(b entryID) bool {
	return a.millis < b.millis || a.millis == b.millis && a.seq < b.seq
}

const (
	watchEvery = 20 * time.Millisecond
	// watchGap bounds the time between two checks that say something about a stream which was
	// created again. It is shorter than the second after which a drained stream is deleted.
	watchGap = 500 * time.Millisecond
)

// watchScript sees it all in one moment. KEYS: stream, meta. ARGV: group, the entry that was unread
// before (or empty). Reply: incarnation, last delivered id, first unread id, and 1 when the entry
// before is still there.
var watchScript = redis.NewScript(`
local stream, group, before = KEYS[1], ARGV[1], ARGV[2]
local incarnation = redis.call('HGET', KEYS[2], 'incarnation') or ''
if redis.call('EXISTS', stream) == 0 then return {incarnation, '', '', 0} end
local delivered = '0-0'
for _, flat in ipairs(redis.call('XINFO', 'GROUPS', stream)) do
  local g = {}
  for i = 1, #flat, 2 do g[flat[i]] = flat[i + 1] end
  if g['name'] == group then delivered = g['last-delivered-id'] end
end
local next = redis.call('XRANGE', stream, '(' .. delivered, '+', 'COUNT', 1)
local unread = ''
if #next > 0 then unread = next[1][1] end
local there = 0
if before ~= '' and #redis.call('XRANGE', stream, before, before) > 0 then there = 1 end
return {incarnation, delivered, unread, there}
`)

func startWatch(ctx context.Context, client *redis.Client, stream, group string) *watch {
	ctx, end := context.WithCancel(ctx)
	w := &watch{redis: client, stream: stream, meta: "{" + stream + "}:meta", group: group, end: end}
	w.ended.Go(func() {
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				w.look(ctx)
			}
		}
	})
	return w
}

// result ends the watch.
func (w *watch) result() error {
	w.end()
	w.ended.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *watch) look(ctx context.Context) {
	asked := time.Now()
	reply, err := watchScript.Run(ctx, w.redis, []string{w.stream, w.meta}, w.group, w.before.unread).Slice()
	if err != nil || len(reply) != 4 {
		w.before = sight{} // its server is unavailable
		return
	}
	text := func(i int) string { s, _ := reply[i].(string); return s }
	now := sight{asked: asked, at: time.Now(), incarnation: text(0), delivered: parseID(text(1)), unread: text(2)}
	if err := now.lacks(w.before, reply[3] == int64(1)); err != nil {
		w.mu.Lock()
		w.lost = errors.Join(w.lost, err)
		w.mu.Unlock()
		now.unread = "" // reported once
	}
	w.before = now
}

// lacks reports what was unread before, and is neither there nor delivered now.
func (s sight) lacks(before sight, there bool) error {
	switch {
	case before.unread == "" || there:
		return nil
	case s.incarnation == before.incarnation && !s.delivered.before(parseID(before.unread)):
		return nil
	case s.incarnation != before.incarnation && s.at.Sub(before.asked) > watchGap:
		return nil // it may have been handled, and the stream deleted
	}
	return fmt.Errorf("entry %s of the stream %q was removed before it was delivered: last delivered was %v, now %v of the stream %q",
		before.unread, before.incarnation, before.delivered, s.delivered, s.incarnation)
}

func TestWatchSeesWhatIsLacking(t *testing.T) {
	t.Parallel()
	at := time.Now()
	see := func(after time.Duration, incarnation, delivered, unread string) sight {
		return sight{at.Add(after), at.Add(after), incarnation, parseID(delivered), unread}
	}
	before := see(0, "a", "9-0", "10-1")
	for name, c := range map[string]struct {
		before, now sight
		there, lost bool
	}{
		"nothing was unread":                {see(0, "a", "9-0", ""), see(1, "a", "9-0", ""), false, false},
		"it is still there":                 {before, see(1, "a", "9-0", "10-1"), true, false},
		"it was delivered and trimmed":      {before, see(1, "a", "10-1", ""), false, false},
		"more than it was delivered":        {before, see(1, "a", "11-0", ""), false, false},
		"it is gone":                        {before, see(1, "a", "9-0", "11-0"), false, true},
		"the stream is gone":                {before, see(1, "", "", ""), false, true},
		"the stream is another":             {before, see(1, "b", "0-0", ""), false, true},
		"the stream is another, much later": {before, see(time.Second, "b", "0-0", ""), false, false},
	} {
		err := c.now.lacks(c.before, c.there)
		require.Equal(t, c.lost, err != nil, "%s: %v", name, err)
	}
	require.True(t, parseID("9-99").before(parseID("10-0")))
	require.False(t, parseID("10-0").before(parseID("10-0")))
}
