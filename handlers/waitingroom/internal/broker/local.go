package broker

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/plugins/sse"
)

const (
	// dropAfter is the time without an answer about a user after which its index and lease are no
	// longer sent. It is shorter than the hour in which the server remembers who has left.
	dropAfter = 30 * time.Minute
	// claimAgain is the time between two claims that found the user waiting.
	claimAgain = 5 * time.Second
	// overdue is the time between two signs of a user whose lease should have ended.
	overdue = 2 * time.Second
	// keepShown is the time for which a user without connections is kept, so that a position does
	// not rise over a reconnect.
	keepShown = time.Minute
)

// eventUsers is an event with users that are connected here.
type eventUsers struct {
	event string

	mu      sync.Mutex
	users   map[string]*user
	table   *room.Table // the last one that was read
	at      time.Time   // of it
	ticked  time.Time   // when the last tick was seen, or the first user came
	cut     bool        // the table could not be read
	signing bool        // signs are on their way
}

// user is a user with connections here, or one that had some a moment ago.
type user struct {
	id        string
	place     room.Place
	request   int64     // number of the request whose answer is the place
	answered  time.Time // when it came
	conns     map[*conn]struct{}
	signAt    time.Time
	claimAt   time.Time // not before
	reported  bool      // the server has the end of the last connection
	promotion entry     // the token of the last lease
	lowest    lowest    // the least position that was shown
}

// conn is one connection.
type conn struct {
	local  *eventUsers
	user   *user
	client *sse.Client
	view   view
	id     signedID // of the first event
}

// signedID is the id of stream events for a user at an index.
type signedID struct {
	index int64
	text  string
}

// batch is a request for users. Its answers count at the indexes that it was sent for.
type batch struct {
	request int64
	users   []*user
	indexes []int64
	signs   []room.Sign
}

// connect is the first connection of a user here. Signs are not all due together. The user may have
// moved here: the sign comes before the tick releases the slot.
func (u *user) connect(now time.Time, interval time.Duration) {
	u.reported, u.signAt = false, now.Add(rand.N(interval/2))
}

// newBatch returns a request. The caller has the lock of the event.
func newBatch(request int64, users []*user, now time.Time) batch {
	r := batch{request, users, make([]int64, len(users)), make([]room.Sign, len(users))}
	for i, u := range users {
		r.indexes[i], r.signs[i] = u.place.Index, u.sign(now)
	}
	return r
}

// takePlace stores the answer to a request.
func (u *user) takePlace(p room.Place, request int64, now time.Time) {
	if p.State == u.place.State && p.JTI == u.place.JTI && p.Until == u.place.Until && !u.place.Unreplicated {
		p.Unreplicated = false // it was claimed
	}
	u.place, u.request, u.answered = p, request, now
	if p.State == room.Ready || p.Unreplicated {
		u.claimAt = now // the answer to a claim may come later, and no longer count
	}
}

// serverTime is the time by the clock of the server, given that of this process, of which only the time since the last
// answer counts.
func (u *user) serverTime(now time.Time) time.Time {
	return time.UnixMilli(u.place.Now).Add(now.Sub(u.answered))
}

// accept takes the answer to a request that was sent for the user at an index. It returns false if
// the user has another place now, or a later answer.
func (u *user) accept(p room.Place, index, request int64, now time.Time) bool {
	if u.request != 0 && (index != u.place.Index || request < u.request) {
		return false
	}
	u.takePlace(p, request, now)
	return true
}

// entered takes the place of a new connection. A place at another index is newer if its request or
// the server's time is later. If a DELETE may have overtaken the request, a sign is due. It shows
// which place counts.
func (u *user) entered(p room.Place, request int64, now time.Time) {
	if u.request == 0 || p.Index != u.place.Index && (request > u.request || p.Now >= u.place.Now) {
		if request < u.request {
			u.signAt = now
		}
		u.takePlace(p, max(request, u.request), now)
		return
	}
	u.accept(p, p.Index, request, now)
}

// left takes the end of the place by a DELETE, and reports whether it counts. The user may have
// entered again since: then a sign is due that shows it.
func (u *user) left(p room.Place, request int64, now time.Time) bool {
	if p.Now > 0 && u.place.Now >= p.Now {
		u.signAt = now
		return false
	}
	u.takePlace(p, request, now)
	return true
}

// plan sets when the next sign is due, at most an interval from now. It is a little earlier at
// random: users whose signs were due at once do not stay in step.
func (u *user) plan(now time.Time, interval time.Duration) {
	if u.place.Until > 0 { // another broker may have reported the user as gone
		interval /= 2
	}
	u.signAt = now.Add(interval - rand.N(interval/4))
}

// sign returns the next sign of life.
func (u *user) sign(now time.Time) room.Sign {
	s := room.Sign{User: u.id, Gone: len(u.conns) == 0}
	if silence := now.Sub(u.answered); max(silence, now.Round(0).Sub(u.answered.Round(0))) < dropAfter {
		s.Index = u.place.Index
		if u.place.State == room.Admitted && !u.place.Unreplicated {
			s.JTI, s.Until = u.place.JTI, u.place.Until
		}
	}
	return s
}

// claimDue reports whether the user may have a lease that is not claimed.
func (u *user) claimDue(t *room.Table, now time.Time) bool {
	if len(u.conns) == 0 || now.Before(u.claimAt) {
		return false
	}
	index := u.place.Index
	served := u.place.State == room.Waiting && t != nil && index <= t.Served && t.Ordered(index)
	return u.place.State == room.Ready || u.place.Unreplicated || served
}

// update reads a new table, nil if there is none. failed says that the server did not answer. All
// signs are due after a recovery, after an outage of an interval, and when the room closes. They
// are due with the first table, too: a recovery may have come before it.
func (l *eventUsers) update(t *room.Table, failed bool, now time.Time, interval time.Duration) {
	if t == nil {
		l.cut = l.cut || failed
		return
	}
	outage := l.cut && now.Sub(l.at) >= interval
	if l.table == nil || outage || l.table.Epoch != t.Epoch || l.table.State != t.State && t.State == room.Closed {
		for _, u := range l.users {
			u.signAt = now
		}
	}
	if l.table == nil || l.table.Tick != t.Tick {
		l.ticked = now
	}
	l.table, l.at, l.cut = t, now, false
}

// dueSigns returns the users whose signs of life are due. One reason is a lease that should have
// ended. It removes users whose connections have been gone for keepShown.
func (l *eventUsers) dueSigns(now time.Time) (due []*user) {
	var clock int64 // of the server
	if l.table != nil {
		clock = l.table.AsOf + now.Sub(l.at).Milliseconds()
	}
	for _, u := range l.users {
		over := u.place.Until > 0 && u.place.Until < clock && now.Sub(u.answered) >= overdue
		switch {
		case !over && now.Before(u.signAt):
		case u.reported:
			delete(l.users, u.id)
		default:
			due = append(due, u)
		}
	}
	return due
}

// leave removes a connection. After the last one a sign is due, unless the place has ended.
func (l *eventUsers) leave(c *conn, now time.Time) {
	u := c.user
	delete(u.conns, c)
	if len(u.conns) > 0 {
		return
	}
	u.signAt = now
	if _, ended := endOf(u.place); ended {
		delete(l.users, u.id)
	}
}

// lastTick returns when the last tick of the event was seen. It returns false without connections.
func (l *eventUsers) lastTick() (time.Time, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, u := range l.users {
		if len(u.conns) > 0 {
			return l.ticked, true
		}
	}
	return time.Time{}, false
}
