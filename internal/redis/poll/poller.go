package poll

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// gatePoll is the longest time between two queries of a closed gate or fence.
const gatePoll = 250 * time.Millisecond

// readBackoff returns the delay after the n-th failed read in a row.
func readBackoff(n int) time.Duration {
	return pipeline.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second}.Delay(n)
}

// poller reads new entries while there is room for them. At the start, and after every failure that
// may have lost a reply, it first searches this consumer's own pending entries. Its Scheduler reads
// for it until there are entries. Then it has a goroutine until a read finds none.
type poller struct {
	*shared
	end    func() // ends the reader, because its stream does not exist
	paused atomic.Bool
	search atomic.Bool // own pending entries must be searched
	scheduled

	cursor     string        // the position of the search; empty: no search
	deliveries int           // what the search adds to delivery counts
	takeOver   bool          // the search claims the entries of all consumers
	former     []string      // consumers from which it has claimed
	idle       time.Duration // the wait after the next empty read
	demand     demand
	failures   atomic.Int64 // in a row
	existed    bool         // a read has succeeded
}

// run takes in the reply of cmd, which may be nil, and reads until there is nothing to read.
func (p *poller) run(cmd goredis.Cmder, sent time.Time) {
	for {
		if cmd != nil {
			if wait := p.handle(cmd, sent); wait != 0 {
				p.opts.Scheduler.wait(p, wait)
				return
			}
		}
		if !p.inflight.awaitCapacity() || !p.mayRead() {
			p.opts.Scheduler.wait(p, p.waitWhileClosed())
			return
		}
		ctx, cancel := p.command()
		sent = time.Now()
		cmd = p.next(ctx, sent)
		_ = p.Client.Process(ctx, cmd) // the command has the error too
		cancel()
	}
}

// searchAgain makes the poller search the consumer's own pending entries now.
func (p *poller) searchAgain() {
	p.search.Store(true)
	p.opts.Scheduler.wake(p)
}

// mayRead reports whether new entries are allowed now.
func (p *poller) mayRead() bool {
	return !p.paused.Load() && (p.opts.Gate == nil || p.opts.Gate()) && !p.opts.fenced()
}

// waitWhileClosed returns the wait of a poller that may not read.
func (p *poller) waitWhileClosed() time.Duration {
	if p.paused.Load() {
		return never
	}
	return min(gatePoll, p.opts.PollInterval)
}

// server returns the client of the server that has the stream.
func (p *poller) server() goredis.UniversalClient {
	if cluster, ok := p.Client.(*goredis.ClusterClient); ok {
		if node, err := cluster.MasterForKey(p.life, p.Stream); err == nil {
			return node
		}
	}
	return p.Client
}

// next returns the next command. It reads new entries, or a page of own pending ones.
func (p *poller) next(ctx context.Context, now time.Time) goredis.Cmder {
	if p.search.Swap(false) {
		p.cursor = "-"
		p.inflight.searching()
	}
	if p.cursor != "" {
		args := []any{"xpending", p.Stream, p.Group, p.cursor, "+", min(p.opts.BatchSize, maxScriptIDs)}
		if !p.takeOver {
			args = append(args, p.Name)
		}
		return goredis.NewXPendingExtCmd(ctx, args...)
	}
	p.m.reads.Inc()
	count := p.demand.next(now)
	p.demand.asked = p.inflight.fits(count, count)
	return p.readNew(ctx, p.demand.asked)
}

// isQuiet reports whether handle needs no command for a reply.
func (p *poller) isQuiet(cmd goredis.Cmder) bool {
	if err := cmd.Err(); err != nil && !errors.Is(err, goredis.Nil) {
		return !IsNoGroup(err)
	}
	own, search := cmd.(*goredis.XPendingExtCmd)
	return search && len(own.Val()) == 0 && len(p.former) == 0 || !search && len(entriesOf(cmd)) == 0
}

// handle takes in a reply, and returns the wait before the next command.
func (p *poller) handle(cmd goredis.Cmder, sent time.Time) time.Duration {
	err := cmd.Err()
	if errors.Is(err, goredis.Nil) {
		err = nil
	}
	own, search := cmd.(*goredis.XPendingExtCmd)
	found := search
	if err == nil && search {
		err = p.recoverOwn(own.Val(), sent)
	} else if err == nil {
		found = p.takeNew(entriesOf(cmd), sent)
	}
	switch {
	case IsNoGroup(err):
		p.searched()
		return p.absent()
	case err != nil:
		return p.failed(err)
	}
	p.existed = true
	if n := p.failures.Swap(0); n > 0 {
		p.log().Info("reading again", slog.Int64("failures", n))
	}
	if found {
		p.idle = p.opts.InitialPollInterval
		return 0
	}
	return p.nextWait()
}

// pollSteps limits the rounding of a wait, and its jitter: each adds at most this part of it.
const pollSteps = 21

// nextWait returns the wait after a read without entries, which doubles with each of them up to the
// poll interval. There it gets jitter. Jitter and rounding only make it longer, by a tenth at most,
// so an idle stream costs at most one read per poll interval.
func (p *poller) nextWait() time.Duration {
	wait := p.idle
	if wait < p.opts.PollInterval {
		p.idle = min(2*wait, p.opts.PollInterval)
		return wait
	}
	return wait + time.Duration(rand.Int64N(int64(wait/pollSteps)+1))
}

// takeNew takes in new entries.
func (p *poller) takeNew(entries []goredis.XMessage, sent time.Time) (found bool) {
	p.demand.noteRead(entries, sent, time.Now())
	p.inflight.setAhead(p.demand.ahead())
	if len(entries) == 0 {
		p.m.emptyReads.Inc()
		return false
	}
	failpoint.Hit(failpoint.AfterRead)
	p.inflight.addRead(entries, nil, sent)
	return true
}

// recoverOwn takes in one page of own pending entries that are not in flight. An earlier process of
// this name left them, or the reply of a read was lost. An XREADGROUP by id would return the same
// entries, and would count a delivery of each entry in flight.
func (p *poller) recoverOwn(own []goredis.XPendingExt, sent time.Time) error {
	if len(own) == 0 {
		p.searched()
		return nil
	}
	from, foreign := p.Name, map[string]bool{}
	if p.takeOver {
		from = ""
		p.noteFormer(own, foreign)
	}
	for ids := p.inflight.missing(own); len(ids) > 0; {
		if p.inflight.isFull() {
			p.cursor = ids[0] // continues there when there is room again
			return nil
		}
		n := p.inflight.fits(len(ids), 1)
		got, err := p.takeClaimed(from, ids[:n], sent)
		if err != nil {
			return err
		}
		for _, e := range got {
			if foreign[e.ID] {
				p.m.adopted.Inc()
			}
		}
		ids = ids[n:]
	}
	if p.cursor, _ = entry.NextID(own[len(own)-1].ID); p.cursor == "" {
		p.searched()
	}
	return nil
}

func (p *poller) takeClaimed(from string, ids []string, sent time.Time) ([]goredis.XMessage, error) {
	ctx, cancel := p.command()
	defer cancel()
	got, err := p.claim(ctx, from, 0, p.deliveries, ids)
	if err != nil {
		return nil, err
	}
	p.reportDeleted(got.Deleted)
	p.inflight.addRead(got.Entries, got.Delivered, sent)
	return got.Entries, nil
}

// noteFormer notes other consumers, and the ids of their entries.
func (p *poller) noteFormer(pending []goredis.XPendingExt, foreign map[string]bool) {
	for _, e := range pending {
		if e.Consumer == p.Name {
			continue
		}
		foreign[e.ID] = true
		if !slices.Contains(p.former, e.Consumer) {
			p.former = append(p.former, e.Consumer)
		}
	}
}

// searched ends a search. It removes the consumers whose entries were all claimed.
func (p *poller) searched() {
	p.cursor, p.deliveries, p.takeOver = "", 0, false
	for _, name := range p.former {
		p.remove(Consumer{p.Client, p.Stream, p.Group, name}, commandTimeout)
	}
	p.former = nil
}

// absent calls Options.Absent, and returns the wait before the next command.
func (p *poller) absent() time.Duration {
	if p.opts.Absent == nil {
		p.end()
		return never
	}
	ctx, cancel := p.command()
	defer cancel()
	again, err := p.opts.Absent(ctx)
	switch {
	case err != nil:
		p.log().Warn("stream does not exist, its owner did not decide yet", logs.Err(err))
		return readBackoff(3)
	case !again:
		p.log().Debug("stream does not exist and is not needed, the reader stops")
		p.end()
		return never
	case p.existed:
		p.log().Info("stream did not exist and was created again")
	default: // at the first start each stream of a domain
		p.log().Debug("stream did not exist and was created")
	}
	return p.opts.InitialPollInterval // a wrong answer does not make a busy loop
}

// failed returns the wait after a failed command.
func (p *poller) failed(err error) time.Duration {
	n := int(p.failures.Add(1))
	p.m.readErrors.Inc()
	if !IsReply(err) {
		p.search.Store(true) // the reply may be lost, with entries that are ours now
	}
	if n == 1 {
		p.log().Warn("read failed, trying again", logs.Err(err))
	} else {
		p.log().Debug("read failed again", slog.Int("failures", n), logs.Err(err))
	}
	return readBackoff(n)
}
