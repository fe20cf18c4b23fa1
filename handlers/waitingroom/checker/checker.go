// Package checker compares what the users and the shop of a waiting room have received with its
// rules. It has its own copy of all that happened.
package checker

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/sorted"
)

// Habit is what a user does. It decides which ends are possible.
type Habit int

// The habits.
const (
	Buys Habit = iota
	Abandons
	Expires    // does nothing after the promotion
	Leaves     // before or after the promotion
	Vanishes   // closes the page for good
	Reconnects // loses the connection repeatedly, and buys
	HasTwoTabs // and buys
)

func (h Habit) buys() bool { return h == Buys || h == Reconnects || h == HasTwoTabs }

// Options are the settings of the room, and what the faults of the run may cause.
type Options struct {
	TokenTTL time.Duration // that of the room
	// Absence is the time without a position after which a user may be overtaken. Zero: no user
	// may be.
	Absence time.Duration
	// Loses: Redis loses writes that it has acknowledged.
	Loses bool
	// Restores: Redis loses that users have entered. One of them who enters again may have another
	// index until the sign of an earlier connection brings the first one back.
	Restores bool
}

// Checker has the users, their leases and the sales of one event. Safe for concurrent use.
type Checker struct {
	opts Options

	mu       sync.Mutex
	users    map[string]*user
	leases   map[string]string // jti → user
	over     []*user           // whose leases have ended since the last sample
	due      []*user           // whose leases had ended before it
	report   Report
	closed   bool           // an operator has closed the room
	lost     int64          // see Lost
	places   map[string]int // see Drawn
	problems map[string]bool
}

// user is what one user has received, over all connections.
type user struct {
	name     string
	habit    Habit
	entered  int64 // index before the draw; 0: it has not changed
	index    int64
	shown    map[string]int64 // per connection, users ahead
	waiting  int64            // asOf of the newest position
	absent   bool             // for longer than Options.Absence
	jti      string
	until    int64 // end of the lease
	notified int64 // when the lease was claimed; 0: not promoted
	result   string
	sent     int64 // when the shop sent the result for the last time
	end      string
	then     string // end of another tab that is not the same; empty: there is none
	departed bool   // left, or never comes back
	history  []*entry
}

// The results of a lease, as the shop has received them.
const (
	Sold      = "sold"
	Abandoned = "abandoned"
	Refused   = "refused"
)

// New returns a checker.
func New(o Options) *Checker {
	return &Checker{opts: o, users: map[string]*user{}, leases: map[string]string{}, problems: map[string]bool{}}
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

// Arrived says that a user with a habit arrives.
func (c *Checker) Arrived(name string, h Habit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	u.habit = h
	u.note("arrives")
}

// Connected says that a connection of a user has a place.
func (c *Checker) Connected(name, connection string, index int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	delete(u.shown, connection)
	u.note("%s has the index %d", connection, index)
	switch u.index {
	case 0:
		u.index = index
	case index:
		c.report.Reconnects++
	default:
		if c.opts.Restores && index == u.entered && index < u.index {
			u.entered, u.index = 0, index
			return
		}
		if u.entered > 0 {
			c.problem("%s has three places: %d, %d, then %d", name, u.entered, u.index, index)
		}
		u.entered, u.index = u.index, index
	}
}

// Drawn says the places of all users in a draw, from 1.
func (c *Checker) Drawn(places map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places = places
}

// Position says that a connection of a waiting user was shown a position. asOf is its time by the
// server's clock. ahead is negative before a draw.
func (c *Checker) Position(name, connection string, ahead, asOf int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	u.noted(connection, ahead, asOf)
	if ahead >= 0 {
		if before, ok := u.shown[connection]; ok && ahead > before {
			c.problem("%s was shown %d users ahead, then %d", name, before, ahead)
		}
		u.shown[connection] = ahead
	}
	if c.opts.Absence > 0 && u.waiting > 0 && asOf-u.waiting > c.opts.Absence.Milliseconds() {
		u.absent = true
	}
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
	u.until = max(u.until, until)
	if u.jti == jti {
		return false
	}
	if u.jti != "" && u.result == "" && u.end == "" {
		c.problem("%s has two leases: %s, then %s", name, u.jti, jti)
	}
	u.jti, u.until, u.notified, u.result = jti, until, until-c.opts.TokenTTL.Milliseconds(), ""
	c.leases[jti] = name
	u.note("has received the lease %s, which was claimed at %s", jti, time.UnixMilli(u.notified).UTC().Format(clock))
	return true
}

// Sends says that the shop sends the result of a user's lease at a time of the server. It is called
// again when the shop repeats it.
func (c *Checker) Sends(name string, at int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	u.sent = at
	u.note("the shop sends the result")
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
	u.note("the shop: %s", result)
	if result == Refused {
		c.over = append(c.over, u)
	}
}

// Replayed says that a second session has presented the token of a user.
func (c *Checker) Replayed(name string, accepted bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Replays++
	if accepted && !c.opts.Loses {
		c.problem("a second session was accepted with the token of %s", name)
	}
}

// Departed says that a user leaves, or closes the page for good.
func (c *Checker) Departed(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	u.departed = true
	u.note("leaves, or closes the page for good")
}

// Ended says that the stream of a user ended for good, with a reason of the room.
func (c *Checker) Ended(name, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	u := c.user(name)
	u.note("the stream ends: %s", reason)
	switch u.end {
	case "":
		u.end = reason
	case reason:
	default:
		u.then = reason
	}
	if reason == "lease_over" {
		c.over = append(c.over, u)
	}
}

// Closed says that an operator closes the room from now on.
func (c *Checker) Closed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
}

// Lost says that Redis may lose what happened before a time of the server. A promotion that is lost
// before its user is notified is repeated after those of users with a higher index.
func (c *Checker) Lost(before int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = before
}

// Sample checks the limits of the room at one moment.
func (c *Checker) Sample(s room.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.report.Samples++
	c.ended(s)
	leases := s.Ready + s.Admitted
	if s.Capacity < 0 && leases+s.Sold > 0 {
		c.problem("%d users were promoted while the capacity is unknown", leases+s.Sold)
	}
	switch {
	case c.opts.Loses: // the lost writes are restored in addition to what happened meanwhile
	case s.Capacity >= 0 && s.Sold+leases > s.Capacity:
		c.problem("%d sold and %d leases are more than %d seats", s.Sold, leases, s.Capacity)
	case s.Concurrency >= 0 && leases > s.Concurrency:
		c.problem("%d leases are more than %d", leases, s.Concurrency)
	}
}

// ended checks that leases have ended after their time. A sample may be older than the ends that
// were reported since the one before it, so it counts for those before.
func (c *Checker) ended(s room.Status) {
	for _, u := range c.due {
		if s.LastTick < u.until && !c.opts.Loses {
			c.problem("the lease of %s has ended before its time", u.name)
		}
	}
	c.due, c.over = c.over, nil
}

// Report compares everything. last is the room after the end of all users.
func (c *Checker) Report(last room.Status) Report {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended(last)
	c.ended(last) // it is from after all ends
	c.report.Users, c.report.Capacity, c.report.Leases = len(c.users), last.Capacity, last.Ready+last.Admitted
	users := slices.Collect(maps.Values(c.users))
	sorted.By(users, func(a, b *user) int { return cmp.Compare(a.index, b.index) })
	for _, u := range users {
		c.ending(u)
	}
	c.drawn(users)
	c.order(users)
	c.notified(users, last.Promoted)
	if sold := int64(c.report.Sold); sold != last.Sold && !(c.opts.Loses && sold > last.Sold) {
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
	promoted := u.jti != ""
	if promoted {
		c.report.Promoted++
	}
	switch {
	case u.result == Sold && u.habit.buys():
		c.report.Sold++
	case u.result == Abandoned && u.habit == Abandons:
		c.report.Abandoned++
	case u.departed && (u.habit == Vanishes || u.end == "left" || c.opts.Loses):
		if promoted {
			c.report.Abandoned++
		} else {
			c.report.Departed++
		}
	case promoted && u.end == "lease_over" && (u.habit == Expires || u.result == Refused):
		c.report.Expired++
	case !promoted && u.end == "room_closed" && c.closed:
		c.report.Unserved++
	case u.end == "":
		c.problem("%s was promoted or waited, and has no end", u.name)
	default:
		c.problem("%s has lost the place: %s", u.name, u.end)
	}
	if u.then != "" && !c.saleLost(u) {
		c.problem("%s has two ends: %s, then %s", u.name, u.end, u.then)
	}
	if u.result != "" && u.result != Refused && u.end != "" && u.end != u.result && !c.opts.Loses {
		c.problem("%s was %s in the shop, and the stream ended with %s", u.name, u.result, u.end)
	}
}

// saleLost reports whether Redis has lost the sale of a user after a tab had received it. The other
// tab then has the lease until the end of its time.
func (c *Checker) saleLost(u *user) bool {
	return c.opts.Loses && u.habit == HasTwoTabs && u.end == Sold && u.result == Sold && u.then == "lease_over" && u.sent > 0 && u.sent <= c.lost
}

// drawn checks that only users of the draw have received another place, and that it is the drawn
// one.
func (c *Checker) drawn(users []*user) {
	var cut int64 // index before the first place
	for _, u := range users {
		place, ok := c.places[u.name]
		switch {
		case u.entered == 0:
		case !ok:
			c.problem("%s has two places: %d, then %d", u.name, u.entered, u.index)
		case cut == 0:
			cut = u.index - int64(place)
		case u.index != cut+int64(place):
			c.problem("%s has the index %d, and the drawn one is %d", u.name, u.index, cut+int64(place))
		}
	}
}

// notified checks that no user was promoted without a notification, except one that has departed.
func (c *Checker) notified(users []*user, promoted int64) {
	notified := int64(len(c.leases))
	for _, u := range users {
		if u.departed && u.jti == "" {
			notified++
		}
	}
	if promoted > notified && c.opts.Absence == 0 {
		c.problem("%d users were promoted, and %d were notified or had departed", promoted, notified)
	}
}

// order checks that no user still waited after a user with a higher index was notified.
func (c *Checker) order(users []*user) {
	var first *user // the one with a higher index that was notified first
	for _, u := range slices.Backward(users) {
		if first != nil && u.waiting > first.notified && !u.absent {
			c.problem("%s was overtaken by %s", u.name, first.name)
		}
		if u.notified > c.lost && (first == nil || u.notified < first.notified) {
			first = u
		}
	}
}
