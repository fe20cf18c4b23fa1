package gateway

import (
	"context"
	"errors"
	"hash/maphash"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/plugins/sse"
)

// Reasons of log reads, a label of the metric.
const (
	readConnect = "connect" // the backlog of a new watcher
	readHole    = "hole"    // a number is missing
	readLost    = "lost"    // entries of a feed may have been missed
)

const (
	pageEvents   = 64 // of one job in one read
	pipelineJobs = 16 // in one pipeline; with pageEvents it limits the memory of a read
)

// reader reads logs in pipelines, one at a time per node of Redis: a node that hangs delays no
// reads from others. Equal reads that wait are one read: thousands of watchers that reconnect to
// one job read each page once.
type reader struct {
	g     *Gateway
	node  func(context.Context, joblog.Query) string
	logs  func(context.Context, []joblog.Query) []joblog.Snapshot
	wake  chan struct{}
	ended chan struct{} // closed at the end of run

	mu      sync.Mutex
	waiting map[joblog.Query][]func(page, error)
	added   []joblog.Query            // not yet in nodes
	nodes   map[string][]joblog.Query // by node, while its goroutine runs
}

func newReader(g *Gateway) *reader {
	return &reader{
		g: g, logs: g.opts.Log.Read,
		node: func(ctx context.Context, q joblog.Query) string {
			return g.opts.Server.Node(ctx, joblog.LogKey(q.Domain, q.JobID))
		},
		wake: make(chan struct{}, 1), ended: make(chan struct{}),
		waiting: map[joblog.Query][]func(page, error){}, nodes: map[string][]joblog.Query{},
	}
}

// queueRead calls done with the page after a number. It does not wait.
func (r *reader) queueRead(of jobKey, after int64, reason string, done func(page, error)) {
	q := joblog.Query{Domain: of.domain, JobID: of.id, After: after, Limit: pageEvents}
	r.mu.Lock()
	if len(r.waiting[q]) == 0 {
		r.added = append(r.added, q)
		r.g.metrics.reads.WithLabelValues(reason).Inc()
	}
	r.waiting[q] = append(r.waiting[q], done)
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// readTimeout limits the wait for pages. The client then gets busy and reconnects.
const readTimeout = 5 * time.Second

var errStopped = errors.New("the gateway stops")

// position is a number in the log of a job.
type position struct {
	of    jobKey
	after int64
}

// pages reads one page after each position, all together, for a caller that waits.
func (r *reader) pages(ctx context.Context, positions ...position) ([]page, error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	pages, results := make([]page, len(positions)), make(chan error, len(positions))
	for i, p := range positions {
		r.queueRead(p.of, p.after, readConnect, func(p page, err error) {
			pages[i] = p
			results <- err
		})
	}
	for range positions {
		select {
		case err := <-results:
			if err != nil {
				return nil, err
			}
		case <-r.ended:
			return nil, errStopped
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return pages, nil
}

// run reads until ctx ends.
func (r *reader) run(ctx context.Context) {
	defer close(r.ended)
	var running sync.WaitGroup
	defer running.Wait()
	for {
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
		r.mu.Lock()
		added := r.added
		r.added = nil
		r.mu.Unlock()
		for _, q := range added {
			node := r.node(ctx, q)
			r.mu.Lock()
			if r.nodes[node] == nil {
				running.Go(func() { r.runNode(ctx, node) })
			}
			r.nodes[node] = append(r.nodes[node], q)
			r.mu.Unlock()
		}
	}
}

// runNode reads from one node until nothing waits for it.
func (r *reader) runNode(ctx context.Context, node string) {
	for {
		queries, done := r.takeReads(node)
		if len(queries) == 0 || ctx.Err() != nil {
			return
		}
		begun := time.Now()
		for i, s := range r.logs(ctx, queries) {
			p, err := r.g.page(s, queries[i])
			p.begun = begun
			for _, f := range done[i] {
				f(p, err)
			}
		}
	}
}

// takeReads removes the reads of the next pipeline. The last call removes the node.
func (r *reader) takeReads(node string) (queries []joblog.Query, done [][]func(page, error)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.nodes[node]
	n := min(len(all), pipelineJobs)
	if n == 0 {
		delete(r.nodes, node)
		return nil, nil
	}
	queries, r.nodes[node] = all[:n:n], all[n:]
	for _, q := range queries {
		done = append(done, r.waiting[q])
		delete(r.waiting, q)
	}
	return queries, done
}

// page converts a snapshot. The state counts as the newest event of a log that has expired.
func (g *Gateway) page(s joblog.Snapshot, q joblog.Query) (page, error) {
	if s.Err != nil {
		return page{}, s.Err
	}
	p := page{after: q.After, first: s.First, top: s.Top, end: s.End}
	if s.State != nil {
		if s.First > s.Top && s.State.Seq > q.After {
			p.first = s.Top
			s.Events = append(s.Events, *s.State)
		}
		state, err := g.encode(*s.State)
		if err != nil {
			return page{}, err
		}
		p.state = &state
	}
	for _, e := range s.Events {
		it, err := g.encode(e)
		if err != nil {
			return page{}, err
		}
		p.items = append(p.items, it)
	}
	if n := len(p.items); n > 0 {
		p.more = p.items[n-1].seq < s.Top
	}
	return p, nil
}

func (g *Gateway) encode(e event.Event) (item, error) {
	data, err := e.JSON()
	return g.item(e, data), err
}

// item returns an event for the watchers. data is its JSON.
func (g *Gateway) item(e event.Event, data []byte) item {
	it := item{seq: e.Seq}
	if at, ok := parseEntry(e.StreamID); ok {
		it.entry, it.added = at, time.UnixMilli(at.millis)
	}
	if e.Seq == 0 {
		it.event = sse.Event{Name: "transient", Data: data}.Prepare()
	} else {
		it.event = sse.Event{ID: cursorAt(it).String(), Name: "event", Data: data}.Prepare()
	}
	it.content = maphash.Comparable(g.seed, [4]string{e.Stage, e.Status, string(e.Data), e.EventID})
	if g.opts.Stages.IsTerminal(e.Stage) {
		it.end = "done"
		if e.Stage == "error" {
			it.end = "error"
		}
	}
	return it
}
