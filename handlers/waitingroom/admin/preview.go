package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// previewed is what a change would do.
type previewed struct {
	Room    *room.Status `json:"room"`           // as it is now; null: the event has none
	Becomes string       `json:"becomes"`        // the state of the room afterwards
	User    *User        `json:"user,omitempty"` // of kick
}

func (c change) preview(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
	rooms, q, err := c.room(in)
	if err != nil {
		return operate.Answer{}, err
	}
	event := in.Text(fieldEvent)
	q.By, q.Why = "preview", "preview" // they are given later
	if err := check(event, c.verb, &q); err != nil {
		return operate.Answer{}, Failed(event, c.verb, err)
	}
	p, err := rooms.Preview(ctx, event, q.change(c.verb))
	if errors.Is(err, room.ErrUnknown) && c.verb == room.Open {
		becomes := "open"
		switch {
		case q.Mode != nil && *q.Mode == room.Shuffle:
			becomes = room.PreQueue
		case q.OpensAt != nil && *q.OpensAt > time.Now().UnixMilli():
			becomes = "scheduled"
		}
		return operate.Answer{
			Value: previewed{Becomes: becomes},
			Lines: []string{"Event " + event + " has no room. One would be created, and would be " + becomes + "."},
		}, nil
	}
	if errors.Is(err, room.ErrConflict) {
		err = stateOf(err, p.Status)
	}
	if err != nil {
		return operate.Answer{}, Failed(event, c.verb, err)
	}
	value := previewed{Room: &p.Status, Becomes: p.Becomes}
	line := "Event " + event + " is " + p.State
	if p.Becomes == p.State {
		line += ", and would stay so."
	} else {
		line += ", and would be " + p.Becomes + "."
	}
	lines := []string{line}
	if c.verb == room.Kick {
		u, err := find(ctx, rooms, event, q.User)
		if err != nil {
			return operate.Answer{}, Failed(event, c.verb, err)
		}
		value.User = &u
		lines = append(lines, userWouldEnd(u))
	} else if text := c.wouldDo(p.Status, q); text != "" {
		lines = append(lines, text)
	}
	return operate.Answer{Value: value, Lines: lines, Tables: []operate.Table{usersOf(p.Status)}}, nil
}

func usersOf(s room.Status) operate.Table {
	number := func(n int64, negative string) string {
		if n < 0 {
			return negative
		}
		return app.Thousands(n)
	}
	return operate.Table{Columns: []string{"WAITING", "READY", "ADMITTED", "FREE", "SOLD", "CAPACITY"}, Rows: [][]string{{
		app.Thousands(s.Waiting), app.Thousands(s.Ready), app.Thousands(s.Admitted), app.Thousands(s.Free), app.Thousands(s.Sold), number(s.Capacity, "unknown"),
	}}}
}

// wouldDo says what users would see of a change.
func (c change) wouldDo(s room.Status, q Request) string {
	users := app.Plural(s.Waiting, "user")
	switch c.verb {
	case room.Hold:
		return "Nobody would be promoted until room resume. The queue keeps the places of " + users + "."
	case room.Resume:
		return "The promotion would continue for " + users + "."
	case room.Drain:
		return "New users would be refused. Those in the queue, " + users + ", would be promoted."
	case room.Close:
		return "The queue would end for " + users + ", whose places are lost. Turns of admitted users continue, which are " + app.Thousands(s.Admitted+s.Ready) + "."
	case room.Message:
		if *q.Message != "" {
			return fmt.Sprintf("All users would read: %s", *q.Message)
		}
		if s.Message == "" {
			return "The room has no message that could be removed."
		}
		return fmt.Sprintf("Users would no longer read: %s", s.Message)
	}
	return strings.Join(changesOf(s, q), " ")
}

// changesOf says which limits would have another value.
func changesOf(s room.Status, q Request) (lines []string) {
	number := func(name string, now int64, then *int64, negative string) {
		text := func(n int64) string {
			if n < 0 {
				return negative
			}
			return strconv.FormatInt(n, 10)
		}
		if then != nil {
			lines = append(lines, fmt.Sprintf("%s: %s, now %s.", name, text(*then), text(now)))
		}
	}
	number("Capacity", s.Capacity, q.Capacity, "unknown")
	number("Concurrency", s.Concurrency, q.Concurrency, "no limit")
	number("Promotions per minute", s.PerMinute, q.PerMinute, "no limit")
	if q.Mode != nil {
		now := s.Mode
		if now == "" {
			now = room.FIFO
		}
		lines = append(lines, "Mode: "+*q.Mode+", now "+now+".")
	}
	for _, one := range []struct {
		name string
		now  int64
		then *int64
	}{{"Opening", s.OpensAt, q.OpensAt}, {"End", s.ClosesAt, q.ClosesAt}} {
		if one.then != nil {
			lines = append(lines, one.name+": "+moment(*one.then)+", now "+moment(one.now)+".")
		}
	}
	if taken := s.Ready + s.Admitted + s.Sold; q.Capacity != nil && *q.Capacity < taken {
		lines = append(lines, "The capacity would be below what is sold or held, which is "+app.Plural(taken, "seat")+", so nobody would be promoted until enough turns have ended.")
	}
	return slices.Clip(lines)
}

func moment(ms int64) string {
	if ms <= 0 {
		return "none"
	}
	return time.UnixMilli(ms).UTC().Format(time.RFC3339)
}

func userWouldEnd(u User) string {
	switch {
	case u.State == room.Waiting && u.Ahead != nil:
		return fmt.Sprintf("%s waits with %d ahead. The place would end.", u.User, *u.Ahead)
	case u.State == room.Waiting:
		return u.User + " waits. The place would end."
	case u.State != "":
		return u.User + " has a turn (" + string(u.State) + "). It would end, also while the user pays in the shop."
	}
	return u.User + " has no place now (" + u.Reason + "). An earlier place could no longer be restored."
}
