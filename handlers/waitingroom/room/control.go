package room

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
)

// The verbs of a change.
const (
	Open    = "open"    // creates a room, or opens one in any state; with OpensAt it is scheduled
	Hold    = "hold"    // stops the promotion of a scheduled, open or draining room
	Resume  = "resume"  // ends a hold: the room has the state before it
	Drain   = "drain"   // refuses new users and promotes those that wait
	Close   = "close"   // ends the places of all waiting users; leases go on
	Set     = "set"     // changes limits, mode and schedule
	Message = "message" // shows a text to all users; an empty one removes it
	Kick    = "kick"    // ends the place or lease of a user
)

// The modes of a room.
const (
	FIFO        = "fifo"         // first come, first served
	PassThrough = "pass-through" // only the capacity limits the promotion
	Reject      = "reject"       // no new users
	// Shuffle: the users of the pre-queue get their places by lot. Opening a room with this mode
	// begins its pre-queue. It ends at OpensAt, or with a further change Open without a mode.
	Shuffle = "shuffle"
)

// The states of a room that callers need.
const (
	PreQueue = "pre-queue" // users enter, and have no order
	Drawing  = "drawing"   // the users of the pre-queue get their places
	Closed   = "closed"    // waiting users have no places
)

// Modes returns the modes of a room.
func Modes() []string { return []string{FIFO, Shuffle, PassThrough, Reject} }

// MaxSeats is the maximum capacity of a room, and of its other limits.
const MaxSeats = 1_000_000_000

// maxMessage is the maximum length of a message in characters.
const maxMessage = 500

// Change is what an operator changes in a room. The verbs open and set use the fields from Capacity
// to ClosesAt, and nil leaves a field as it is. But open drops both times that it does not set.
type Change struct {
	Verb, By, Why string
	Capacity      *int64 // seats
	Concurrency   *int64 // maximum number of leases; negative: no limit
	PerMinute     *int64 // maximum number of promotions; negative: no limit
	Mode          *string
	OpensAt       *int64 // ms since 1970; 0: no schedule
	ClosesAt      *int64
	Message       *string
	User          string // of kick
}

// fields checks a change, and returns the fields of the room with their values. An empty value
// removes the field.
func (c Change) fields() (list []any, err error) {
	var p setting.Problems
	p.Check(slices.Contains([]string{Open, Hold, Resume, Drain, Close, Set, Message, Kick}, c.Verb), "verb", "unknown: %q", c.Verb)
	p.Check(c.Verb != Kick || ValidUser(c.User), "user", "must be 1..128 printable characters")
	p.Check(c.Verb != Message || c.Message != nil, "message", "is missing")
	sets := c.Verb == Open || c.Verb == Set
	number := func(name string, value *int64, none bool) {
		if value == nil {
			return
		}
		p.Check(sets, name, "not with %s", c.Verb)
		text := strconv.FormatInt(*value, 10)
		if none {
			text = ""
		}
		list = append(list, name, text)
	}
	if c.Capacity != nil {
		p.Check(*c.Capacity >= 0, "capacity", "must be >= 0, got %d", *c.Capacity)
	}
	for name, value := range map[string]*int64{"capacity": c.Capacity, "concurrency": c.Concurrency, "per_minute": c.PerMinute} {
		p.Check(value == nil || *value <= MaxSeats, name, "must be at most %d", MaxSeats)
	}
	number("capacity", c.Capacity, false)
	number("concurrency", c.Concurrency, c.Concurrency != nil && *c.Concurrency < 0)
	number("per_minute", c.PerMinute, c.PerMinute != nil && *c.PerMinute < 0)
	number("opens_at", c.OpensAt, c.OpensAt != nil && *c.OpensAt <= 0)
	number("closes_at", c.ClosesAt, c.ClosesAt != nil && *c.ClosesAt <= 0)
	if c.OpensAt != nil && c.ClosesAt != nil && *c.OpensAt > 0 && *c.ClosesAt > 0 {
		p.Check(*c.ClosesAt > *c.OpensAt, "closes_at", "must be after opens_at (%d), got %d", *c.OpensAt, *c.ClosesAt)
	}
	if c.Mode != nil {
		p.Check(sets && slices.Contains(Modes(), *c.Mode), "mode", "must be %s, got %q", strings.Join(Modes(), ", "), *c.Mode)
		list = append(list, "mode", *c.Mode)
	}
	if c.Message != nil {
		p.Check(c.Verb == Message, "message", "not with %s", c.Verb)
		p.Check(utf8.ValidString(*c.Message) && utf8.RuneCountInString(*c.Message) <= maxMessage, "message", "must have at most %d characters", maxMessage)
		list = append(list, "message", *c.Message)
	}
	return list, p.Err()
}

// Status describes a room. Times are in ms of the server's clock.
type Status struct {
	Event       string `json:"event"`
	Now         int64  `json:"-"`     // when the server has described it
	State       string `json:"state"` // scheduled, pre-queue, open and so on
	Mode        string `json:"mode"`
	Halted      Halt   `json:"halted,omitempty"` // why no waiting user is promoted
	Capacity    int64  `json:"capacity"`         // -1: unknown
	Concurrency int64  `json:"concurrency"`      // -1: no limit
	PerMinute   int64  `json:"perMinute"`        // -1: no limit
	Sold        int64  `json:"sold"`
	Waiting     int64  `json:"waiting"`
	Ready       int64  `json:"ready"`
	Admitted    int64  `json:"admitted"`
	Free        int64  `json:"free"`
	Hold        int64  `json:"hold"`     // rest of the pause after an outage, in ms
	Aside       int64  `json:"aside"`    // bad records that were set aside
	Promoted    int64  `json:"promoted"` // since the room was created
	Message     string `json:"message"`
	OpensAt     int64  `json:"opensAt"`  // 0: no schedule
	ClosesAt    int64  `json:"closesAt"` // 0: no schedule
	LastTick    int64  `json:"lastTick"`
	TickedBy    string `json:"-"`          // the instance of the last tick; empty: not known
	Configured  bool   `json:"configured"` // an operator changed it

	Commitment string `json:"commitment"` // hash of the secret of the shuffle; empty: none
	Frozen     int64  `json:"frozen"`     // users of the pre-queue that are drawn
	Drawn      int64  `json:"drawn"`      // those that have their places
	DrawnAt    int64  `json:"drawnAt"`    // end of the draw; 0: not yet
}

// Control changes a room. Each change is in the audit. The verb open creates the room when there is
// none. A change that is not possible in the room's state returns ErrConflict, and one whose times
// make no sense by the server's clock ErrTimes.
func (r *Store) Control(ctx context.Context, event string, c Change) (Status, error) {
	fields, err := c.fields()
	if err != nil {
		return Status{}, err
	}
	secret, commitment := "", ""
	// A pre-queue that exists keeps its own.
	if c.Verb == Open && c.Mode != nil && *c.Mode == Shuffle {
		secret = shuffle.NewSecret()
		commitment = shuffle.Commitment(secret).String()
	}
	fields = append(fields, "change", rand.Text())
	s, err := r.control(ctx, event, append([]any{c.Verb, c.By, c.Why, c.User, secret, commitment}, fields...)...)
	if c.Verb == Open && (err == nil || errors.Is(err, redis.ErrNotReplicated)) {
		err = errors.Join(err, r.created(ctx, event))
	}
	return s, err
}

// RoomStatus describes a room.
func (r *Store) RoomStatus(ctx context.Context, event string) (Status, error) {
	return r.control(ctx, event, "status", "", "", "", "", "")
}

func (r *Store) control(ctx context.Context, event string, args ...any) (Status, error) {
	values, now, err := r.runScript(ctx, "control", event, args...)
	if len(values) < 4 {
		return Status{}, err
	}
	s, wrong := statusOf(event, values, now)
	return s, errors.Join(err, wrong)
}

// statusOf reads the values of the script's reply.
func statusOf(event string, values []any, now int64) (Status, error) {
	if len(values) < 4 {
		return Status{}, fmt.Errorf("control.lua: unexpected reply with %d values", len(values))
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i], _ = v.(string)
	}
	fields := map[string]string{}
	for i := 4; i+1 < len(texts); i += 2 {
		fields[texts[i]] = texts[i+1]
	}
	number := func(name string, missing int64) int64 {
		if n, err := strconv.ParseInt(fields[name], 10, 64); err == nil {
			return n
		}
		return missing
	}
	s := Status{
		Event: event, Now: now, TickedBy: fields["tick_by"], State: fields["state"], Mode: fields["mode"], Message: fields["message"], Configured: fields["configured"] == "1",
		Capacity: number("capacity", -1), Concurrency: number("concurrency", -1), PerMinute: number("per_minute", -1),
		Sold: number("sold", 0), Ready: number("ready", 0), Promoted: number("promoted", 0), Hold: number("hold", 0),
		OpensAt: number("opens_at", 0), ClosesAt: number("closes_at", 0), LastTick: number("tick_at", 0) + number("stopped", 0),
		Commitment: fields["commitment"], Frozen: number("cohort", 0), Drawn: number("drawn", 0), DrawnAt: number("drawn_at", 0),
	}
	var leases int64
	wrong := integers(texts[:4], &s.Waiting, &leases, &s.Free, &s.Aside)
	s.Ready = max(0, min(s.Ready, leases))
	s.Admitted = leases - s.Ready
	limits := flow{s.State, s.Hold > 0, s.Capacity, s.Sold, leases, s.Concurrency, s.PerMinute}
	if s.Mode == PassThrough {
		limits.concurrency, limits.perMinute = -1, -1
	}
	s.Halted = limits.halt()
	return s, wrong
}

// Record is a change in the audit of a room.
type Record struct {
	ID     string `json:"id"`
	At     int64  `json:"at"` // ms of the server's clock
	By     string `json:"by"`
	Verb   string `json:"verb"`
	Why    string `json:"why"`
	Detail string `json:"detail"`
}

// Audit returns at most n changes of a room, the oldest first. after is the id of the last one of
// the page before, or empty.
func (r *Store) Audit(ctx context.Context, event, after string, n int) ([]Record, error) {
	from := "-"
	if after != "" {
		from = "(" + after
	}
	return r.records(ctx, event, "XRANGE", from, "+", n)
}

// Cleared reports whether the keys of an event were removed after its end, and no operator opened
// it since. Without a room and without this, a failover has lost the room.
func (r *Store) Cleared(ctx context.Context, event string) (bool, error) {
	last, err := r.records(ctx, event, "XREVRANGE", "+", "-", 1)
	return len(last) == 1 && last[0].Verb == "clear", err
}

// records returns at most n changes of a range of the audit.
func (r *Store) records(ctx context.Context, event, command, from, to string, n int) ([]Record, error) {
	c := redis.Command(command, AuditStream(event), from, to, "COUNT", n)
	if err := r.server.Do(ctx, c); err != nil {
		return nil, err
	}
	list, err := c.List()
	if err != nil {
		return nil, err
	}
	records := make([]Record, 0, len(list))
	for _, v := range list {
		entry, _ := v.([]any)
		if len(entry) != 2 {
			return records, fmt.Errorf("audit of %s: unexpected entry %v", event, v)
		}
		id, _ := entry[0].(string)
		record, values := Record{ID: id}, map[string]string{}
		flat, _ := entry[1].([]any)
		for i := 0; i+1 < len(flat); i += 2 {
			name, _ := flat[i].(string)
			values[name], _ = flat[i+1].(string)
		}
		record.By, record.Verb, record.Why, record.Detail = values["by"], values["verb"], values["why"], values["detail"]
		record.At, _ = strconv.ParseInt(values["at"], 10, 64)
		records = append(records, record)
	}
	return records, nil
}
