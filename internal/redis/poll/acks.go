package poll

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
)

// flushBackoff returns the delay after the n-th failed flush in a row.
func flushBackoff(n int) <-chan time.Time {
	return time.After(pipeline.Backoff{First: 50 * time.Millisecond, Max: 2 * time.Second}.Delay(n))
}

// acker sends acknowledgements, releases and delivery counts, many per command.
type acker struct{ *shared }

// run flushes until nothing is in flight, or until the reader ends.
func (a acker) run() {
	for failures := 0; !a.inflight.endWhenIdle(); {
		select {
		case <-a.inflight.flush:
		case <-a.inflight.finished:
			return
		}
		if failures == 0 {
			a.awaitBatch()
		}
		call, cancel := a.command()
		err := a.flush(call)
		cancel()
		if err == nil {
			failures = 0
			continue
		}
		if failures++; failures == 1 {
			a.log().Warn("acknowledging failed, trying again", logs.Err(err))
		}
		select {
		case <-flushBackoff(failures):
		case <-a.inflight.finished:
		}
		signal(a.inflight.flush)
	}
}

// awaitBatch waits until a flush is due, for at most AckFlushInterval.
func (a acker) awaitBatch() {
	t := time.NewTimer(a.opts.AckFlushInterval)
	defer t.Stop()
	for !a.inflight.flushDue() {
		select {
		case <-t.C:
			return
		case <-a.inflight.flush:
		case <-a.inflight.finished:
			return
		}
	}
}

// flushRest flushes everything, within finalFlush.
func (a acker) flushRest() {
	ctx, cancel := context.WithTimeout(a.life, finalFlush)
	defer cancel()
	for failures := 1; ; failures++ {
		err := a.flush(ctx)
		if err == nil {
			return
		}
		select {
		case <-flushBackoff(failures):
			continue
		case <-ctx.Done():
		}
		acks, releases, counts := a.inflight.unflushed()
		if acks > 0 {
			a.log().Warn("acknowledgements lost at the end, these entries will be delivered again", slog.Int("entries", acks), logs.Err(err))
		}
		if releases > 0 {
			a.log().Warn("entries not released at the end, other consumers receive them after min_idle", slog.Int("entries", releases), logs.Err(err))
		}
		if counts > 0 {
			a.log().Warn("delivery counts lost at the end, these entries count as delivered less often", slog.Int("entries", counts), logs.Err(err))
		}
		return
	}
}

// flush sends releases, then all acknowledgements, then counts. A part that fails is restored.
func (a acker) flush(ctx context.Context) error {
	if err := a.release(ctx, a.inflight.nextReleases()); err != nil {
		return err
	}
	for {
		plain, fenced := a.inflight.nextAcks(maxIDs)
		if len(plain)+len(fenced) == 0 {
			return a.writeCounts(ctx)
		}
		failpoint.Hit(failpoint.BeforeXACK)
		err := errors.Join(
			a.ack(plain, func(ids []string) (int64, error) { return a.Client.XAck(ctx, a.Stream, a.Group, ids...).Result() }),
			a.ack(fenced, func(ids []string) (int64, error) { return a.ackMine(ctx, ids) }),
		)
		if err != nil {
			return err
		}
	}
}

func (a acker) release(ctx context.Context, list []*pendingEntry) error {
	if len(list) == 0 {
		return nil
	}
	released, err := a.Release(ctx, a.opts.MinIdle, idsOf(list)...)
	a.m.released.Add(float64(released))
	return a.confirm(list, err)
}

func (a acker) ack(list []*pendingEntry, send func(ids []string) (int64, error)) error {
	if len(list) == 0 {
		return nil
	}
	n, err := send(idsOf(list))
	a.m.ackFlushes.Inc()
	a.m.acks.Add(float64(n))
	return a.confirm(list, err)
}

// confirm ends the flush of list. In a stream that does not exist nothing is left to be sent.
func (a acker) confirm(list []*pendingEntry, err error) error {
	if err == nil || IsNoGroup(err) {
		a.inflight.flushed(list)
		return nil
	}
	a.inflight.retry(list)
	return err
}

// writeCounts writes the true delivery counts of entries left pending, for the consumer that
// reclaims them.
func (a acker) writeCounts(ctx context.Context) error {
	counts := a.inflight.nextCounts()
	if len(counts) == 0 {
		return nil
	}
	err := a.setCounts(ctx, counts)
	switch {
	case err == nil || IsNoGroup(err):
		return nil
	case IsReply(err): // a refused count must not delay acknowledgements
		a.log().Warn("delivery counts not written", logs.Err(err))
		return nil
	}
	a.inflight.retryCounts(counts)
	return err
}

func idsOf(list []*pendingEntry) []string {
	ids := make([]string, len(list))
	for i, e := range list {
		ids[i] = e.ID
	}
	return ids
}
