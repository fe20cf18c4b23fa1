package once

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace-io/millrace/plugins/once/ledger"
)

// settler stores answers in few transactions: a batch grows while others run, and for settleLinger.
type settler struct {
	ledger *ledger.Ledger
	queue  chan *settling
	loops  sync.WaitGroup
}

type settling struct {
	end    ledger.End
	result ledger.SettledResult
	done   chan struct{}
}

// Limits of the transactions: how many run at once, and how many answers one has at most.
const (
	settlesAtOnce = 2
	settleBatch   = 200
	// settleLinger is how long a batch waits for further answers. A call does not wait for it, because its
	// place is free already.
	settleLinger = 5 * time.Millisecond
)

func (s *settler) start(l *ledger.Ledger) {
	s.ledger, s.queue = l, make(chan *settling)
	for range settlesAtOnce {
		s.loops.Go(s.run)
	}
}

// stop ends the loops. Nobody calls settle any more.
func (s *settler) stop() {
	close(s.queue)
	s.loops.Wait()
}

func (s *settler) run() {
	for first := range s.queue {
		batch := []*settling{first}
		linger := time.NewTimer(settleLinger)
	fill:
		for len(batch) < settleBatch {
			select {
			case next, open := <-s.queue:
				if !open {
					break fill
				}
				batch = append(batch, next)
			case <-linger.C:
				break fill
			}
		}
		linger.Stop()
		s.flush(batch)
	}
}

func (s *settler) flush(batch []*settling) {
	err := s.store(batch)
	away := false // the database answers to single ones neither
	for _, one := range batch {
		switch {
		case err == nil:
		case len(batch) > 1 && !away: // one answer that the database refuses must not take the others with it
			if err := s.store([]*settling{one}); err != nil {
				one.result.Err, away = err, errors.Is(err, ledger.ErrUnavailable)
			}
		default:
			one.result.Err = err
		}
		close(one.done)
	}
}

// store stores the batch in one transaction and fills its results.
func (s *settler) store(batch []*settling) error {
	ctx, cancel := context.WithTimeout(context.Background(), storeTimeout)
	defer cancel()
	ends := make([]ledger.End, len(batch))
	for i, one := range batch {
		ends[i] = one.end
	}
	results, err := s.ledger.Settle(ctx, ends)
	if err != nil {
		return err
	}
	for i, one := range batch {
		one.result = results[i]
	}
	return nil
}

// settle stores the end of a call. After an error it may have been stored.
func (s *settler) settle(ctx context.Context, end ledger.End) (ledger.Settled, error) {
	one := &settling{end: end, done: make(chan struct{})}
	select {
	case s.queue <- one:
	case <-ctx.Done():
		return ledger.Settled{}, ctx.Err()
	}
	<-one.done
	return one.result.Settled, one.result.Err
}
