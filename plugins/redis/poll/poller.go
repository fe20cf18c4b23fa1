package poll

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// gatePoll is the longest time between two queries of a closed gate or fence.
const gatePoll = 250 * time.Millisecond

// readBackoff returns the delay after the n-th failed read in a row.
func readBackoff(n int) time.Duration {
	return pipeline.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second}.Delay(n)
}

// poller reads new entries while there is room for them. At the start, and after every failure that
// may have lost a reply, it first searches this consumer's own pending entries.
type poller struct {
	*shared
	end    func() // ends the reader, because its stream does not exist
	paused atomic.Bool

	cursor     string        // the position of the search; empty: no search
	deliveries int           // what the search adds to delivery counts
	idle       time.Duration // the sleep after the next empty read
	demand     demand
	failures   int // in a row
}

func (p *poller) run(ctx context.Context) {
	for p.awaitRoom(ctx) && p.poll(ctx) {
	}
}

// mayRead reports whether new entries are allowed now.
func (p *poller) mayRead() bool {
	return !p.paused.Load() && (p.o.Gate == nil || p.o.Gate()) && !p.o.fenced()
}

// awaitRoom returns true when a read may be sent, and false when the reader stops.
func (p *poller) awaitRoom(ctx context.Context) bool {
	for {
		room, closed := p.table.readable()
		switch {
		case closed:
			return false
		case p.paused.Load():
			wait[struct{}](ctx, p.table.wake, nil)
		case !room:
			wait(ctx, p.table.wake, p.table.freed)
		case !p.mayRead():
			p.sleep(ctx, min(gatePoll, p.o.PollInterval))
		default:
			return true
		}
	}
}

// wait waits for c, for wake or for the end of ctx. woken is false after c.
func wait[T any](ctx context.Context, wake <-chan struct{}, c <-chan T) (woken bool) {
	select {
	case <-c:
		return false
	case <-wake:
	case <-ctx.Done():
	}
	return true
}

func (p *poller) sleep(ctx context.Context, d time.Duration) (woken bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	return wait(ctx, p.table.wake, t.C)
}

// poll reads once, and sleeps when there was nothing to read. It returns false when the reader
// ends.
func (p *poller) poll(ctx context.Context) bool {
	if p.table.searchRequested() {
		p.cursor = "-"
	}
	read := p.readNew
	if p.cursor != "" {
		read = p.readOwn
	}
	found, err := read(time.Now())
	switch {
	case IsNoGroup(err):
		p.cursor, p.deliveries = "", 0
		return p.absent(ctx)
	case err != nil:
		p.failed(ctx, err)
		return true
	}
	if p.failures > 0 {
		p.log.Info("reading again", slog.Int("failures", p.failures))
		p.failures = 0
	}
	if found || p.sleep(ctx, p.nextSleep()) {
		p.idle = p.o.InitialPollInterval
	} else {
		p.idle = min(2*p.idle, p.o.PollInterval)
	}
	return true
}

// nextSleep adds jitter to a sleep that has reached the poll interval. Jitter only makes it longer:
// an idle stream costs at most one read per poll interval.
func (p *poller) nextSleep() time.Duration {
	if p.idle < p.o.PollInterval {
		return p.idle
	}
	return p.idle + time.Duration(rand.Int64N(int64(p.idle)/10+1))
}

// readNew reads at most one batch of new entries.
func (p *poller) readNew(sent time.Time) (found bool, err error) {
	ctx, cancel := p.command()
	defer cancel()
	p.m.reads.Inc()
	entries, err := p.read(ctx, p.demand.next(sent))
	if err != nil {
		return false, err
	}
	p.demand.read(entries, sent, time.Now())
	p.table.setAhead(p.demand.ahead())
	if len(entries) == 0 {
		p.m.emptyReads.Inc()
		return false, nil
	}
	failpoint.Hit(failpoint.AfterRead)
	p.table.add(entries, nil, sent)
	return true, nil
}

// readOwn takes in one page of own pending entries that are not in flight. An earlier process of
// this name left them, or the reply of a read was lost. An XREADGROUP by id would return the same
// entries, and would count a delivery of each entry in flight.
func (p *poller) readOwn(sent time.Time) (found bool, err error) {
	ctx, cancel := p.command()
	defer cancel()
	own, err := p.Client.XPendingExt(ctx, &goredis.XPendingExtArgs{
		Stream: p.Stream, Group: p.Group, Consumer: p.Name, Start: p.cursor, End: "+", Count: int64(min(p.o.BatchSize, maxScriptIDs)),
	}).Result()
	if err != nil {
		return false, err
	}
	if len(own) == 0 {
		p.cursor, p.deliveries = "", 0
		return true, nil
	}
	if ids := p.table.missing(own); len(ids) > 0 {
		got, err := p.claim(ctx, p.Name, 0, p.deliveries, ids)
		if err != nil {
			return false, err
		}
		p.reportDeleted(got.Deleted)
		p.table.add(got.Entries, got.Delivered, sent)
	}
	if p.cursor, _ = entry.NextID(own[len(own)-1].ID); p.cursor == "" {
		p.deliveries = 0
	}
	return true, nil
}

// absent calls Options.Absent. It returns false when the reader ends.
func (p *poller) absent(ctx context.Context) bool {
	if p.o.Absent == nil {
		p.end()
		return false
	}
	call, cancel := p.command()
	defer cancel()
	again, err := p.o.Absent(call)
	switch {
	case err != nil:
		p.log.Warn("stream does not exist, its owner did not decide yet", pipeline.Err(err))
		p.sleep(ctx, readBackoff(3))
	case !again:
		p.log.Debug("stream does not exist and is not needed, the reader stops")
		p.end()
		return false
	default:
		p.log.Info("stream did not exist and was created again")
		p.sleep(ctx, p.o.InitialPollInterval) // so that a wrong answer does not make a busy loop
	}
	return true
}

// failed waits after a failed read.
func (p *poller) failed(ctx context.Context, err error) {
	p.failures++
	p.m.readErrors.Inc()
	if !IsReply(err) {
		p.table.searchNext() // the reply may be lost, with entries that are ours now
	}
	if p.failures == 1 {
		p.log.Warn("read failed, trying again", pipeline.Err(err))
	} else {
		p.log.Debug("read failed again", slog.Int("failures", p.failures), pipeline.Err(err))
	}
	p.sleep(ctx, readBackoff(p.failures))
}
