package room

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace-io/millrace/plugins/redis"
)

// PageSize is how many rooms EventsAfter returns at most.
const PageSize = 100

// EventsAfter returns a part of the events that have a room, and where the next part begins, which is empty for
// the last one. after is empty for the first part. The server then reads about PageSize names, however many rooms
// there are. The parts have no order among them, and an event whose room is created or cleared meanwhile may be
// in none or in two of them. The error is ErrPlace for a text that is no such place.
func (r *Store) EventsAfter(ctx context.Context, after string) (events []string, next string, err error) {
	at, passed := "0", 0
	if after != "" {
		cursor, count, found := strings.Cut(after, ".")
		_, wrong := strconv.ParseUint(cursor, 10, 64)
		var wrongCount error
		passed, wrongCount = strconv.Atoi(count)
		if !found || wrong != nil || wrongCount != nil || passed < 0 {
			return nil, "", ErrPlace
		}
		at = cursor
	}
	c := redis.Command("SSCAN", roomsKey, at, "COUNT", PageSize)
	if err := r.server.Do(ctx, c); err != nil {
		return nil, "", err
	}
	reply, err := c.List()
	if err != nil {
		return nil, "", err
	}
	if len(reply) != 2 {
		return nil, "", fmt.Errorf("SSCAN on %q: unexpected reply with %d values", roomsKey, len(reply))
	}
	cursor, _ := reply[0].(string)
	list, _ := reply[1].([]any)
	for _, v := range list {
		if event, is := v.(string); is {
			events = append(events, event)
		}
	}
	events, next = part(events, at, cursor, passed)
	return events, next, nil
}

// part returns those of an answer that follow the passed ones, and where the next part begins. A small set has all
// its members in one answer, however few are asked for.
func part(events []string, at, cursor string, passed int) (list []string, next string) {
	slices.Sort(events)
	events = events[min(passed, len(events)):]
	switch {
	case len(events) > PageSize:
		return events[:PageSize], fmt.Sprint(at, ".", passed+PageSize)
	case cursor == "0":
		return events, ""
	}
	return events, cursor + ".0"
}

// ErrPlace means that a list can't begin at a place, because no earlier part has named it.
var ErrPlace = errors.New("it is no place that an earlier part of the list has named")

// Looked is what is known of one of several rooms.
type Looked struct {
	Status
	Err error // ErrUnknown: the event has no room
}

// Statuses describes rooms, in one pipeline per node. It writes nothing.
func (r *Store) Statuses(ctx context.Context, events []string) []Looked {
	calls := make([]*redis.Call, len(events))
	for i, event := range events {
		calls[i] = r.call("control", event, "status", "", "", "", "", "")
	}
	_ = r.server.Do(ctx, calls...) // each call has its own error
	list := make([]Looked, len(events))
	for i, event := range events {
		list[i].Event = event
		reply, err := parse("control", calls[i], calls[i].Err())
		if err == nil {
			err = answer(reply.code)
		}
		if err == nil {
			list[i].Status, err = statusOf(event, reply.values, reply.now)
		}
		list[i].Err = err
	}
	return list
}

// Previewed is what Control would do.
type Previewed struct {
	Status         // of the room as it is
	Becomes string // the state that the room would have
}

// Preview checks a change as Control does, by the same script, and changes nothing. The error is ErrUnknown for an
// event without a room, which the verb open would create.
func (r *Store) Preview(ctx context.Context, event string, c Change) (Previewed, error) {
	fields, err := c.fields()
	if err != nil {
		return Previewed{}, err
	}
	fields = append(fields, "preview", "1")
	call := r.call("control", event, append([]any{c.Verb, c.By, c.Why, c.User, "", ""}, fields...)...)
	answered, err := parse("control", call, r.server.Do(ctx, call))
	if err != nil {
		return Previewed{}, err
	}
	refused := answer(answered.code)
	if errors.Is(refused, ErrUnknown) {
		return Previewed{}, refused
	}
	s, err := statusOf(event, answered.values, answered.now)
	p := Previewed{Status: s}
	for i := 4; i+1 < len(answered.values); i += 2 {
		if answered.values[i] == "would" {
			p.Becomes, _ = answered.values[i+1].(string)
		}
	}
	return p, errors.Join(refused, err)
}

// Latest returns the newest n changes of a room, the newest first.
func (r *Store) Latest(ctx context.Context, event string, n int) ([]Record, error) {
	return r.records(ctx, event, "XREVRANGE", "+", "-", n)
}

// FirstHolders returns how many of the first n users in the queue, and of the n admitted ones whose turn ends first,
// have or had their connection with each instance. A user without one has the name "".
func (r *Store) FirstHolders(ctx context.Context, event string, n int) (map[string]int, error) {
	waiting := redis.Command("ZRANGE", "WAITING:{"+event+"}", 0, n-1)
	admitted := redis.Command("ZRANGE", "ENTRY_LEASES:{"+event+"}", 0, n-1)
	if err := r.server.Do(ctx, waiting, admitted); err != nil {
		return nil, err
	}
	members, err := waiting.Texts()
	if err != nil {
		return nil, err
	}
	users, err := admitted.Texts()
	if err != nil {
		return nil, err
	}
	for _, m := range members {
		if user, valid := userOf(m); valid {
			users = append(users, user)
		}
	}
	holders, err := r.Holder(ctx, event, users)
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, instance := range holders {
		counts[instance]++
	}
	return counts, nil
}
