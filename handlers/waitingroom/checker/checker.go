// Package checker compares what the users and the shop of a waiting room have received with its
// rules. It has its own copy of all that happened.
package checker

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
)

// Checker has the users, their leases and the sales of one event. Safe for concurrent use.
type Checker struct {
	tokenTTL time.Duration

	mu       sync.Mutex
	users    map[string]*user
	leases   map[string]string // jti → user
	report   Report
	closed   bool // an operator has closed the room
	problems map[string]bool
}

// user is what one user has received, over all connections.
type user struct {
	name     string
	index    int64
	shown    map[string]int64 // per connection, users ahead
	waiting  int64            // asOf of the newest position
	jti      string
	notified int64 // when the lease was claimed; 0: not promoted
	result   string
	end      string
	departed bool // left, or never comes back
}

// The results of a lease, as the shop has received them.
const (
	Sold      = "sold"
	Abandoned = "abandoned"
	Refused   = "refused"
)

// New returns a checker for a room whose leases have tokenTTL from their first notification.
func New(tokenTTL time.Duration) *Checker {
	return &Checker{tokenTTL: tokenTTL, users: map[string]*user{}, leases: map[string]string{}, problems: map[string]bool{}}
}

// Report is the result.
type Report struct {
	Users      int      `json:"users"`
	Promoted   int      `json:"promoted"`
	Sold       int      `json:"sold"`
	Abandoned  int      `json:"abandoned"`  // by the shop or the user, after the promotion
	Expired    int      `json:"expired"`    // their time was over
	Departed   int      `json:"departed"`   // left, or closed the page for good, while they waited
	Unserved   int      `json:"unserved"`   // waited when the room was closed
	Reconnects int      `json:"reconnects"` // at the same place
	Replays    int      `json:"replays"`    // of tokens in a second session, all refused
	Samples    int      `json:"samples"`    // of the room, with sold + leases <= capacity
	Capacity   int64    `json:"capacity"`   // seats
	Leases     int64    `json:"leases"`     // at the end
	Problems   []string `json:"problems"`
}

// OK reports whether no rule was broken.
func (r Report) OK() bool { return len(r.Problems) == 0 }

// problem adds a problem once.
func (c *Checker) problem(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !c.problems[text] {
		c.problems[text] = true
		c.report.Problems = append(c.report.Problems, text)
	}
}

func (c *Checker) user(name string) *user {
	if c.users[name] == nil {
		c.users[name] = &user{name: name, shown: map[string]int64{}}
	}
	return c.users[name]
}

// Connected says that a connection of a user has a place.
func (c *Checker) Connected(name, connection string, index int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	delete(u.shown, connection)
	switch u.index {
	case 0:
		u.index = index
	case index:
		c.report.Reconnects++
	default:
		c.problem("%s has two places: %d, then %d", name, u.index, index)
	}
}

// Position says that a connection of a waiting user was shown a position. asOf is its time by the
// server's clock.
func (c *Checker) Position(name, connection string, ahead, asOf int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	if before, ok := u.shown[connection]; ok && ahead > before {
		c.problem("%s was shown %d users ahead, then %d", name, before, ahead)
	}
	u.shown[connection] = ahead
	u.waiting = max(u.waiting, asOf)
}

// Promoted says that a user has received a token. It returns true for the first one of a lease.
func (c *Checker) Promoted(name, jti string, until int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	if owner := c.leases[jti]; owner != "" && owner != name {
		c.problem("%s and %s have the lease %s", owner, name, jti)
	}
	if u.jti == jti {
		return false
	}
	if u.jti != "" && u.result == "" && u.end == "" {
		c.problem("%s has two leases: %s, then %s", name, u.jti, jti)
	}
	u.jti, u.notified, u.result = jti, until-c.tokenTTL.Milliseconds(), ""
	c.leases[jti] = name
	return true
}

// Shop says what the shop has received for the lease of a user: Sold, Abandoned or Refused.
func (c *Checker) Shop(name, result string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	if u.result == Sold {
		c.problem("%s has bought twice", name)
	}
	u.result = result
}

// Replayed says that a second session has presented the token of a user.
func (c *Checker) Replayed(name string, accepted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Replays++
	if accepted {
		c.problem("a second session was accepted with the token of %s", name)
	}
}

// Departed says that a user leaves, or closes the page for good.
func (c *Checker) Departed(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.user(name).departed = true
}

// Ended says that the stream of a user ended for good, with a reason of the room.
func (c *Checker) Ended(name, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	if u.end != "" && u.end != reason {
		c.problem("%s has two ends: %s, then %s", name, u.end, reason)
	}
	u.end = reason
}

// Closed says that an operator closes the room from now on.
func (c *Checker) Closed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Sample checks the limits of the room at one moment.
func (c *Checker) Sample(s room.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Samples++
	leases := s.Ready + s.Admitted
	if s.Capacity < 0 && leases+s.Sold > 0 {
		c.problem("%d users were promoted while the capacity is unknown", leases+s.Sold)
	}
	if s.Capacity >= 0 && s.Sold+leases > s.Capacity {
		c.problem("%d sold and %d leases are more than %d seats", s.Sold, leases, s.Capacity)
	}
	if s.Concurrency >= 0 && leases > s.Concurrency {
		c.problem("%d leases are more than %d", leases, s.Concurrency)
	}
}

// Report compares everything. last is the room after the end of all users.
func (c *Checker) Report(last room.Status) Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Users, c.report.Capacity, c.report.Leases = len(c.users), last.Capacity, last.Ready+last.Admitted
	users := slices.SortedFunc(func(yield func(*user) bool) {
		for _, u := range c.users {
			if !yield(u) {
				return
			}
		}
	}, func(a, b *user) int { return cmp.Compare(a.index, b.index) })
	for _, u := range users {
		c.ending(u)
	}
	c.order(users)
	if int64(c.report.Sold) != last.Sold {
		c.problem("the shop has sold %d seats, and the room counts %d", c.report.Sold, last.Sold)
	}
	if c.report.Leases != 0 {
		c.problem("%d slots are not free again", c.report.Leases)
	}
	free := max(0, last.Capacity-last.Sold)
	if last.Concurrency >= 0 {
		free = min(free, last.Concurrency)
	}
	if last.Free != free {
		c.problem("%d slots are free, and %d should be", last.Free, free)
	}
	if last.Waiting > 0 {
		c.problem("%d users still wait", last.Waiting)
	}
	r := c.report
	r.Problems = slices.Clone(r.Problems)
	if r.Problems == nil {
		r.Problems = []string{}
	}
	return r
}

// ending counts the end of a user, and checks that it is one that the user has caused.
func (c *Checker) ending(u *user) {
	if u.jti != "" {
		c.report.Promoted++
	}
	switch {
	case u.result == Sold:
		c.report.Sold++
	case u.result == Abandoned:
		c.report.Abandoned++
	case u.jti != "" && (u.departed || u.end == "abandoned" || u.end == "left"):
		c.report.Abandoned++
	case u.departed:
		c.report.Departed++
	case u.jti != "" && u.end == "lease_over":
		c.report.Expired++
	case u.jti == "" && u.end == "room_closed" && c.closed:
		c.report.Unserved++
	case u.end == "":
		c.problem("%s was promoted or waited, and has no end", u.name)
	default:
		c.problem("%s has lost the place: %s", u.name, u.end)
	}
	if u.result != "" && u.result != Refused && u.end != "" && u.end != u.result {
		c.problem("%s was %s in the shop, and the stream ended with %s", u.name, u.result, u.end)
	}
}

// order checks that no user still waited after a user with a higher index was notified.
func (c *Checker) order(users []*user) {
	var first *user // the one with a higher index that was notified first
	for _, u := range slices.Backward(users) {
		if first != nil && u.waiting > first.notified {
			c.problem("%s was overtaken by %s", u.name, first.name)
		}
		if u.notified > 0 && (first == nil || u.notified < first.notified) {
			first = u
		}
	}
}
