package poll

import (
	"errors"
	"log/slog"
	"math/rand/v2"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/failpoint"
	"github.com/millrace-io/millrace/plugins/redis/entry"
)

// readCmd is an XREADGROUP that the client never re-sends: a re-sent read hides that the reply of the
// first, with its entries, was lost.
type readCmd struct{ *goredis.XStreamSliceCmd }

// NoRetry keeps the client from re-sending the command after a network error.
func (readCmd) NoRetry() bool { return true }

// gatePoll is how often a closed gate is asked again, at the latest.
const gatePoll = 250 * time.Millisecond

// readBackoff is the delay after reads that failed.
var readBackoff = pipeline.Backoff{First: 100 * time.Millisecond, Max: 5 * time.Second}

// read polls until the reader stops. First, and after every failure that may have cost a reply, it goes
// through this consumer's own pending entries by id, then it reads what is new. What it finds the first time
// was delivered in an earlier life of the consumer, and is now delivered once more; later it is what no handler was given.
func (r *Reader) read() {
	var (
		cursor   = ""                        // where the look through own pending entries is; empty: not at it
		again    = 1                         // deliveries to be added to what is found there
		idle     = r.cfg.InitialPollInterval // the next sleep after an empty read
		failures = 0
	)
	for r.awaitTurn() {
		if r.takeReread() {
			cursor = "-"
		}
		var (
			sent    = time.Now()
			own     = cursor != ""
			entries []goredis.XMessage
			err     error
		)
		if own {
			cursor, err = r.takeInOwn(cursor, again, sent)
		} else {
			entries, err = r.readGroup()
		}
		switch {
		case err == nil && own:
			if cursor == "" {
				again = 0
			}
			idle = r.cfg.InitialPollInterval
		case err == nil && len(entries) > 0:
			failpoint.Hit(failpoint.AfterRead)
			r.mu.Lock()
			if r.draining {
				r.giveBackRead(entries, sent)
			} else {
				r.takeIn(entries, nil, sent)
			}
			r.mu.Unlock()
			idle = r.cfg.InitialPollInterval
		case err == nil:
			r.m.emptyReads.Inc()
			if r.sleep(r.nextPoll(idle)) {
				idle = r.cfg.InitialPollInterval
			} else {
				idle = min(2*idle, r.cfg.PollInterval)
			}
		case IsNoGroup(err):
			if !r.absent() {
				return
			}
			cursor, again = "", 0
		default:
			failures = r.readFailed(err, failures)
			continue
		}
		if failures > 0 {
			r.log.Info("reading again", slog.Int("failures", failures))
			failures = 0
		}
	}
}

// nextPoll adds jitter to a sleep that has reached the poll interval. It only lengthens: an idle stream
// costs at most one read a poll interval.
func (r *Reader) nextPoll(idle time.Duration) time.Duration {
	if idle < r.cfg.PollInterval {
		return idle
	}
	return idle + time.Duration(rand.Int64N(int64(idle)/10+1))
}

// readGroup reads at most one batch of new entries.
func (r *Reader) readGroup() ([]goredis.XMessage, error) {
	ctx, cancel := r.command()
	defer cancel()
	cmd := readCmd{goredis.NewXStreamSliceCmd(ctx, "xreadgroup", "group", r.cfg.Group, r.cfg.Consumer,
		"count", r.cfg.BatchSize, "streams", r.cfg.Stream, ">")}
	cmd.SetFirstKeyPos(7)
	r.m.reads.Inc()
	err := r.c.Process(ctx, cmd)
	if errors.Is(err, goredis.Nil) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	for _, s := range cmd.Val() {
		return s.Messages, nil
	}
	return nil, nil
}

// awaitTurn returns true when a read may be sent, false when the reader stops.
func (r *Reader) awaitTurn() bool {
	for {
		r.mu.Lock()
		stop, paused, room := r.draining, r.paused, r.book.canRead()
		r.mu.Unlock()
		switch {
		case stop:
			return false
		case paused:
			select {
			case <-r.wake:
			case <-r.stopping:
			}
		case !room:
			select {
			case <-r.freed:
			case <-r.wake:
			case <-r.stopping:
			}
		case r.cfg.Gate != nil && !r.cfg.Gate(), r.fenced():
			r.sleep(min(gatePoll, r.cfg.PollInterval))
		default:
			return true
		}
	}
}

// sleep waits for d, for Wake or for the end; woken is true when it was cut short.
func (r *Reader) sleep(d time.Duration) (woken bool) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return false
	case <-r.wake:
	case <-r.stopping:
	}
	return true
}

func (r *Reader) takeReread() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := r.reread
	r.reread = false
	return again
}

// takeInOwn takes in own pending entries from cursor on that are not in flight: of an earlier life of this consumer, or of a
// read whose reply was lost. It answers where to go on, empty at the end. What was deleted meanwhile is acknowledged away and
// reported. An XREADGROUP by id would bring the same, and count a delivery of everything that is in flight.
func (r *Reader) takeInOwn(cursor string, again int, sent time.Time) (next string, err error) {
	ctx, cancel := r.command()
	defer cancel()
	own, err := r.c.XPendingExt(ctx, &goredis.XPendingExtArgs{
		Stream: r.cfg.Stream, Group: r.cfg.Group, Consumer: r.cfg.Consumer, Start: cursor, End: "+", Count: int64(min(r.cfg.BatchSize, maxScriptIDs)),
	}).Result()
	if err != nil {
		return cursor, err
	}
	if len(own) == 0 {
		return "", nil
	}
	next, _ = entry.NextID(own[len(own)-1].ID)
	r.mu.Lock()
	ids := r.book.missing(own)
	r.mu.Unlock()
	if len(ids) == 0 {
		return next, nil
	}
	got, err := r.scripts.claimOwn(ctx, r.c, r.cfg.Stream, r.cfg.Group, r.cfg.Consumer, again, ids)
	if err != nil {
		return cursor, err
	}
	if len(got.Deleted) > 0 {
		r.ackGhosts(got.Deleted)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.draining {
		r.giveBackRead(got.Entries, sent)
	} else {
		r.takeIn(got.Entries, got.Delivered, sent)
	}
	return next, nil
}

// giveBackRead releases what a read has brought although the reader stops; the mutex is held.
func (r *Reader) giveBackRead(entries []goredis.XMessage, sent time.Time) {
	if r.gone {
		return
	}
	r.takeIn(entries, nil, sent)
	r.book.returnUnbegun()
	signal(r.flush)
}

// ackGhosts acknowledges entries that are pending but deleted from the stream.
func (r *Reader) ackGhosts(ids []string) {
	r.m.deletedPending.Add(float64(len(ids)))
	r.log.Error("pending entries were deleted before they were handled", slog.Int("entries", len(ids)), slog.String("first", ids[0]))
	ctx, cancel := r.command()
	defer cancel()
	if err := r.c.XAck(ctx, r.cfg.Stream, r.cfg.Group, ids...).Err(); err != nil {
		r.log.Warn("deleted entries not acknowledged", pipeline.Err(err))
	}
}

// absent asks the owner of the stream whether it should exist; false ends the reader.
func (r *Reader) absent() bool {
	if r.cfg.Absent == nil {
		r.stop(true)
		return false
	}
	ctx, cancel := r.command()
	defer cancel()
	again, err := r.cfg.Absent(ctx)
	switch {
	case err != nil:
		r.log.Warn("stream is gone, its owner has no answer yet", pipeline.Err(err))
		r.sleep(readBackoff.Delay(3))
	case !again:
		r.log.Debug("stream is gone and not wanted, the reader stops")
		r.stop(true)
		return false
	default:
		r.log.Info("stream was gone and has been made again")
		r.sleep(r.cfg.InitialPollInterval) // an owner that is mistaken must not make this loop spin
	}
	return true
}

// readFailed waits after a failed read and returns the number of failures in a row.
func (r *Reader) readFailed(err error, failures int) int {
	failures++
	r.m.readErrors.Inc()
	if !IsReply(err) {
		r.mu.Lock()
		r.reread = true // the reply, with entries that are ours now, may have been lost
		r.mu.Unlock()
	}
	if failures == 1 {
		r.log.Warn("read failed, trying again", pipeline.Err(err))
	} else {
		r.log.Debug("read failed again", slog.Int("failures", failures), pipeline.Err(err))
	}
	r.sleep(readBackoff.Delay(failures))
	return failures
}
