package room

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"
)

// step is one action of a history.
type step struct {
	kind            string
	user, broker, n int
}

var kinds = weighted(map[string]int{
	"enter": 10, "return": 6, "close a tab": 3, "leave": 2, "kick": 1, "signs": 3, "late claim": 2, "answers arrive": 3,
	"verify": 4, "extend": 3, "sell": 4, "abandon": 2, "tick": 6, "pass": 14, "no ticks": 2, "no server": 3, "restart": 1,
	"replicate": 4, "failover": 2, "replica stops": 2, "replica returns": 3, "cut off": 2, "heal": 3, "crash": 2,
	"capacity": 2, "concurrency": 1, "per minute": 1, "mode": 1, "hold": 1, "resume": 2, "open": 3, "drain": 1, "close": 1, "schedule": 1,
	"pre-queue": 2, "plan a draw": 2, "draw a part": 8, "draw": 2, "dispatcher crashes": 1,
})

func weighted(of map[string]int) (list []string) {
	for _, kind := range slices.Sorted(maps.Keys(of)) {
		for range of[kind] {
			list = append(list, kind)
		}
	}
	return list
}

func newStep(t *rapid.T) step {
	return step{kinds[uniform(t, len(kinds))], uniform(t, 5), uniform(t, brokers), uniform(t, 10)}
}

// uniform draws a number below n. The numbers of rapid are mostly small.
func uniform(t *rapid.T, n int) (v int) {
	for range 8 {
		if v *= 2; rapid.Bool().Draw(t, "bit") {
			v++
		}
	}
	return v % n
}

func (h *history) take(s step) {
	user, b := h.users[s.user%len(h.users)], h.brokers[s.broker]
	switch s.kind {
	case "enter":
		h.enter(user, b, 0)
	case "return":
		h.enter(user, b, h.cursor[user])
	case "close a tab":
		h.closeTab(user, b)
	case "leave":
		if !b.cut {
			h.leave(user, "left")
		}
	case "kick":
		h.leave(user, "kicked")
	case "signs":
		h.signs(b, false, b.users()...)
	case "late claim":
		if t := b.tabs[user]; t != nil && !b.cut {
			if p, ok := h.claim(user, b); ok {
				b.claims = append(b.claims, lateClaim{user, t.index, p})
			}
		}
	case "answers arrive":
		for _, c := range b.claims {
			h.claimed(b, c)
		}
		b.claims = nil
	case "verify":
		h.verify(s.n, b.name)
	case "extend":
		h.extend(s.n, b.name, int64(10*(s.user-1)))
	case "sell", "abandon":
		h.finish(s.n, []string{b.name, b.name, b.name, ""}[s.user%4], s.kind == "sell")
	case "tick":
		h.tick()
		if s.n%2 == 0 {
			h.tick() // the other dispatcher, at the same moment
		}
	case "pass":
		h.pass([]int64{1, 50, 300, 900, 1000, 2000, 4000, 8000, 18000, 30000}[s.n])
	case "no ticks":
		h.logf("no ticks")
		for range 1 + s.n {
			h.advance(2 * sec)
			h.periodic()
		}
	case "no server":
		h.noServer([]int64{1, 2, 4, 8, 12, 16, 20, 30, 180, 900}[s.n])
	case "restart":
		h.logf("the server restarts")
		h.run++
		h.advance(sec / 2)
		h.reconnect()
	case "replicate":
		if h.replica != nil && !h.stopped() {
			h.logf("the replica has everything")
			h.replicate()
		}
	case "failover":
		h.failover()
	case "cut off":
		h.cutOff(b)
	case "heal":
		h.heal(b)
	case "crash":
		h.crash(b)
	case "plan a draw":
		h.plan(s.n % 2)
	case "draw a part":
		h.part(s.n%2, 1+s.n%3)
	case "draw":
		h.draw()
	case "dispatcher crashes":
		h.plans[s.n%2] = nil
	case "replica stops":
		h.stopReplica(s.n % 3)
	case "replica returns":
		h.returnReplica()
	default:
		h.operate(s)
	}
}

func (h *history) closeTab(user string, b *broker) {
	if b.tabs[user] != nil {
		h.logf("%s closes the tab on %s", user, b.name)
		h.signs(b, true, user)
		delete(b.tabs, user)
	}
}

func (h *history) noServer(seconds int64) {
	h.logf("no server for %d s", seconds)
	h.advance(seconds * sec)
	h.reconnect()
}

func (h *history) cutOff(b *broker) {
	h.logf("%s is cut off", b.name)
	b.cut = true
}

func (h *history) heal(b *broker) {
	if b.cut {
		h.logf("%s is back", b.name)
		b.cut, b.signed = false, 0
	}
}

// crash ends a broker. The next one with its name has no connections.
func (h *history) crash(b *broker) {
	h.logf("%s crashes", b.name)
	*b = broker{name: b.name, tabs: map[string]*tab{}, cut: b.cut}
}

func (b *broker) users() []string { return slices.Sorted(maps.Keys(b.tabs)) }

// receive is an answer about a user that reaches a broker.
func (h *history) receive(b *broker, user string, p Place) {
	switch p.State {
	case Waiting, Ready, Admitted:
		t := b.tabs[user]
		if t == nil {
			t = &tab{}
			b.tabs[user] = t
		}
		if t.index != p.Index {
			t.looked = 0
		}
		claimed := !p.Unreplicated || t.jti == p.JTI && t.until == p.Until
		t.index, t.jti, t.until, t.unsure = p.Index, "", 0, !claimed || p.State == Ready
		h.cursor[user] = p.Index
		if p.State == Admitted && claimed {
			t.jti, t.until = p.JTI, p.Until
			if one := (token{user, p.JTI}); !slices.Contains(h.tokens, one) {
				h.tokens = append(h.tokens, one)
			}
		}
	default:
		delete(b.tabs, user)
	}
}

func (h *history) enter(user string, b *broker, cursor int64) {
	if b.cut {
		return
	}
	got, err := h.rooms.Enter(h.ctx, h.event, user, b.name, cursor)
	h.logf("%s enters on %s with %d: %s", user, b.name, cursor, shown(got))
	want, refused := h.m.enter(user, cursor)
	h.same(got, want)
	h.sameError(err, refused)
	if err != nil {
		return
	}
	if got.How == "new" {
		if other := h.given[got.Index]; other != "" {
			h.fault("the index %d of %s is given to %s", got.Index, other, user)
		}
		h.given[got.Index] = user
		h.newest[user] = max(h.newest[user], got.Index)
	}
	h.back(user, got)
	h.alive[user] = h.m.ms()
	h.receive(b, user, got)
	if got.State == Ready { // the broker claims at once
		if p, ok := h.claim(user, b); ok {
			h.claimed(b, lateClaim{user, got.Index, p})
		}
	}
}

// back notes the index of a user who was restored: it may be a new one.
func (h *history) back(user string, p Place) {
	if p.How == "restored" {
		h.newest[user] = max(h.newest[user], p.Index)
	}
}

// signs sends signs of life.
func (h *history) signs(b *broker, gone bool, users ...string) {
	if b.cut || len(users) == 0 {
		return
	}
	list := make([]Sign, len(users))
	for i, u := range users {
		list[i] = Sign{User: u, Index: b.tabs[u].index, JTI: b.tabs[u].jti, Until: b.tabs[u].until, Gone: gone}
	}
	got, err := h.rooms.Seen(h.ctx, h.event, b.name, list)
	h.must(err)
	if len(got) != len(list) {
		h.fault("%d answers to %d signs", len(got), len(list))
		return
	}
	for i, s := range list {
		want := h.m.seen(s)
		if gone || got[i].How != "attached" {
			h.logf("sign of %s from %s at %d %s, gone %t: %s", s.User, b.name, s.Index, s.JTI, gone, shown(got[i]))
		}
		h.same(got[i], want)
		if got[i].How == "restored" && got[i].State == Admitted { // a failover had lost the lease
			h.mayExceed = true
			if h.o.Replicas > 0 {
				h.fault("the replica has not the claim of %s, whose token was shown", s.User)
			}
		}
		h.back(s.User, got[i])
		h.alive[s.User] = h.m.ms()
		h.receive(b, s.User, got[i])
	}
	if !gone { // those of all users
		b.signed = h.now
	}
}

// claim returns no answer while the replica does not have it.
func (h *history) claim(user string, b *broker) (Place, bool) {
	runs := h.o.Replicas == 0 || h.acks.left != 0 // otherwise the call before it fails
	got, err := h.rooms.Claim(h.ctx, h.event, b.name, []Sign{{User: user}})
	var want Place
	if runs {
		want = h.m.claim(user)
	}
	if !h.answered(err) {
		h.logf("%s claims for %s: no answer", b.name, user)
		return Place{}, false
	}
	if len(got) != 1 {
		h.fault("%d answers to a claim", len(got))
		return Place{}, false
	}
	h.logf("%s claims for %s: %s", b.name, user, shown(got[0]))
	h.same(got[0], want)
	return got[0], true
}

// claimed is the answer to a claim that reaches a broker. It counts only at the same index, and a
// place that is missing is a case for a sign.
func (h *history) claimed(b *broker, c lateClaim) {
	t := b.tabs[c.user]
	switch {
	case t == nil || t.index != c.index:
	case c.answer.State == "":
		b.signed = 0
	default:
		h.receive(b, c.user, c.answer)
	}
}

func (h *history) leave(user, reason string) {
	_, err := h.rooms.Leave(h.ctx, h.event, user, reason)
	if want := h.m.leave(user, reason); want != nil {
		h.logf("%s is not %s: %v", user, reason, err)
		h.sameError(err, want)
		return
	}
	answered := h.answered(err)
	h.logf("%s is %s, answered %t", user, reason, answered)
	h.truth.end(user, h.newest[user], answered)
}

func (h *history) verify(n int, by string) {
	if len(h.tokens) == 0 {
		return
	}
	k := h.tokens[len(h.tokens)-1-n%len(h.tokens)]
	_, err := h.rooms.Verify(h.ctx, h.event, k.user, k.jti, by)
	h.logf("shop %s verifies %s: %v", by, k.jti, err)
	want := h.m.verify(k.user, k.jti, by)
	if h.o.Replicas > 0 && errors.Is(want, ErrEnded) && h.m.ended[k.jti].state == "" {
		h.fault("%s was shown, has not ended, and is refused", k.jti)
	}
	if want == nil && !h.answered(err) {
		return
	}
	h.sameError(err, want)
	if err != nil {
		return
	}
	if before := h.truth.session[k.jti]; before != "" && before != by {
		h.fault("%s was verified for %s, and now for %s", k.jti, before, by)
	}
	h.truth.session[k.jti] = by
}

// extend asks for an end that is some seconds after the one that the lease has. The shop may repeat
// it.
func (h *history) extend(n int, by string, seconds int64) {
	if len(h.tokens) == 0 {
		return
	}
	k := h.tokens[len(h.tokens)-1-n%len(h.tokens)]
	until := h.now/1000 + seconds*1000
	if l := h.m.leases[k.user]; l != nil && l.jti == k.jti {
		until += l.until - h.m.ms()
	}
	for range 1 + n%2 {
		got, err := h.rooms.Extend(h.ctx, h.event, k.user, k.jti, by, until)
		h.logf("shop %s extends %s to %d: %s %v", by, k.jti, until, shown(got), err)
		want := h.m.extend(k.user, k.jti, by, until)
		if want == nil && !h.answered(err) {
			continue
		}
		h.sameError(err, want)
		if want != nil || err != nil {
			continue
		}
		h.same(got, h.m.place(k.user, ""))
		end := got.Until - h.m.late()
		if end-h.m.ms() > h.o.MaxTurn.Milliseconds() {
			h.fault("%s ends in %d ms, more than a turn may take", k.jti, end-h.m.ms())
		}
		h.truth.until[k.jti] = max(h.truth.until[k.jti], end)
	}
}

func (h *history) finish(n int, by string, sold bool) {
	if len(h.tokens) == 0 {
		return
	}
	k := h.tokens[len(h.tokens)-1-n%len(h.tokens)]
	got, err := h.rooms.Finish(h.ctx, h.event, k.user, k.jti, by, sold)
	h.logf("shop %q finishes %s, sold %t: %s %v", by, k.jti, sold, got.State, err)
	index := indexOf(k.jti)
	want, refused := h.m.finish(k.user, k.jti, by, index, sold)
	if refused != nil {
		h.sameError(err, refused)
		return
	}
	answered, late := h.answered(err), strings.HasPrefix(got.How, "late")
	if late && !answered {
		h.truth.unsure[k.jti] = got.State
	}
	if answered {
		late = late || got.How == "again" && h.truth.unsure[k.jti] == got.State
		if session := h.truth.session[k.jti]; session != "" && session != by {
			h.fault("%s was verified for %s, and is finished by %q", k.jti, session, by)
		}
		if by != "" && got.How != "again" {
			h.truth.session[k.jti] = by
		}
		if got.State != want {
			h.fault("finished as %s, not %s", got.State, want)
		}
		if before := h.truth.result[k.jti]; before != "" && before != got.State && !late || before == Sold && got.State != Sold {
			h.fault("%s was finished as %s, and now as %s", k.jti, before, got.State)
		}
		h.truth.result[k.jti] = got.State
	}
	if h.closed[k.jti] == 0 {
		h.closed[k.jti] = index
		// After a late sale, or a failover that lost it, the newest index is still good.
		if !strings.HasPrefix(got.How, "late") && index > h.over(k.user) && h.newest[k.user] <= h.m.last {
			h.closed[k.jti] = h.newest[k.user]
		}
	}
	h.truth.end(k.user, h.closed[k.jti], answered)
}

func indexOf(jti string) (index int64) {
	text, _, _ := strings.Cut(jti, "-")
	_, _ = fmt.Sscan(text, &index)
	return index
}

// pass lets time pass while all parts work.
func (h *history) pass(ms int64) {
	h.logf("%d ms pass", ms)
	for ms > 0 {
		part := min(ms, 2000)
		h.advance(part * 1000)
		ms -= part
		h.periodic()
		h.tick()
		h.look()
	}
}

// periodic sends the signs of life that are due.
func (h *history) periodic() {
	for _, b := range h.brokers {
		if h.now-b.signed >= h.o.SeenInterval.Microseconds() {
			h.signs(b, false, b.users()...)
		}
	}
}

// reconnect makes all signs due: brokers send them when the connection to the server comes back.
func (h *history) reconnect() {
	for _, b := range h.brokers {
		b.signed = 0
	}
}

// look is what brokers do with a new rank table: they claim for the users that it has passed.
func (h *history) look() {
	tables, err := h.rooms.Tables(h.ctx, []string{h.event})
	h.must(err)
	if err != nil || tables[0] == nil {
		return
	}
	table := tables[0]
	for _, b := range h.brokers {
		if b.cut {
			continue
		}
		if table.Epoch != b.epoch {
			b.epoch = table.Epoch
			h.signs(b, false, b.users()...)
		}
		for _, u := range b.users() {
			t := b.tabs[u]
			if t.jti == "" && (t.unsure || t.index <= table.Served && table.Ordered(t.index)) {
				if p, ok := h.claim(u, b); ok {
					h.claimed(b, lateClaim{u, t.index, p})
				}
			}
			t.looked = h.m.ms()
		}
	}
}

var historyOptions = Options{
	PromoteInterval: time.Second, PromoteBatch: 2, TokenTTL: 30 * time.Second, MaxTurn: 70 * time.Second, ReadyTTL: 20 * time.Second, Grace: 4 * time.Second,
	SeenInterval: 12 * time.Second, ClearAfter: time.Hour, MaxEvents: 1 << 20,
}
