package broker

import (
	"math/rand/v2"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

const (
	// staleInterval is the time between two positions of the same tick.
	staleInterval = 10 * time.Second
	// renewID is the age at which a connection receives a new id.
	renewID = 15 * time.Minute
)

// The names of stream events.
const (
	eventConnected = "connected"
	eventPromoted  = "promoted"
	eventMessage   = "message"
	eventClosed    = "closed"
	eventPosition  = "position"
)

// outgoing is something that a connection receives.
type outgoing struct {
	name     string
	position position // of a position
	text     string   // of a message; reason of the end
	id       bool     // the event has a signed id
}

// position is the data of the stream event position, and a part of the answer to a client that
// polls.
type position struct {
	Position    *int64    `json:"position"` // null before the draw
	Ahead       *int64    `json:"ahead"`
	Waiting     int64     `json:"waiting"`
	WaitSeconds *[2]int64 `json:"waitSeconds"`
	OpensAt     *int64    `json:"opensAt"`
	AsOf        int64     `json:"asOf"`
	RoomState   string    `json:"roomState"`
	// Halted says why no user is promoted. Then there is no expected wait.
	Halted     room.Halt `json:"halted,omitempty"`
	Commitment string    `json:"commitment,omitempty"` // hash of the secret, before the draw
}

// ahead returns how many users wait before one, or a number that stands for it.
func (p position) ahead() int64 {
	if p.Ahead == nil {
		return withoutPosition
	}
	return *p.Ahead
}

// lowest is the least number of users ahead that was shown to a user at an index.
type lowest struct{ index, ahead int64 }

// position returns the position of a place. It does not rise. A place that is newer than the table
// has the number of users ahead that the room counted.
func (l *lowest) position(t *room.Table, place room.Place) position {
	p := position{Waiting: t.Waiting, AsOf: t.AsOf, RoomState: t.State, Halted: t.Halted()}
	if t.OpensAt > 0 {
		p.OpensAt = &t.OpensAt
	}
	index := place.Index
	if !t.Ordered(index) {
		p.Commitment = t.Commitment
		return p
	}
	ahead, _ := t.Position(index)
	if place.Ahead >= 0 && index > t.Last() {
		ahead = place.Ahead
	}
	if l.index == index {
		ahead = min(ahead, l.ahead)
	}
	*l = lowest{index, ahead}
	rank := ahead + 1
	p.Position, p.Ahead, p.Waiting, p.WaitSeconds = &rank, &ahead, max(t.Waiting, rank), t.WaitSeconds(ahead)
	return p
}

// view is what one connection has received. It has no clock and no connection. At first it has only
// the least position of its user.
type view struct {
	lowest   *lowest
	index    int64 // of the last connected event; 0: none
	ahead    int64 // of the last position; negative: none
	asOf     int64
	state    string    // of the room
	sent     time.Time // when the last position was
	signed   time.Time // when the last id was sent
	jti      string    // of the last promoted event
	until    int64
	message  string
	finished bool
}

// update returns what the connection receives next, given the place of the user and the table of
// the event, which may be nil. After the step closed there is none.
//
// While the index is the same, positions of a user never rise. Each end of a lease is sent once.
func (v *view) update(p room.Place, t *room.Table, now time.Time) (steps []outgoing) {
	if v.finished {
		return nil
	}
	if reason, ended := endOf(p); ended {
		v.finished = true
		return []outgoing{{name: eventClosed, text: reason}}
	}
	if p.Index != v.index {
		v.index, v.ahead, v.asOf, v.sent = p.Index, -1, 0, time.Time{}
		v.message = "" // the page hides its message
		// Users of a draw do not renew their ids together.
		v.signed = now.Add(-rand.N(renewID / 3))
		steps = append(steps, outgoing{name: eventConnected, id: true})
	}
	if p.State == room.Admitted && !p.Unreplicated && (p.JTI != v.jti || p.Until != v.until) {
		v.jti, v.until = p.JTI, p.Until
		steps = append(steps, outgoing{name: eventPromoted})
	}
	if t == nil {
		return steps
	}
	if t.Message != v.message {
		v.message = t.Message
		steps = append(steps, outgoing{name: eventMessage, text: t.Message})
	}
	served := p.Index <= t.Served && p.Now < t.AsOf // perhaps the user no longer waits
	if p.State == room.Waiting && !served && v.isDue(t, now) {
		shown := v.lowest.position(t, p)
		v.ahead, v.asOf, v.state, v.sent = shown.ahead(), shown.AsOf, shown.RoomState, now
		renew := now.Sub(v.signed) >= renewID
		if renew {
			v.signed = now
		}
		steps = append(steps, outgoing{name: eventPosition, position: shown, id: renew})
	}
	return steps
}

// isDue reports whether a position is due. A change of the room's state is shown at once. Halted
// comes with the next position, because the last seats may be held and free again with every tick,
// and each change would send an event to the whole crowd.
func (v *view) isDue(t *room.Table, now time.Time) bool {
	passed := now.Sub(v.sent)
	if t.AsOf == v.asOf {
		return passed >= staleInterval
	}
	return t.State != v.state || v.ahead < 0 || passed >= interval(v.ahead)
}

// interval is the least time between two positions. It is a little less than whole seconds, so that
// a round that comes early counts.
func interval(ahead int64) time.Duration {
	switch {
	case ahead < 100:
		return 0
	case ahead < 1000:
		return 1900 * time.Millisecond
	case ahead < 10_000:
		return 4900 * time.Millisecond
	}
	return 14900 * time.Millisecond
}

// withoutPosition stands for the users ahead of a client that has no position.
const withoutPosition = 1000

// pollAgain returns the seconds until the next poll of a client. A poll is a sign of life.
func pollAgain(ahead int64, seenInterval time.Duration) int64 {
	return max(1, int64(min(interval(ahead)+time.Second, seenInterval).Seconds()))
}

// reasonUnknown is the end of a stream of whose place nothing is remembered.
const reasonUnknown = "unknown"

// endOf returns the reason if a place has ended.
func endOf(p room.Place) (reason string, ended bool) {
	switch p.State {
	case room.Waiting, room.Ready, room.Admitted:
		return "", false
	}
	if p.Reason == "" {
		return reasonUnknown, true
	}
	return p.Reason, true
}
