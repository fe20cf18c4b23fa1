package admin

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// The names of fields of actions.
const (
	fieldEvent       = "event"
	fieldUser        = "user"
	fieldText        = "text"
	fieldCapacity    = "capacity"
	fieldConcurrency = "concurrency"
	fieldPerMinute   = "per-minute"
	fieldMode        = "mode"
	fieldOpensAt     = "opens-at"
	fieldClosesAt    = "closes-at"
)

// NameOf returns the name of the action of a verb, such as room hold.
func NameOf(verb string) string { return "room " + verb }

// Actions returns the changes of rooms, as the commands and the console have them. They use what rooms returns.
func Actions(rooms func() *room.Store) []operate.Action {
	event := operate.Field{Name: fieldEvent, Help: "the `id` of the event", Required: true, Arguments: true}
	limits := []operate.Field{
		event,
		{Name: fieldCapacity, Type: operate.Number, Help: "`number` of seats for sale"},
		{Name: fieldConcurrency, Type: operate.Number, Help: "maximum `number` of admitted users; -1: no limit"},
		{Name: fieldPerMinute, Type: operate.Number, Help: "maximum `number` of promotions per minute; -1: no limit"},
		{Name: fieldMode, Help: "`mode`: " + strings.Join(room.Modes(), ", ")},
		{Name: fieldOpensAt, Help: "`time` of the opening, as 2026-12-01T10:00:00Z; 0: none"},
		{Name: fieldClosesAt, Help: "`time` of the end; 0: none"},
	}
	action := func(verb string, danger operate.Danger, short, long string, fields []operate.Field, examples ...string) operate.Action {
		c := change{verb, rooms}
		return operate.Action{
			About: operate.About{
				Name: NameOf(verb), Short: short, Long: long, Examples: examples, Fields: fields,
				Validate: func(in operate.Input) error {
					_, err := c.request(in)
					return err
				},
			},
			Danger: danger, Role: operate.Operator, Audited: true, Preview: c.preview, Do: c.do,
		}
	}
	simple := func(verb string, danger operate.Danger, short string) operate.Action {
		return action(verb, danger, short, "", []operate.Field{event}, "room "+verb+` 42 --why "ticket 4711" --profile broker`)
	}
	return []operate.Action{
		action(room.Open, operate.Safe, "Open a waiting room, or schedule its opening", `Open a waiting room, or schedule its opening.

The room is created if the event has none. Without --capacity it is fetched from the Event
Service; no user is promoted while it is unknown. With --opens-at in the future, users wait
until then.

With --mode shuffle a pre-queue begins, and its commitment is published. The pre-queue ends at
--opens-at, or with the next open without --mode. Its users then get their places by lot.`, limits,
			`room open 42 --capacity 500 --why "ticket 7" --profile broker`,
			`room open 42 --opens-at 2026-12-01T10:00:00Z --why "ticket 7"`,
			"room open 7 --mode shuffle --opens-at 2026-12-01T10:00:00Z --why draw"),
		simple(room.Hold, operate.Safe, "Stop the promotion; users keep their places"),
		simple(room.Resume, operate.Safe, "Continue the promotion after a hold"),
		simple(room.Drain, operate.Safe, "Refuse new users, and promote those that wait"),
		simple(room.Close, operate.Irreversible, "End the places of all waiting users; admitted users continue"),
		action(room.Set, operate.Safe, "Change capacity, limits, mode or schedule of a room", `Change capacity, limits, mode or schedule of a room.

A capacity below the number of admitted users ends no lease: no user is promoted until
enough leases have ended. A higher one lets the queue of a sold-out room move again.`, limits,
			`room set 42 --capacity 450 --why "block C is closed" --profile broker`,
			`room set 42 --per-minute 600 --why "slow shop" --profile broker`),
		action(room.Message, operate.Safe, "Show a text to all users of a room; an empty one removes it", "",
			[]operate.Field{event, {Name: fieldText, Help: "the `text`; empty: none", Arguments: true}},
			`room message 42 "Doors open at 8." --why "ticket 7" --profile broker`,
			`room message 42 "" --why "over" --profile broker`),
		action(room.Kick, operate.Irreversible, "End the place or the lease of a user", "",
			[]operate.Field{event, {Name: fieldUser, Help: "the `id` of the user", Required: true, Arguments: true}},
			`room kick 42 ann --why "ticket 4711" --profile broker`),
	}
}

// change is a verb of an operator.
type change struct {
	verb  string
	rooms func() *room.Store
}

// request reads the fields of a form or of a command. A limit that is empty stays as it is.
func (c change) request(in operate.Input) (Request, error) {
	q := Request{User: in.Text(fieldUser)}
	wrong := func(field, problem string) (Request, error) {
		return q, &operate.InputError{Problem: problem, Field: field}
	}
	switch c.verb {
	case room.Message:
		text := in.Text(fieldText)
		q.Message = &text
		return q, nil
	case room.Open, room.Set:
	default:
		return q, nil
	}
	given := false
	for name, to := range map[string]**int64{fieldCapacity: &q.Capacity, fieldConcurrency: &q.Concurrency, fieldPerMinute: &q.PerMinute} {
		if text := in.Text(name); text != "" {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				return wrong(name, "--"+name+" must be a whole number, got "+strconv.Quote(text))
			}
			*to, given = &n, true
		}
	}
	if mode := in.Text(fieldMode); mode != "" {
		q.Mode, given = &mode, true
	}
	for name, to := range map[string]**int64{fieldOpensAt: &q.OpensAt, fieldClosesAt: &q.ClosesAt} {
		text := in.Text(name)
		if text == "" {
			continue
		}
		var ms int64
		if text != "0" {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return wrong(name, "--"+name+" must be a time such as 2026-12-01T10:00:00Z, or 0; got "+strconv.Quote(text))
			}
			ms = at.UnixMilli()
		}
		*to, given = &ms, true
	}
	if c.verb == room.Set && !given {
		return wrong("", "nothing to set: give --capacity, --concurrency, --per-minute, --mode, --opens-at or --closes-at")
	}
	return q, nil
}

var errNotStarted = errors.New("the rooms are not open yet")

// room returns the rooms, and the request of an input.
func (c change) room(in operate.Input) (*room.Store, Request, error) {
	rooms := c.rooms()
	if rooms == nil {
		return nil, Request{}, errNotStarted
	}
	q, err := c.request(in)
	return rooms, q, err
}

// outcomes say what a verb has done.
func outcomes() map[string]string {
	return map[string]string{
		room.Open: "opened", room.Hold: "promotion stopped", room.Resume: "promotion continues", room.Drain: "no new users",
		room.Close: "closed", room.Set: "settings changed", room.Message: "message changed", room.Kick: "user removed",
	}
}

func (c change) do(ctx context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
	rooms, q, err := c.room(in)
	if err != nil {
		return operate.Answer{}, err
	}
	event := in.Text(fieldEvent)
	q.By, q.Why = use.Who, use.Why
	answer, err := Do(ctx, rooms, event, c.verb, q)
	if err != nil {
		return operate.Answer{}, Failed(event, c.verb, err)
	}
	s, _ := answer.(room.Status)
	return operate.Answer{Value: s, Lines: []string{"Event " + s.Event + ": " + outcomes()[c.verb] + ". The room is " + s.State + "."}}, nil
}

// Failed returns the error of Do with what the command or the form says about it.
func Failed(event, verb string, err error) error {
	switch {
	case errors.Is(err, room.ErrUnknown), errors.Is(err, room.ErrConflict):
		return app.Bad("%s of event %s: %w", verb, app.Printable(event), err)
	case IsMistake(err):
		wrong := &operate.InputError{Problem: err.Error()}
		if field, is := errors.AsType[*setting.FieldError](err); is {
			name := strings.ReplaceAll(field.Path, "_", "-")
			if slices.Contains([]string{fieldEvent, fieldUser, fieldCapacity, fieldConcurrency, fieldPerMinute, fieldMode, fieldOpensAt, fieldClosesAt}, name) {
				wrong.Field = name
			}
			if field.Path == room.Message {
				wrong.Field = fieldText
			}
		}
		return wrong
	}
	return err
}
