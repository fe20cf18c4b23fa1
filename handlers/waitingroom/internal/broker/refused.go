package broker

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/web"
)

const (
	maxRefused     = 10_000 // users per round
	refusedAtATime = 16     // events
)

// refusals are users whose streams were refused because the process has too many. A user who keeps
// trying is not absent.
type refusals struct {
	mu      sync.Mutex
	events  map[string]map[string]bool // the users of each event
	users   int
	signing bool
}

// keepUser keeps a user, unless there are too many.
func (f *refusals) keepUser(event, user string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.events[event][user] || f.users == maxRefused {
		return
	}
	if f.events == nil {
		f.events = map[string]map[string]bool{}
	}
	if f.events[event] == nil {
		f.events[event] = map[string]bool{}
	}
	f.events[event][user] = true
	f.users++
}

// takeUsers removes all users. It returns none while the last ones are in progress.
func (f *refusals) takeUsers() (events map[string]map[string]bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.signing || f.users == 0 {
		return nil
	}
	events, f.events, f.users, f.signing = f.events, nil, 0, true
	return events
}

func (f *refusals) done() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.signing = false
}

// refused keeps a refused request as a sign of life, until the next round.
func (b *Broker) refused(r *http.Request) {
	event := r.PathValue("event")
	if u, known := web.UserOf(r.Context()); known && room.ValidEvent(event) && room.ValidUser(u.ID) {
		b.refusals.keepUser(event, u.ID)
	}
}

// signRefused sends the signs of life of refused users. A sign without an index creates no place.
func (b *Broker) signRefused(ctx context.Context) {
	events := b.refusals.takeUsers()
	if events == nil {
		return
	}
	b.calls.Go(func() {
		defer b.refusals.done()
		var calls errgroup.Group
		calls.SetLimit(refusedAtATime)
		for event, users := range events {
			signs := make([]room.Sign, 0, len(users))
			for user := range users {
				signs = append(signs, room.Sign{User: user})
			}
			calls.Go(func() error {
				ctx, cancel := context.WithTimeout(ctx, callTimeout)
				defer cancel()
				if _, err := b.opts.Rooms.Seen(ctx, event, b.instance, signs); err != nil && !errors.Is(err, room.ErrUnknown) {
					b.warn(ctx, "signs of life of refused users not sent", err, slog.String("event", event))
				}
				return nil
			})
		}
		_ = calls.Wait() // each call logs its error
	})
}
