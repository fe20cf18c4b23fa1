package broker

import (
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
)

// local is an event with users that are connected here.
type local struct {
	event string

	mu      sync.Mutex
	users   map[string]*user
	table   *room.Table // the last one that was read
	at      time.Time   // of it
	cut     bool        // the table could not be read
	signing bool        // signs are on their way
}

// user is a user with connections here, or one that had some until its next sign.
type user struct {
	id        string
	place     room.Place
	request   int64     // number of the request whose answer is the place
	answered  time.Time // when it came
	conns     map[*conn]struct{}
	signAt    time.Time
	claimAt   time.Time // not before
	promotion entry     // the token of the last lease
}

// roomClosed is the state of a room whose waiting users have no places.
const roomClosed = "closed"

// conn is one connection.
type conn struct {
	local  *local
	user   *user
	client *sse.Client
	view   view
}

// accept takes the answer to a request that was sent for the user at an index. It returns false if
// the user has another place now, or a later answer.
func (u *user) accept(p room.Place, index, request int64, now time.Time) bool {
	if u.request != 0 && (index != u.place.Index || request < u.request) {
		return false
	}
	u.place, u.request, u.answered = p, request, now
	return true
}

// sign returns the next sign of life.
func (u *user) sign(now time.Time) room.Sign {
	s := room.Sign{User: u.id, Gone: len(u.conns) == 0}
	if silence := now.Sub(u.answered); max(silence, now.Round(0).Sub(u.answered.Round(0))) < dropAfter {
		s.Index = u.place.Index
		if u.place.State == room.Admitted {
			s.JTI, s.Until = u.place.JTI, u.place.Until
		}
	}
	return s
}

// wantsClaim reports whether the user may have a lease that is not claimed.
func (u *user) wantsClaim(t *room.Table, now time.Time) bool {
	if len(u.conns) == 0 || now.Before(u.claimAt) {
		return false
	}
	return u.place.State == room.Ready || u.place.State == room.Waiting && t != nil && u.place.Index <= t.Served
}

// update reads a new table, nil if there is none. failed says that the server did not answer.
func (l *local) update(t *room.Table, failed bool, now time.Time) {
	if t == nil {
		l.cut = l.cut || failed
		return
	}
	if l.table != nil && (l.cut || l.table.Epoch != t.Epoch || l.table.State != t.State && t.State == roomClosed) {
		for _, u := range l.users {
			u.signAt = now
		}
	}
	l.table, l.at, l.cut = t, now, false
}

// dueSigns returns the users whose signs of life are due. One reason is a lease that should have
// ended.
func (l *local) dueSigns(now time.Time) (due []*user) {
	var clock int64 // of the server
	if l.table != nil {
		clock = l.table.AsOf + now.Sub(l.at).Milliseconds()
	}
	for _, u := range l.users {
		over := u.place.Until > 0 && u.place.Until < clock && now.Sub(u.answered) >= overdue
		if over || !now.Before(u.signAt) {
			due = append(due, u)
		}
	}
	return due
}

// leave removes a connection. After the last one a sign is due, unless the place has ended.
func (l *local) leave(c *conn, now time.Time) {
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
