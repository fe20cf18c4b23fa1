package gateway

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// twoNodes makes p read as from two nodes. The one with the jobs whose ids begin with "hung" does
// not answer before release was called. calls receives the jobs of each pipeline.
func twoNodes(p *process) (release func(), calls chan []string) {
	released, calls := make(chan struct{}), make(chan []string, 1000)
	release = sync.OnceFunc(func() { close(released) })
	p.t.Cleanup(release)
	r := p.reader
	read := r.logs
	hung := func(q joblog.Query) bool { return strings.HasPrefix(q.JobID, "hung") }
	r.node = func(_ context.Context, q joblog.Query) string {
		if hung(q) {
			return "hung"
		}
		return ""
	}
	r.logs = func(ctx context.Context, queries []joblog.Query) []joblog.Snapshot {
		var ids []string
		for _, q := range queries {
			ids = append(ids, q.JobID)
		}
		calls <- ids
		if hung(queries[0]) {
			<-released
		}
		return read(ctx, queries)
	}
	return release, calls
}

func TestANodeThatHangsDelaysNoReadsFromOthers(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	r.steps("job", 1, 1)
	release, calls := twoNodes(p)
	first := p.watch(r.domain, "hung", "")
	require.Equal(t, []string{"hung"}, <-calls)
	second := p.watch(r.domain, "hung2", "") // it waits for the first
	other := p.watch(r.domain, "job", "").wait("1")
	r.add(r.event("job", 2, "done"))
	other.ends()
	release()
	r.add(r.event("hung", 1, "done"), r.event("hung2", 1, "done"))
	first.ends()
	second.ends()
}

// A stream does not wait for the log of one job before it reads that of the next.
func TestTheJobsOfAStreamAreReadTogether(t *testing.T) {
	r := newRedis(t, redistest.Mini(t))
	p := r.start("", nil)
	release, calls := twoNodes(p)
	busy := p.watch(r.domain, "hung", "")
	require.Equal(t, []string{"hung"}, <-calls)
	w := p.watch(r.domain, "hung1", "?job="+r.domain+"/hung2&job="+r.domain+"/job&job="+r.domain+"/hung3")
	require.Equal(t, []string{"job"}, <-calls)
	redistest.Eventually(t, "all are queued", func() bool {
		p.reader.mu.Lock()
		defer p.reader.mu.Unlock()
		return len(p.reader.nodes["hung"]) == 3
	})
	release()
	require.Equal(t, []string{"hung1", "hung2", "hung3"}, <-calls)
	for _, id := range []string{"hung", "hung1", "hung2", "hung3", "job"} {
		r.add(r.event(id, 1, "done"))
	}
	busy.ends()
	<-w.done
}
