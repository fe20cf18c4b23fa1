package room

import (
	"errors"
	"fmt"
	"strconv"
)

// State is the state of a user in a room. The empty state means that the user has no place.
type State string

// The states of a user.
const (
	Waiting   State = "WAITING"   // in the queue
	Ready     State = "READY"     // promoted, the lease is not claimed
	Admitted  State = "ADMITTED"  // the lease is claimed
	Sold      State = "SOLD"      // the lease ended with a sale
	Abandoned State = "ABANDONED" // the lease was released
	Expired   State = "EXPIRED"   // the time of the lease was over
)

// Status returns the older system's name of a state, or "" for one that it does not have.
func (s State) Status() string {
	switch s {
	case Waiting, Ready:
		return "IN_ENTRY"
	case Admitted:
		return "IN_PROGRESS"
	}
	return ""
}

// Place is where a user stands in a room.
type Place struct {
	State State
	Index int64  // of the place in the queue, also after the promotion
	JTI   string // of the lease
	Until int64  // end of the lease in ms of the server's clock; an outage makes it later
	Now   int64  // the server's clock in ms
	// Reason says why there is no place: left, kicked, grace, sold, abandoned, lease_over,
	// room_closed, sold_out (closed because of it), or unknown when nothing is remembered.
	Reason string
	// How is new, attached or restored after Enter and Seen. After Finish it is late, late_lease or
	// again, and after Leave it is lease if a lease has ended.
	How      string
	Ahead    int64 // users before this one, in results of Enter and Status; -1 elsewhere
	Promoted int64 // the server's clock in ms at the promotion; 0 without a lease
	// Unreplicated means that too few replicas may have the claim of an ADMITTED lease. The caller
	// claims it again before it shows the token.
	Unreplicated bool `json:"-"`
}

// The answers of a room. Each is returned with the place, if there is one.
var (
	// ErrUnknown means that the event has no room. The caller queries the Event Service, and calls
	// Create.
	ErrUnknown = errors.New("the event has no room")
	// ErrRejected means that the room takes no new users, or not this one. The reason of the place is
	// reject, draining, sold_out, room_closed, or bought: the user has made all purchases that
	// Options.PurchasesPerUser allows.
	ErrRejected = errors.New("the room takes no new users")
	// ErrUsed means that another session of the shop has the lease. The caller refuses the session.
	ErrUsed = errors.New("another session has the lease")
	// ErrEnded means that the lease is over. The reason of the place says why.
	ErrEnded = errors.New("the lease has ended")
	// ErrUnverified means that no session of the shop has the lease. The caller verifies it first.
	ErrUnverified = errors.New("no session of the shop has the lease")
	// ErrVerified means that a shop has verified the lease, so the user can not end it. The caller
	// says so to the user: the purchase is finished or cancelled in the shop.
	ErrVerified = errors.New("the shop has verified the lease")
	// ErrTimes means that a room would close in the past, or before it opens. The caller gives a later
	// closes_at. Nothing has changed.
	ErrTimes = errors.New("closes_at must be in the future, and after opens_at")
	// ErrConflict means that the change is not possible in this state, and changed nothing. A late
	// sale finds no free slot, or the user has made all purchases that are allowed.
	ErrConflict = errors.New("not possible in this state")
)

// answer returns the error of a script's code.
func answer(code string) error {
	switch code {
	case "OK":
		return nil
	case "UNKNOWN":
		return ErrUnknown
	case "REJECTED":
		return ErrRejected
	case "USED":
		return ErrUsed
	case "ENDED":
		return ErrEnded
	case "UNVERIFIED":
		return ErrUnverified
	case "VERIFIED":
		return ErrVerified
	case "TIMES":
		return ErrTimes
	case "CONFLICT":
		return ErrConflict
	}
	return fmt.Errorf("unexpected answer %q", code)
}

// place reads a place from the reply of a script. An index alone is the place of a user that waits.
func place(reply any, now int64) (Place, error) {
	if index, ok := reply.(string); ok {
		p := Place{State: Waiting, How: "attached", Ahead: -1, Now: now}
		return p, integers([]string{index}, &p.Index)
	}
	list, ok := reply.([]any)
	if !ok || len(list) != 8 {
		return Place{}, fmt.Errorf("unexpected place %v", reply)
	}
	texts := make([]string, len(list))
	for i, v := range list {
		texts[i], _ = v.(string)
	}
	p := Place{State: State(texts[0]), JTI: texts[2], Reason: texts[4], How: texts[5], Now: now}
	err := integers([]string{texts[1], texts[3], texts[6], texts[7]}, &p.Index, &p.Until, &p.Ahead, &p.Promoted)
	return p, err
}

// integers reads one number per text.
func integers(texts []string, to ...*int64) (err error) {
	for i, n := range to {
		if *n, err = strconv.ParseInt(texts[i], 10, 64); err != nil {
			return err
		}
	}
	return nil
}
