package poll

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// A reader that was closed while its read was due sends nothing, and does not wait for it.
func TestAClosedReaderSendsNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		c := s.Client(t)
		commands := redistest.Watch(c)
		due := func() *poller {
			p := NewReader(c, Options{Stream: "s", Group: "g", Consumer: "c"}, nil, nil, nil).poller
			p.reading = true
			p.reads.Add(1)
			return p
		}
		first, other, closed := due(), due(), due()
		list := &serverReads{due: []*poller{first, other}}
		first.queued, other.queued = list, list
		first.opts.Scheduler.removePoller(first)
		first.reads.Wait()
		require.Equal(t, []*poller{other}, list.due)

		closed.inflight.close(false)
		readTogether(t.Context(), []*poller{closed})
		closed.reads.Wait()
		require.Zero(t, commands.Total())
	})
}
