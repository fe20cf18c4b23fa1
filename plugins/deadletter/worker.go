package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/millrace-io/millrace/plugins/deadletter/letters"
)

const (
	// walkPage is how many letters are looked up at once.
	walkPage = 200
	// turnWait is how long a command waits for the one before it; longer than a dead one is waited for.
	turnWait = 25 * time.Second
	// turnPoll is how often it looks.
	turnPoll = 500 * time.Millisecond
	// finishTimeout bounds writing down what became of a letter.
	finishTimeout = 10 * time.Second
	// idleStep is how long a slow rate waits at most before it looks after its turn.
	idleStep = time.Second
)

// job is what a command does to letters.
type job struct {
	store  *letters.Store
	filter letters.Filter // IDs: these, whatever their state
	by     letters.By
	limit  int     // 0: none
	rate   float64 // letters a second; 0: as fast as it goes
	// one does it to a letter that is in nobody else's hand until the turn's end.
	one func(ctx context.Context, turn *letters.Turn, id string) (Line, error)
	say func(format string, args ...any) // to a person who waits

	turn *letters.Turn
	next time.Time // when the rate allows the next letter
}

// tooMany is how many letters in a row may fail before the rest isn't tried: then it is not the letters.
const tooMany = 3

// run does it to every letter that is meant, in the turn. The report is good even with an error.
func (j *job) run(ctx context.Context) (report Report, err error) {
	report.Letters = []Line{}
	if err := j.take(ctx); err != nil {
		return report, err
	}
	defer func() {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		defer cancel()
		err = errors.Join(err, j.turn.Release(end))
	}()
	failed := 0
	err = j.each(ctx, func(id string) error {
		if err := j.pace(ctx); err != nil {
			return err
		}
		report.Selected++
		line, err := j.one(ctx, j.turn, id)
		if err != nil {
			return err
		}
		report.add(line)
		if line.Result != letters.OutcomeFailed {
			failed = 0
		} else if failed++; failed == tooMany {
			return fmt.Errorf("%d letters in a row failed, the last one with: %s", failed, line.Reason)
		}
		return ctx.Err()
	})
	return report, err
}

// each calls do for the letters that are meant, oldest first, up to the limit.
func (j *job) each(ctx context.Context, do func(id string) error) error {
	n := 0
	visit := func(id string) (done bool, err error) {
		if j.limit > 0 && n == j.limit {
			return true, nil
		}
		n++
		return false, do(id)
	}
	for _, id := range j.filter.IDs {
		if done, err := visit(id); done || err != nil {
			return err
		}
	}
	if len(j.filter.IDs) > 0 {
		return nil
	}
	walk, err := j.store.Walk(ctx, j.filter)
	if err != nil {
		return err
	}
	for {
		page, err := j.store.Next(ctx, walk, walkPage)
		if err != nil || len(page) == 0 {
			return err
		}
		for _, l := range page {
			if done, err := visit(l.ID); done || err != nil {
				return err
			}
		}
	}
}

// take takes the turn, waiting for whoever has it.
func (j *job) take(ctx context.Context) error {
	holder := watermill.NewULID() + " " + j.by.Who
	deadline := time.Now().Add(turnWait)
	tick := time.NewTicker(turnPoll)
	defer tick.Stop()
	for waiting := false; ; waiting = true {
		turn, other, err := j.store.Take(ctx, holder)
		if err != nil {
			return err
		}
		if turn != nil {
			j.turn = turn
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("somebody else is working on dead letters: %s", other)
		}
		if !waiting {
			j.say("Waiting for %s, or for the lease of one that died to end.", other)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// pace keeps the turn, and waits until the rate allows the next letter.
func (j *job) pace(ctx context.Context) error {
	for {
		if err := j.turn.Keep(ctx); err != nil || j.rate <= 0 {
			return err
		}
		wait := time.Until(j.next)
		if wait <= 0 {
			j.next = time.Now().Add(time.Duration(float64(time.Second) / j.rate))
			return nil
		}
		timer := time.NewTimer(min(wait, idleStep))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// replayOne returns what replays a letter.
func (p *Plugin) replayOne(s *letters.Store, by letters.By, parked bool) func(context.Context, *letters.Turn, string) (Line, error) {
	return func(ctx context.Context, turn *letters.Turn, id string) (Line, error) {
		begun, err := turn.Begin(ctx, id, by, parked)
		if line, ok := notNow(id, err); ok {
			return line, nil
		}
		if err != nil {
			return Line{}, err
		}
		work, cancel := context.WithDeadline(ctx, turn.Until())
		defer cancel()
		out, err := p.replay(work, begun.Letter, by)
		if err != nil {
			out = Outcome{letters.OutcomeFailed, err.Error()}
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishTimeout)
		defer cancel()
		if err := s.Finish(end, begun, out.Result, out.Reason); err != nil {
			return Line{}, err
		}
		return Line{ID: id, Result: out.Result, Reason: out.Reason}, nil
	}
}

// discardOne returns what discards a letter. look tells whether it may be; nil: it may.
func discardOne(s *letters.Store, by letters.By, look func(context.Context, letters.Letter) (Standing, error)) func(context.Context, *letters.Turn, string) (Line, error) {
	return func(ctx context.Context, turn *letters.Turn, id string) (Line, error) {
		if look != nil {
			l, _, err := s.Get(ctx, id)
			if err == nil && slices.Contains(letters.Waiting(), l.State) { // otherwise Discard says what is wrong
				if reason := unsettled(look(ctx, l)); reason != "" {
					return Line{ID: id, Result: letters.OutcomeRefused, Reason: reason}, ctx.Err()
				}
			} else if err != nil && !errors.Is(err, letters.ErrNotFound) {
				return Line{}, err
			}
		}
		err := turn.Discard(ctx, id, by)
		if line, ok := notNow(id, err); ok {
			return line, nil
		}
		return Line{ID: id, Result: resultDiscarded}, err
	}
}

// unsettled is why a letter must not be discarded, or "".
func unsettled(s Standing, err error) string {
	if err != nil {
		return fmt.Sprintf("whether it is settled is not known: %s; --unsettled discards it all the same", err)
	}
	return s.Unsettled
}

// notNow is the line of a letter that is not to be worked on.
func notNow(id string, err error) (Line, bool) {
	var state *letters.StateError
	switch {
	case errors.Is(err, letters.ErrNotFound):
		return Line{ID: id, Result: resultSkipped, Reason: letters.ErrNotFound.Error()}, true
	case !errors.As(err, &state):
		return Line{}, false
	case state.State == letters.Replayed:
		return Line{ID: id, Result: letters.OutcomeAlready, Reason: fmt.Sprintf("replayed in generation %d", state.Generation)}, true
	case state.State == letters.Parked:
		return Line{ID: id, Result: resultSkipped, Reason: "came back after a replay; --parked replays it again"}, true
	}
	return Line{ID: id, Result: resultSkipped, Reason: "is " + string(state.State)}, true
}
