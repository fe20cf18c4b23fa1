// Package admin is what operators do with waiting rooms: as functions for the commands, and as an
// HTTP API on the operations server.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// The verbs that change nothing. Those of a change are in package room.
const (
	Status  = "status"
	Find    = "find"
	Audit   = "audit"
	Shuffle = "shuffle"
)

// Changes returns the verbs that change a room.
func Changes() []string {
	return []string{room.Open, room.Hold, room.Resume, room.Drain, room.Close, room.Set, room.Message, room.Kick}
}

// Request is what a verb needs. An absent field changes nothing.
type Request struct {
	// Operator is who was proven to send the request. The audit then names Operator, with By only as
	// whom it was sent for. Empty: the audit believes By.
	Operator string `json:"-"`

	By  string `json:"by"`  // of changes: the person; may be empty with Operator
	Why string `json:"why"` // of changes

	Capacity    *int64  `json:"capacity"`    // open, set: seats
	Concurrency *int64  `json:"concurrency"` // open, set: leases; negative: no limit
	PerMinute   *int64  `json:"perMinute"`   // open, set: promotions; negative: no limit
	Mode        *string `json:"mode"`        // open, set
	OpensAt     *int64  `json:"opensAt"`     // open, set: ms since 1970; 0: no schedule
	ClosesAt    *int64  `json:"closesAt"`    // open, set
	Message     *string `json:"message"`     // message; empty: removes it
	User        string  `json:"user"`        // find, kick

	After string `json:"after"` // audit: id of the last record of the page before
	Limit int    `json:"limit"` // audit
}

// User is the answer to find.
type User struct {
	Event    string          `json:"event"`
	User     string          `json:"user"`
	State    room.State      `json:"state"` // empty: no place
	Status   string          `json:"status,omitempty"`
	Index    int64           `json:"idx,omitempty"`
	Ahead    *int64          `json:"ahead,omitempty"` // of a waiting user
	JTI      string          `json:"jti,omitempty"`
	Until    int64           `json:"until,omitempty"`      // end of the lease in ms since 1970
	Reason   string          `json:"reason,omitempty"`     // why there is no place
	Instance string          `json:"instanceId,omitempty"` // of the latest connection
	Shop     string          `json:"shop,omitempty"`       // that sent the last request about the lease
	Bought   int             `json:"bought,omitempty"`     // purchases in this event
	Memory   json.RawMessage `json:"memory,omitempty"`     // how an earlier place ended
}

// Records is the answer to audit.
type Records struct {
	Records []room.Record `json:"records"`
}

// recordID is the id of a stream entry. Its numbers fit into 64 bits.
var recordID = regexp.MustCompile(`^[0-9]{1,19}(-[0-9]{1,19})?$`)

const (
	defaultRecords = 100
	maxRecords     = 1000
	maxBy          = 200 // characters; the console adds its face and the role to a name
	maxWhy         = 500
)

// Do does what a verb says. The errors are mistakes of the request (setting.FieldError), those of
// package room, or those of the server.
func Do(ctx context.Context, rooms *room.Store, event, verb string, q Request) (any, error) {
	if err := check(event, verb, &q); err != nil {
		return nil, err
	}
	switch verb {
	case Status:
		return rooms.RoomStatus(ctx, event)
	case Find:
		return find(ctx, rooms, event, q.User)
	case Audit:
		records, err := rooms.Audit(ctx, event, q.After, q.Limit)
		return Records{records}, err
	case Shuffle:
		return drawn(ctx, rooms, event)
	}
	s, err := rooms.Control(ctx, event, q.change(verb))
	if errors.Is(err, room.ErrConflict) {
		err = stateOf(err, s)
	}
	return s, err
}

// stateOf adds the state of the room to an error about it.
func stateOf(err error, s room.Status) error { return fmt.Errorf("%w: the room is %s", err, s.State) }

// change is what a request changes.
func (q Request) change(verb string) room.Change {
	return room.Change{
		Verb: verb, By: q.audited(), Why: q.Why, Capacity: q.Capacity, Concurrency: q.Concurrency, PerMinute: q.PerMinute,
		Mode: q.Mode, OpensAt: q.OpensAt, ClosesAt: q.ClosesAt, Message: q.Message, User: q.User,
	}
}

// audited is who the audit says has made a change.
func (q Request) audited() string {
	switch {
	case q.Operator == "":
		return q.By
	case q.By == "":
		return q.Operator
	}
	return q.Operator + " for " + q.By
}

func check(event, verb string, q *Request) error {
	var p setting.Problems
	p.Check(room.ValidEvent(event), "event", "must be 1 to 128 characters of A-Za-z0-9._-, got %q", event)
	if slices.Contains(Changes(), verb) {
		for field, text := range map[string]*string{"by": &q.By, "why": &q.Why} {
			*text = strings.TrimSpace(*text)
			limit := maxWhy
			if field == "by" {
				limit = maxBy
			}
			optional := field == "by" && q.Operator != ""
			p.Check((optional || *text != "") && len([]rune(*text)) <= limit, field, "must have 1 to %d characters, for the audit", limit)
			p.Check(!strings.ContainsFunc(*text, func(c rune) bool { return !unicode.IsPrint(c) }), field, "must have printable characters only, for the audit, got %q", *text)
		}
	}
	p.Check(q.After == "" || recordID.MatchString(q.After), "after", "must be the id of a record, such as 1764590400000-0, got %q", q.After)
	p.Check(verb != Find || room.ValidUser(q.User), "user", "must be 1 to 128 printable characters")
	if q.Limit == 0 {
		q.Limit = defaultRecords
	}
	p.Check(q.Limit > 0 && q.Limit <= maxRecords, "limit", "must be from 1 to %d, got %d", maxRecords, q.Limit)
	return p.Err()
}

// drawn returns the audit of a shuffle, after it was verified.
func drawn(ctx context.Context, rooms *room.Store, event string) (shuffle.Audit, error) {
	a, err := rooms.Shuffle(ctx, event)
	if err != nil {
		return a, err
	}
	if err := a.Verify(); err != nil {
		return a, fmt.Errorf("stored shuffle of event %s: %w", event, err)
	}
	return a, nil
}

func find(ctx context.Context, rooms *room.Store, event, user string) (User, error) {
	d, err := rooms.Find(ctx, event, user)
	if err != nil {
		return User{}, err
	}
	u := User{
		Event: event, User: user, State: d.State, Status: d.State.Status(), Index: d.Index, JTI: d.JTI, Until: d.Until,
		Reason: d.Reason, Instance: d.Instance, Shop: d.Shop, Bought: d.Bought, Memory: d.Memory,
	}
	if d.State == room.Waiting && d.Ahead >= 0 {
		u.Ahead = &d.Ahead
	}
	return u, nil
}

// IsMistake reports whether an error of Do is one of the request.
func IsMistake(err error) bool {
	_, is := errors.AsType[*setting.FieldError](err)
	return is || errors.Is(err, room.ErrTimes)
}
