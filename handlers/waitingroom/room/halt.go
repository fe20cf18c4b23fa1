package room

// Halt says why no waiting user is promoted at present. It is empty while the queue moves.
type Halt string

// The reasons why no waiting user is promoted.
const (
	SoldOut         Halt = "sold_out"         // all seats are sold; new users are refused
	SeatsHeld       Halt = "seats_held"       // leases hold the last seats; each may come back
	NotOpen         Halt = "not_open"         // scheduled, pre-queue or drawing
	OnHold          Halt = "on_hold"          // by an operator, or for some seconds after an outage
	CapacityUnknown Halt = "capacity_unknown" // the number of seats is not known yet
	LimitedToNone   Halt = "limited_to_none"  // the capacity, the concurrency or the promotions per minute are 0
	RoomClosed      Halt = "room_closed"      // waiting users have no places
)

// flow is what decides whether users are promoted. Limits are -1 when there is none.
type flow struct {
	state                                          string
	held                                           bool // after an outage
	capacity, sold, leases, concurrency, perMinute int64
}

// halt returns why no user is promoted. A sold-out room refuses new users in each state, so
// this comes first.
func (f flow) halt() Halt {
	switch {
	case f.state == Closed:
		return RoomClosed
	case f.capacity >= 0 && f.sold > 0 && f.sold >= f.capacity:
		return SoldOut
	case f.state == "scheduled" || f.state == PreQueue || f.state == Drawing:
		return NotOpen
	case f.state == "paused" || f.held:
		return OnHold
	case f.capacity < 0:
		return CapacityUnknown
	case f.capacity == 0 || f.concurrency == 0 || f.perMinute == 0:
		return LimitedToNone
	case f.sold+f.leases >= f.capacity:
		return SeatsHeld
	}
	return ""
}

// Halted returns why no waiting user is promoted. It is empty while the queue moves.
func (t *Table) Halted() Halt {
	return flow{t.State, t.Hold > 0, t.Capacity, t.Sold, t.Ready + t.Admitted, t.Concurrency, t.PerMinute}.halt()
}

// Text says in words why no user is promoted. It is empty while the queue moves.
func (h Halt) Text() string {
	switch h {
	case SoldOut:
		return "sold out"
	case SeatsHeld:
		return "admitted users hold the last seats"
	case NotOpen:
		return "the room is not open yet"
	case OnHold:
		return "the room is on hold"
	case CapacityUnknown:
		return "the number of seats is unknown"
	case LimitedToNone:
		return "the capacity, the concurrency or the promotions per minute are 0"
	case RoomClosed:
		return "the room is closed"
	}
	return ""
}

// Short is the state of a room in a list of rooms.
func (s Status) Short() string {
	switch {
	case s.Halted == SoldOut && s.State != Closed:
		return s.State + ", sold out"
	case s.Hold > 0 && s.Halted == OnHold:
		return s.State + ", pause after an outage"
	}
	return s.State
}
