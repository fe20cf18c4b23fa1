package broker

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/eventservice"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/web"
)

func (b *Broker) mount() {
	const path = "/events/{event}/tickets/waiting"
	b.opts.Web.Handle("GET "+path, b.user(b.enter), web.Users(), web.Stream(), web.AllowOrigins(), web.Refused(b.refused))
	b.opts.Web.Handle("GET "+path+"/status", b.user(b.status), web.Users(), web.NoLinks(), web.AllowOrigins())
	b.opts.Web.Handle("DELETE "+path, b.user(b.quit), web.Users(), web.AllowOrigins())
}

// user calls a handler with the event and the user of a request.
func (b *Broker) user(h func(w http.ResponseWriter, r *http.Request, event string, u web.User)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event := r.PathValue("event")
		u, _ := web.UserOf(r.Context()) // there is one: web.Users
		switch {
		case !room.ValidEvent(event):
			web.Refuse(w, r, web.Refusal{Status: http.StatusBadRequest, Word: "bad_event", Message: "an event id has 1 to 128 characters of A-Za-z0-9._-"})
		case !room.ValidUser(u.ID):
			web.Refuse(w, r, web.Refusal{Status: http.StatusBadRequest, Word: "bad_user", Message: "a user id has 1 to 128 printable characters"})
		default:
			if wait := b.rates.Take(u.ID, time.Now()); wait > 0 {
				web.Refuse(w, r, web.Refusal{
					Status: http.StatusTooManyRequests, Word: "too_many_requests", Message: "wait as long as Retry-After says",
					RetryAfter: (wait + time.Second - 1).Truncate(time.Second),
				})
				return
			}
			h(w, r, event, u)
		}
	})
}

// enter queues a user, or attaches the user to the place that exists. The answer is a stream, or
// JSON for a client that polls.
func (b *Broker) enter(w http.ResponseWriter, r *http.Request, event string, u web.User) {
	request, cursor := b.requests.Add(1), b.cursor(event, u.ID, sse.LastEventID(r))
	p, err := b.queue(r.Context(), event, u.ID, cursor)
	if err != nil {
		b.refuse(w, r, p, err)
		return
	}
	b.metrics.joined(event, p.How)
	if _, ended := endOf(p); ended {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	accept := r.Header.Get("Accept")
	if strings.Contains(accept, "application/json") && !strings.Contains(accept, "text/event-stream") {
		b.answer(w, r, event, u.ID, p)
		return
	}
	var c *conn
	b.opts.Hub.Serve(w, r, func(ctx context.Context, client *sse.Client) error {
		c = b.attach(event, u.ID, p, request, client)
		if !u.Expires.IsZero() {
			end := time.AfterFunc(time.Until(u.Expires), func() { client.Close("expired") })
			context.AfterFunc(ctx, func() { end.Stop() })
		}
		if p.State == room.Ready || p.Unreplicated {
			b.claim(ctx, c.local, []*user{c.user})
		}
		return nil
	})
	if c != nil {
		b.leave(c)
	}
}

// errLost means that Redis has lost a room: a user returns with a signed index, or users of it have
// streams here. Users try again until an operator has opened it, because an answer that there is no
// event would be final.
var errLost = errors.New("redis has lost a room that had users: open it again (millrace room open)")

// lost reports whether Redis has lost the room of an event that has users here. A room that was
// cleared is not lost.
func (b *Broker) lost(ctx context.Context, event string) bool {
	if b.local(event) == nil {
		return false
	}
	cleared, err := b.opts.Rooms.Cleared(ctx, event)
	return err == nil && !cleared
}

// queue enters the room of an event. The first user of an event creates it. A user that returns
// creates only a room that a failover has lost. The error is errLost when that is not possible, and
// for a user without an index when the room is gone while it has users here.
func (b *Broker) queue(ctx context.Context, event, user string, given cursor) (room.Place, error) {
	ctx, cancel := context.WithTimeout(ctx, enterTimeout)
	defer cancel()
	p, err := b.opts.Rooms.Return(ctx, event, user, b.instance, given.index, given.until)
	cursor := given.at(p.Now)
	switch {
	case !errors.Is(err, room.ErrUnknown):
		return p, err
	case cursor == unsigned:
		return room.Place{}, nil
	}
	switch cleared, err := b.opts.Rooms.Cleared(ctx, event); {
	case err != nil, cleared && cursor != 0:
		return room.Place{}, err
	case cleared: // a new room would sell its seats again
		return room.Place{Reason: "room_closed"}, room.ErrRejected
	}
	err = b.opts.Events.Confirm(ctx, event)
	switch {
	case errors.Is(err, eventservice.ErrNoEvent) && (cursor > 0 || b.lost(ctx, event)):
		return room.Place{}, errLost
	case err != nil:
		return room.Place{}, err
	}
	return b.opts.Rooms.Return(ctx, event, user, b.instance, given.index, given.until)
}

// status answers with the place of a user. It is a sign of life.
func (b *Broker) status(w http.ResponseWriter, r *http.Request, event string, u web.User) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	places, err := b.opts.Rooms.Seen(ctx, event, b.instance, []room.Sign{{User: u.ID}})
	switch {
	case err == nil && len(places) == 1:
		b.answer(w, r, event, u.ID, places[0])
		return
	case errors.Is(err, room.ErrUnknown) && b.lost(ctx, event):
		err = errLost
	}
	b.refuse(w, r, room.Place{}, err)
}

// answer writes a place as JSON. It claims a lease that is not claimed.
func (b *Broker) answer(w http.ResponseWriter, r *http.Request, event, user string, p room.Place) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	if p.State == room.Ready || p.Unreplicated {
		places, err := b.opts.Rooms.Claim(ctx, event, b.instance, []room.Sign{{User: user, Index: p.Index, JTI: p.JTI, Until: p.Until}})
		if err != nil {
			b.refuse(w, r, p, err)
			return
		}
		how := p.How
		p = places[0]
		p.How = how
	}
	if reason, ended := endOf(p); ended {
		refusal := web.Refusal{Status: http.StatusGone, Word: reason, Message: "the place has ended"}
		if reason == reasonUnknown {
			refusal = web.Refusal{Status: http.StatusNotFound, Word: reason, Message: "the user has no place"}
		}
		web.Refuse(w, r, refusal)
		return
	}
	var body struct {
		placed
		*position
		*entry
		Message    string `json:"message,omitempty"`
		RetryAfter int64  `json:"retryAfter"` // seconds
	}
	body.placed, body.RetryAfter = placeOf(event, p), pollAgain(withoutPosition, b.opts.SeenInterval)
	table, err := b.tables.get(event, time.Now(), func() (*room.Table, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
		defer cancel()
		tables, err := b.opts.Rooms.Tables(ctx, []string{event})
		if err != nil {
			return nil, err
		}
		return tables[0], nil
	})
	if err == nil && table != nil {
		body.Message = table.Message
		if p.State == room.Waiting {
			shown := b.position(event, user, table, p)
			body.position, body.RetryAfter = &shown, pollAgain(shown.ahead(), b.opts.SeenInterval)
		}
	}
	if p.State == room.Admitted {
		e, err := b.entry(event, user, p)
		if err != nil {
			b.refuse(w, r, p, err)
			return
		}
		body.entry = &e
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_ = json.NewEncoder(w).Encode(body) // a client that is gone needs no answer
}

// position returns the position of a place. It does not rise while the user has streams here, and
// a minute longer.
func (b *Broker) position(event, user string, t *room.Table, p room.Place) position {
	if l := b.local(event); l != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		if u := l.users[user]; u != nil {
			return u.lowest.position(t, p)
		}
	}
	return new(lowest).position(t, p)
}

// quit ends the place of a user, unless a shop has verified the lease.
func (b *Broker) quit(w http.ResponseWriter, r *http.Request, event string, u web.User) {
	ctx, cancel := context.WithTimeout(r.Context(), callTimeout)
	defer cancel()
	p, err := b.opts.Rooms.Leave(ctx, event, u.ID, "left")
	if err != nil && !errors.Is(err, room.ErrUnknown) {
		b.refuse(w, r, p, err)
		return
	}
	if p.How == "lease" {
		b.metrics.labels.Ended(event, string(room.Abandoned), 1)
	}
	b.endStreams(event, u.ID, room.Place{Reason: "left", Now: p.Now})
	w.WriteHeader(http.StatusNoContent)
}

// endStreams closes the streams of a user.
func (b *Broker) endStreams(event, id string, p room.Place) {
	l := b.local(event)
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if u := l.users[id]; u != nil {
		if now := time.Now(); u.left(p, b.requests.Add(1), now) {
			b.push(l, u, now)
		}
	}
}

// refuse answers a request that failed.
func (b *Broker) refuse(w http.ResponseWriter, r *http.Request, p room.Place, err error) {
	refusal := web.Refusal{Status: http.StatusServiceUnavailable, Word: "unavailable", Message: "the waiting room is unavailable; try again"}
	switch {
	case errors.Is(err, room.ErrUnknown), errors.Is(err, eventservice.ErrNoEvent):
		refusal = web.Refusal{Status: http.StatusNotFound, Word: "unknown_event", Message: "there is no such event"}
	case errors.Is(err, room.ErrRejected) && p.Reason == "room_closed":
		refusal = web.Refusal{Status: http.StatusGone, Word: p.Reason, Message: "the waiting room is closed"}
	case errors.Is(err, room.ErrRejected) && p.Reason == "sold_out":
		refusal = web.Refusal{Status: http.StatusConflict, Word: p.Reason, Message: "all seats of the event are sold"}
	case errors.Is(err, room.ErrRejected) && p.Reason == "bought":
		refusal = web.Refusal{Status: http.StatusConflict, Word: p.Reason, Message: "the user has made all purchases that the event allows"}
	case errors.Is(err, room.ErrRejected):
		refusal = web.Refusal{Status: http.StatusConflict, Word: p.Reason, Message: "the waiting room takes no new users"}
	case errors.Is(err, room.ErrVerified):
		refusal = web.Refusal{Status: http.StatusConflict, Word: "in_shop", Message: "the shop has accepted this turn: finish or cancel the purchase there"}
	case errors.Is(err, eventservice.ErrUnavailable):
		refusal.Word, refusal.Message = "event_service", "the event service is unavailable; try again"
	case errors.Is(err, errLost):
		refusal.Word, refusal.Message = "room_lost", "the waiting room has a problem, and will be opened again; try again"
		b.warn(r.Context(), "a request failed because its room is gone", err, slog.String("event", r.PathValue("event")))
	case errors.Is(err, room.ErrTooMany):
		refusal.Word, refusal.Message = "too_many_events", "there are too many waiting rooms; try again"
	default:
		b.warn(r.Context(), "a request failed because the server of the rooms is unavailable", err)
	}
	web.Refuse(w, r, refusal)
}
