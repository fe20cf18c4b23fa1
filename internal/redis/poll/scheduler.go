package poll

import (
	"container/heap"
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"
)

const (
	pipelineReads = 200                   // in one pipeline
	slowPipeline  = 50 * time.Millisecond // after this time another pipeline is sent to the server
	pipelines     = 8                     // under way per server
)

// Scheduler sends the reads of all readers that wait for entries, many in one pipeline. Several
// readers of one client share it (Options.Scheduler). The zero value is ready. It has goroutines
// only while reads are under way.
type Scheduler struct {
	mu      sync.Mutex
	epoch   time.Time
	queue   dueQueue
	timer   *time.Timer
	servers map[goredis.UniversalClient]*serverReads // per server, while reads are due there
}

// serverReads are the reads for one server. They are sent in one pipeline at a time, and in several
// while pipelines are slow: connections may be dead. A server that does not answer delays no other
// one.
type serverReads struct {
	due     []*poller
	senders int // goroutines
	slow    int // of those: whose pipeline is slow
}

// sentReads is a pipeline under way.
type sentReads struct {
	cancel context.CancelFunc
	open   int // reads of pollers that have not ended
}

// scheduled is the part of a poller that belongs to its Scheduler. Scheduler.mu guards it.
type scheduled struct {
	at      time.Time // when the next read is due
	index   int       // in the queue; -1: not there
	reading bool      // a read is under way, or the poller reads by itself
	woken   bool      // the next read is due at once
	started bool
	ended   bool
	queued  *serverReads   // where the read is due; may be nil
	sent    *sentReads     // the pipeline that has the read; may be nil
	reads   sync.WaitGroup // one while reading
}

// never is the wait of a poller until it is woken.
const never = time.Duration(-1)

// addPoller makes the first read of p due.
func (s *Scheduler) addPoller(p *poller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.scheduled.started = true
	s.push(p, 0)
}

// wait ends the read of p. The next one is due after the given time.
func (s *Scheduler) wait(p *poller, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.endRead()
	if p.scheduled.woken {
		p.idle, after = p.opts.InitialPollInterval, 0
	}
	if after != never {
		s.push(p, after)
	}
}

// endRead ends a read.
func (d *scheduled) endRead() {
	d.reading, d.queued, d.sent = false, nil, nil
	d.reads.Done()
}

// wake makes a read of p due now.
func (s *Scheduler) wake(p *poller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.scheduled.reading {
		p.scheduled.woken = true
		return
	}
	p.idle = p.opts.InitialPollInterval
	if p.scheduled.index >= 0 {
		heap.Remove(&s.queue, p.scheduled.index)
	}
	s.push(p, 0)
}

// push adds p to the queue. Reads that are due at almost the same time become due together.
func (s *Scheduler) push(p *poller, after time.Duration) {
	if !p.scheduled.started || p.scheduled.ended {
		return
	}
	if s.timer == nil {
		s.epoch, s.timer = time.Now(), time.AfterFunc(time.Hour, s.dispatch)
	}
	p.scheduled.woken = false
	p.scheduled.at = s.epoch.Add(roundUp(time.Since(s.epoch)+after, after/pollSteps))
	heap.Push(&s.queue, p)
	if p.scheduled.index == 0 {
		s.timer.Reset(time.Until(p.scheduled.at))
	}
}

// roundUp returns due rounded up by at most limit. It rounds to a multiple of a power of two, so
// that pollers with similar waits become due together.
func roundUp(due, limit time.Duration) time.Duration {
	if limit <= 0 {
		return due
	}
	step := time.Duration(1) << (bits.Len64(uint64(limit)) - 1)
	return due + (step-due%step)%step
}

// removePoller removes p. A read that was sent ends by itself. A pipeline whose pollers have all ended is
// soon cancelled.
func (s *Scheduler) removePoller(p *poller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.scheduled.ended = true
	if p.scheduled.index >= 0 {
		heap.Remove(&s.queue, p.scheduled.index)
	}
	if server := p.scheduled.queued; server != nil {
		server.due = slices.DeleteFunc(server.due, func(o *poller) bool { return o == p })
		p.endRead()
	}
	if sent := p.scheduled.sent; sent != nil {
		if sent.open--; sent.open == 0 {
			time.AfterFunc(finalFlush, sent.cancel)
		}
	}
}

// abandon ends the pipeline that has the read of p.
func (s *Scheduler) abandon(p *poller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.scheduled.sent != nil {
		p.scheduled.sent.cancel()
	}
}

// dispatch adds the due reads to those of their servers.
func (s *Scheduler) dispatch() {
	due := map[goredis.UniversalClient][]*poller{}
	for _, p := range s.takeDue() {
		server := p.server()
		due[server] = append(due[server], p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for server, list := range due {
		l := s.servers[server]
		if l == nil {
			l = &serverReads{}
			if s.servers == nil {
				s.servers = map[goredis.UniversalClient]*serverReads{}
			}
			s.servers[server] = l
		}
		for _, p := range list {
			if p.scheduled.ended {
				p.endRead()
				continue
			}
			p.scheduled.queued = l
			l.due = append(l.due, p)
		}
		s.startSender(server, l)
	}
}

// startSender starts a sender if all are slow. Without one, it removes the server.
func (s *Scheduler) startSender(server goredis.UniversalClient, l *serverReads) {
	if len(l.due) > 0 && l.senders == l.slow && l.senders < pipelines {
		l.senders++
		go s.send(server, l)
	}
	if l.senders == 0 {
		delete(s.servers, server)
	}
}

func (s *Scheduler) takeDue() (due []*poller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for len(s.queue) > 0 && !s.queue[0].scheduled.at.After(now) {
		p := heap.Pop(&s.queue).(*poller)
		p.scheduled.reading = true
		p.scheduled.reads.Add(1)
		due = append(due, p)
	}
	if len(s.queue) > 0 {
		s.timer.Reset(s.queue[0].scheduled.at.Sub(now))
	}
	return due
}

// send sends the due reads of a server. The readers wait for it.
func (s *Scheduler) send(server goredis.UniversalClient, l *serverReads) {
	for {
		ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
		batch := s.takeReads(l, cancel)
		if len(batch) > 0 {
			slow := time.AfterFunc(slowPipeline, func() { s.pipelineSlow(server, l, 1) })
			readTogether(ctx, batch)
			if !slow.Stop() {
				s.pipelineSlow(server, l, -1)
			}
		}
		cancel()
		if len(batch) == 0 {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l.senders--
	s.startSender(server, l)
}

// takeReads returns the reads of the next pipeline.
func (s *Scheduler) takeReads(l *serverReads, cancel context.CancelFunc) []*poller {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := min(len(l.due), pipelineReads)
	batch := slices.Clone(l.due[:n])
	l.due = l.due[n:]
	sent := &sentReads{cancel, n}
	for _, p := range batch {
		p.scheduled.queued, p.scheduled.sent = nil, sent
	}
	return batch
}

// pipelineSlow changes the number of slow pipelines.
func (s *Scheduler) pipelineSlow(server goredis.UniversalClient, l *serverReads, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.slow += by
	s.startSender(server, l)
}

// readTogether sends the next command of each poller in one pipeline. A poller whose reply has
// entries, or that must wait for room, continues in a goroutine.
func readTogether(ctx context.Context, batch []*poller) {
	var sent []*poller
	var cmds []goredis.Cmder
	at := time.Now()
	for _, p := range batch {
		room, closed := p.inflight.readable()
		switch {
		case closed:
			p.opts.Scheduler.wait(p, never)
		case !p.mayRead():
			p.opts.Scheduler.wait(p, p.waitWhileClosed())
		case !room:
			go p.run(nil, at)
		default:
			sent, cmds = append(sent, p), append(cmds, p.next(ctx, at))
		}
	}
	switch len(cmds) {
	case 0:
		return
	case 1:
		_ = sent[0].Client.Process(ctx, cmds[0]) // each command has its own error
	default:
		pipe := sent[0].Client.Pipeline()
		for _, cmd := range cmds {
			_ = pipe.Process(ctx, cmd)
		}
		_, _ = pipe.Exec(ctx)
	}
	for i, p := range sent {
		if p.isQuiet(cmds[i]) {
			p.opts.Scheduler.wait(p, p.handle(cmds[i], at))
		} else {
			go p.run(cmds[i], at)
		}
	}
}

// dueQueue is a heap of pollers.
type dueQueue []*poller

// Len implements heap.Interface, as the other methods do.
func (q dueQueue) Len() int { return len(q) }

// Less compares the due times.
func (q dueQueue) Less(i, j int) bool { return q[i].scheduled.at.Before(q[j].scheduled.at) }

// Swap swaps two pollers.
func (q dueQueue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].scheduled.index, q[j].scheduled.index = i, j
}

// Push appends a poller.
func (q *dueQueue) Push(x any) {
	p := x.(*poller)
	p.scheduled.index = len(*q)
	*q = append(*q, p)
}

// Pop removes the last poller.
func (q *dueQueue) Pop() any {
	last := len(*q) - 1
	p := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	p.scheduled.index = -1
	return p
}
