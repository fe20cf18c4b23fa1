package room

import (
	"maps"
	"slices"
	"strings"
)

// model is one event as the documents describe it, without keys and scripts. Times are milliseconds
// of the room's clock, which stands still while there are no ticks.
type model struct {
	o Options

	now      int64 // µs
	run      int   // the run_id of the server
	life           // what an operator decides
	capacity int64 // -1: unknown
	sold     int64
	lastSeat bool // a sale took the last seat, and no operator has changed the capacity or opened the room since

	last     int64 // the newest index
	entries  int64 // promotions
	stopped  int64 // how long the room's clock stood still
	lastTick int64 // of the room's clock
	lastRun  int
	more     bool  // the last tick stopped at the batch
	gap      int64 // of the last recovery, and of those whose hold it made longer
	quiet    int64 // until then no user is promoted or removed, and no lease ends
	waiting  map[string]*waiter
	leases   map[string]*lease
	ended    map[string]ended // by jti
	gone     map[string]memory
	bought   map[string]int // purchases
	forgot   int64          // the highest index that was void and is not remembered
}

type waiter struct{ index, seen int64 }

type lease struct {
	jti   string
	index int64
	state State
	until int64
	by    string // the shop session that it was verified for
	from  int64  // its claim, once it was extended
	gone  int64  // its last connection closed then; 0: it has one
}

type ended struct {
	state State
	at    int64
	user  string
	by    string // the shop session that had it, or ended it
}

// memory is what is remembered of a user: the indexes up to void are useless, and the user may
// come back to the index absent.
type memory struct {
	void, absent int64
	reason       string
	until        int64
}

func newModel(o Options) *model {
	return &model{o: o, capacity: -1, life: newLife(), waiting: map[string]*waiter{}, leases: map[string]*lease{}, ended: map[string]ended{}, gone: map[string]memory{}, bought: map[string]int{}}
}

// clone is what a replica has.
func (m *model) clone() *model {
	c := *m
	c.waiting, c.leases = map[string]*waiter{}, map[string]*lease{}
	for u, w := range m.waiting {
		one := *w
		c.waiting[u] = &one
	}
	for u, l := range m.leases {
		one := *l
		c.leases[u] = &one
	}
	c.ended, c.gone, c.frozen, c.bought = maps.Clone(m.ended), maps.Clone(m.gone), maps.Clone(m.frozen), maps.Clone(m.bought)
	return &c
}

// limit is how far the room's clock goes without a tick.
func (m *model) limit() int64 { return max(5000, 3*m.o.PromoteInterval.Milliseconds()) }

func (m *model) ms() int64 {
	return max(m.lastTick, min(m.now/1000-m.stopped, m.lastTick+m.limit()))
}

// late is how much the room's clock is behind that of the server.
func (m *model) late() int64 { return m.now/1000 - m.ms() }

func (m *model) next() int64 {
	m.last = max(m.last+1, m.now)
	return m.last
}

const (
	hour       = 3_600_000
	tenMinutes = 600_000
)

// raise makes all indexes of the user up to this one useless.
func (m *model) raise(user string, index int64, reason string) {
	g := m.gone[user]
	if index >= g.void {
		g.void, g.reason = index, reason
	}
	if g.absent <= g.void {
		g.absent = 0
	}
	g.until = m.ms() + hour
	m.gone[user] = g
	if w := m.waiting[user]; w != nil && w.index <= g.void {
		delete(m.waiting, user)
	}
}

// leaveBehind makes an index one that the user may come back to.
func (m *model) leaveBehind(user string, index int64, reason string) {
	if g := m.gone[user]; index > g.void {
		m.gone[user] = memory{g.void, index, reason, m.ms() + tenMinutes}
	}
}

func (m *model) place(user, how string) Place {
	p := Place{How: how}
	if l := m.leases[user]; l != nil {
		p.State, p.Index, p.JTI, p.Until = l.state, l.index, l.jti, l.until+m.late()
	} else if w := m.waiting[user]; w != nil {
		p.State, p.Index = Waiting, w.index
	} else {
		p.Reason = m.gone[user].reason
		if p.Reason == "" && m.state == closed {
			p.Reason = m.closedFor
		} else if p.Reason == "" {
			p.Reason = "unknown"
		}
	}
	return p
}

// restore gives a missing user the lowest index that is known and not void. It lowers the index of
// a user who waits with a higher one. Indexes from before the draw count for frozen users alone.
func (m *model) restore(user string, index int64) string {
	if m.leases[user] != nil {
		return "attached"
	}
	g, w := m.gone[user], m.waiting[user]
	absent, own := g.absent > g.void, index > g.void && index > m.forgot
	to := int64(0)
	if absent && (g.absent > m.cut || g.absent == m.frozen[user]) {
		to = g.absent
	}
	if own && index > m.cut && (to == 0 || index < to) {
		to = index
	}
	if index = to; to == 0 && (absent || own) { // it is from before the draw
		index = max(m.last+1, m.now)
	}
	switch {
	case w != nil:
		if index > 0 {
			w.index = min(w.index, index)
		}
		return "attached"
	case index == 0, m.state == closed:
		return ""
	}
	if g.absent > 0 {
		m.gone[user] = memory{g.void, 0, g.reason, m.ms() + hour}
	}
	m.waiting[user] = &waiter{index: index}
	m.last = max(m.last, index)
	return "restored"
}

func (m *model) enter(user string, cursor int64) (Place, error) {
	how := m.restore(user, cursor)
	if how == "" && cursor == 0 {
		if reason := m.refusal(user); reason != "" {
			return Place{Reason: reason}, ErrRejected
		}
		m.waiting[user] = &waiter{index: m.next()}
		how = "new"
	}
	m.sign(user)
	return m.place(user, how), nil
}

// sign is a sign of life.
func (m *model) sign(user string) {
	if w := m.waiting[user]; w != nil {
		w.seen = m.ms()
	}
	if l := m.leases[user]; l != nil {
		l.gone = 0
	}
}

// seen is a sign of life from a broker. It restores a lease that a failover lost.
func (m *model) seen(s Sign) Place {
	until := s.Until - m.stopped
	if m.ms() < m.quiet { // brokers have the end from before the gap
		until += m.gap
	}
	until = min(until, m.ms()+max(m.o.TokenTTL, m.o.MaxTurn).Milliseconds())
	lost := false
	if l := m.leases[s.User]; l != nil && l.state == Ready && l.jti == s.JTI {
		l.state, l.until = Admitted, until
	} else if l == nil && s.JTI != "" && m.ended[s.JTI].state == "" && s.Index > m.gone[s.User].void {
		lost = true
		delete(m.waiting, s.User)
		m.last = max(m.last, s.Index)
		m.leases[s.User] = &lease{jti: s.JTI, index: s.Index, state: Admitted, until: until}
		if g := m.gone[s.User]; g.absent > 0 {
			m.gone[s.User] = memory{g.void, 0, g.reason, m.ms() + hour}
		}
	}
	how := m.restore(s.User, s.Index)
	if lost {
		how = "restored"
	}
	l := m.leases[s.User]
	switch {
	case s.Gone && l != nil:
		if l.by == "" {
			l.gone = m.ms()
		}
	case !s.Gone || l == nil:
		m.sign(s.User)
	}
	return m.place(s.User, how)
}

func (m *model) claim(user string) Place {
	if l := m.leases[user]; l != nil {
		if l.state == Ready {
			l.state, l.until = Admitted, m.ms()+m.o.TokenTTL.Milliseconds()
		}
		l.gone = 0
	}
	return m.place(user, "")
}

// end removes a lease.
func (m *model) end(user string, state State, reason string) {
	l := m.leases[user]
	delete(m.leases, user)
	m.ended[l.jti] = ended{state, m.ms(), user, l.by}
	if l.state == Ready && state == Expired {
		m.leaveBehind(user, l.index, reason)
		return
	}
	m.raise(user, max(l.index, m.last), reason)
}

func (m *model) leave(user, reason string) error {
	if l := m.leases[user]; l != nil && l.by != "" && reason != "kicked" {
		return ErrVerified
	}
	if m.leases[user] != nil {
		m.end(user, Abandoned, reason)
	}
	delete(m.waiting, user)
	m.raise(user, m.next(), reason)
	return nil
}

func (m *model) verify(user, jti, by string) error {
	l := m.leases[user]
	switch {
	case l == nil || l.jti != jti:
		return ErrEnded
	case l.by != "" && l.by != by:
		return ErrUsed
	}
	if l.state == Ready { // the shop has the token, so a failover lost the claim
		l.state, l.until = Admitted, m.ms()+m.o.TokenTTL.Milliseconds()
	}
	l.by, l.gone = by, 0
	return nil
}

// extend moves the end of a lease to a time of the server, within the limit.
func (m *model) extend(user, jti, by string, until int64) error {
	l := m.leases[user]
	switch {
	case l == nil || l.jti != jti:
		return ErrEnded
	case l.by == "":
		return ErrUnverified
	case l.by != by:
		return ErrUsed
	}
	if l.from == 0 {
		l.from = min(m.ms(), l.until-m.o.TokenTTL.Milliseconds())
	}
	l.until = max(l.until, min(until-m.late(), l.from+m.o.MaxTurn.Milliseconds()))
	return nil
}

// free is the number of slots that no lease and no sale takes.
func (m *model) free() int64 {
	if m.capacity < 0 {
		return 0
	}
	return max(0, min(m.limitOfLeases(), m.capacity-m.sold)-int64(len(m.leases)))
}

func (m *model) finish(user, jti, by string, index int64, sold bool) (State, error) {
	want := Abandoned
	if sold {
		want = Sold
	}
	if l := m.leases[user]; l != nil && l.jti == jti {
		if l.by != "" && l.by != by {
			return "", ErrUsed
		}
		l.by = by
		m.end(user, want, strings.ToLower(string(want)))
		if sold {
			m.sell(user)
		}
		return want, nil
	}
	e := m.ended[jti] // none: a failover lost it
	switch {
	case e.by != "" && e.by != by:
		return "", ErrUsed
	case e.state == want:
		return want, nil
	case e.state == Sold, e.state != "" && !sold:
		return "", ErrConflict
	case sold && (m.free() == 0 || m.full(user)):
		return "", ErrConflict
	}
	if sold {
		m.sell(user)
	}
	m.ended[jti] = ended{want, m.ms(), user, by}
	m.raise(user, index, strings.ToLower(string(want)))
	if sold && m.full(user) { // a place or a turn since then is of no use
		_ = m.leave(user, "sold")
	}
	return want, nil
}

// full reports whether a user has no purchase left. A verified turn may become one.
func (m *model) full(user string) bool {
	n := m.bought[user]
	if l := m.leases[user]; l != nil && l.by != "" {
		n++
	}
	return m.o.PurchasesPerUser > 0 && n >= m.o.PurchasesPerUser
}

func (m *model) sell(user string) {
	m.bought[user]++
	m.sold++
	m.lastSeat = m.lastSeat || m.sold == m.capacity
}

// order returns who waits, in the order of promotion.
func (m *model) order() []string {
	users := slices.Collect(maps.Keys(m.waiting))
	slices.SortFunc(users, func(a, b string) int { return int(m.waiting[a].index - m.waiting[b].index) })
	return users
}

// turn is the outcome of a tick.
type turn struct {
	ran      bool
	gap      int64
	rewound  bool
	promoted []string
	removed  []string
	ended    map[string]State
	froze    bool
}

const (
	tickApart  = 900
	quietAfter = 10_000
)

// tick promotes at most batch users.
func (m *model) tick(batch int) turn {
	gap := m.now/1000 - m.stopped - m.lastTick
	again := m.more && gap < tickApart && gap > -tickApart
	if !again && gap < tickApart && gap > -m.limit() {
		return turn{}
	}
	t := turn{ran: true, ended: map[string]State{}}
	now := m.ms()
	t.rewound = -gap >= m.limit() || m.run != m.lastRun
	if t.rewound || gap > m.limit() {
		t.gap = max(0, gap)
		now, again = m.lastTick, false
		if now >= m.quiet {
			m.gap = 0
		}
		m.gap += t.gap
		m.stopped += gap
		m.quiet = now + quietAfter
	} else if batch == 0 && !again { // no replica
		now = m.lastTick
		m.stopped += gap
	}
	m.lastRun, m.more = m.run, false
	if !again {
		if t.gap == 0 && !t.rewound {
			m.earn(max(0, gap))
		}
		m.lastTick = now
		m.schedule()
	}
	if now >= m.quiet {
		m.tidy(now, &t)
	}
	switch {
	case m.state == closed && m.frozen != nil:
		t.removed = append(t.removed, m.closeFrozen()...)
		m.more = true
	case m.state == closed:
		for u, w := range m.waiting {
			m.raise(u, w.index, m.closedFor)
			t.removed = append(t.removed, u)
		}
	case m.state == preQueued && m.opensAt > 0 && m.now/1000 >= m.opensAt && now >= m.quiet:
		m.freeze()
		t.froze = true
	}
	if now < m.quiet || m.state != opened && m.state != draining {
		return t
	}
	able := m.able()
	for _, u := range m.order() {
		if int64(len(t.promoted)) == min(able, int64(batch)) {
			break
		}
		m.leases[u] = &lease{index: m.waiting[u].index, state: Ready, until: now + m.o.ReadyTTL.Milliseconds()}
		m.leases[u].gone = now // until a sign of life
		delete(m.waiting, u)
		t.promoted = append(t.promoted, u)
		m.entries++
	}
	m.spend(len(t.promoted))
	m.more = batch > 0 && len(t.promoted) == batch && able > int64(batch)
	return t
}

// tidy ends leases, removes absent users, and drops what is remembered.
func (m *model) tidy(now int64, t *turn) {
	for u, l := range m.leases {
		switch {
		case l.until <= now:
			t.ended[u] = Expired
			m.end(u, Expired, "lease_over")
		case m.o.Release && l.gone > 0 && now-l.gone >= m.o.SeenInterval.Milliseconds():
			t.ended[u] = Abandoned
			m.end(u, Abandoned, "abandoned")
		}
	}
	for u, w := range m.waiting {
		if now-w.seen >= (m.o.Grace + m.o.SeenInterval).Milliseconds() {
			m.leaveBehind(u, w.index, "grace")
			delete(m.waiting, u)
			t.removed = append(t.removed, u)
		}
	}
	for u, g := range m.gone {
		switch {
		case g.until > now:
		case g.absent > g.void:
			m.gone[u] = memory{g.absent, 0, g.reason, now + hour - tenMinutes}
		default:
			delete(m.gone, u)
			m.forgot = max(m.forgot, g.void)
		}
	}
}
