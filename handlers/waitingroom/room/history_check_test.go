package room

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

func (h *history) logf(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf("%3d %9.3fs ", len(h.log), float64(h.now-h.begin)/1e6)+fmt.Sprintf(format, args...))
}

func (h *history) fault(format string, args ...any) {
	h.faults = append(h.faults, fmt.Sprintf(format, args...))
}

// check ends the history when something is wrong.
func (h *history) check() {
	if len(h.faults) > 0 {
		h.t.Fatalf("%s\n\n%s", strings.Join(h.faults[:min(len(h.faults), 6)], "\n"), strings.Join(h.log, "\n"))
	}
}

// must is for what has no reason to fail.
func (h *history) must(err error) {
	if err != nil {
		h.fault("%v", err)
	}
}

func shown(p Place) string {
	if p.State == "" {
		return fmt.Sprintf("no place (%s)", p.Reason)
	}
	return fmt.Sprintf("%s %s at %d until %d %s", p.How, p.State, p.Index, p.Until, p.JTI)
}

// same compares an answer with that of the model.
func (h *history) same(got, want Place) {
	if got.State != want.State || got.State != "" && (got.Index != want.Index || got.JTI != want.JTI || got.Until != want.Until || got.How != want.How) ||
		got.State == "" && got.Reason != want.Reason {
		h.fault("the answer is %s, and that of the model %s", shown(got), shown(want))
	}
}

func (h *history) sameError(got, want error) {
	if want == nil && got != nil || want != nil && !errors.Is(got, want) {
		h.fault("the error is %v, and that of the model %v", got, want)
	}
}

// tick runs one, and checks what it changed.
func (h *history) tick() {
	before := h.load()
	dispatcher := []*Store{h.rooms, h.other}[h.ticks%2]
	h.ticks++
	batch := h.o.PromoteBatch
	if h.o.Replicas > 0 && h.stopped() {
		batch = 0
	}
	got, err := dispatcher.Tick(h.ctx, h.event)
	want := h.m.tick(batch)
	if want.froze {
		h.froze()
	}
	after := h.load()
	if got.Ran && (got.Promoted+got.Removed+got.Ended[Expired]+got.Ended[Abandoned] > 0 || got.Gap > 0) {
		h.logf("tick: promoted %d, removed %d, ended %v, gap %s, hold %s", got.Promoted, got.Removed, got.Ended, got.Gap, got.Hold)
	}
	for u, l := range h.m.leases {
		if l.jti == "" {
			l.jti = after.leases[u].jti
		}
	}
	answered := h.answered(err)
	if got.Ran != want.ran || got.Promoted != len(want.promoted) || got.Removed != len(want.removed) || got.Gap.Milliseconds() != want.gap || got.Rewound != want.rewound {
		h.fault("the model's tick: %+v", want)
	}
	if !got.Ran {
		return
	}
	for u, w := range before.waiting {
		if h.m.gone[u].absent == w.index && after.waiting[u].index == 0 && after.leases[u].jti == "" {
			h.absence(u)
		}
		if h.m.state == closed && h.m.gone[u].void >= w.index {
			h.truth.end(u, w.index, answered)
		}
	}
	for u, l := range after.leases {
		if l.until <= h.m.ms() && got.Hold == 0 {
			h.fault("the lease of %s is over since %d", u, l.until)
		}
	}
	for u, l := range before.leases {
		if after.leases[u].jti == l.jti {
			continue
		}
		if l.state == Ready {
			h.turn(u)
		}
		if l.by != "" && after.ended[l.jti].state == Abandoned {
			h.fault("%s was verified for shop %s, and is ended as abandoned", l.jti, l.by)
		}
		if l.state != Ready || want.ended[u] == Abandoned {
			h.truth.end(u, l.index, answered)
		}
	}
	h.promotions(before, after)
	if t := got.Table; t != nil {
		order := slices.SortedFunc(maps.Keys(after.waiting), func(a, b string) int { return int(after.waiting[a].index - after.waiting[b].index) })
		for rank, u := range order {
			if ahead, exact := t.Position(after.waiting[u].index); t.Ordered(after.waiting[u].index) && (!exact || ahead != int64(rank)) {
				h.fault("%s has rank %d, and the table says %d", u, rank, ahead)
			}
		}
		if t.Waiting != int64(len(order)) {
			h.fault("%d users wait, and the table says %d", len(order), t.Waiting)
		}
	}
}

// promotions checks that no user was overtaken.
func (h *history) promotions(before, after *data) {
	var newest int64
	for u, l := range after.leases {
		if before.leases[u].jti != l.jti {
			newest = max(newest, l.index)
			h.ready[u] = h.m.ms()
		}
	}
	if newest == 0 {
		return
	}
	for u, w := range after.waiting {
		if w.index < newest {
			h.fault("%s waits at %d and was overtaken by %d", u, w.index, newest)
		}
	}
	for _, b := range h.brokers {
		for u, t := range b.tabs {
			if b.cut || t.index >= newest || t.index <= h.over(u) || after.leases[u].jti != "" {
				continue
			}
			if w := after.waiting[u]; w.index == 0 || w.index > t.index && t.index > h.m.cut {
				h.fault("%s is connected at %d and was overtaken by %d", u, t.index, newest)
			}
		}
	}
}

// absence checks that a user who was removed gave no sign of life within the grace.
func (h *history) absence(user string) {
	if since := h.m.ms() - h.alive[user]; since < h.o.Grace.Milliseconds() {
		h.fault("%s is removed %d ms after a sign of life", user, since)
	}
	for _, b := range h.brokers { // one without signs is cut off, or signs next
		if t := b.tabs[user]; t != nil && !b.cut && b.signed > 0 && t.index > h.over(user) {
			h.fault("%s is removed, and is connected to %s", user, b.name)
		}
	}
}

// turn checks that a promoted user whose lease ended was not connected all the time.
func (h *history) turn(user string) {
	for _, b := range h.brokers {
		if t := b.tabs[user]; t != nil && !b.cut && t.looked > h.ready[user] {
			h.fault("%s was connected to %s, and lost the turn", user, b.name)
		}
	}
}

// holder is the user of a lease.
func (h *history) holder(jti string) string {
	i := slices.IndexFunc(h.tokens, func(k token) bool { return k.jti == jti })
	return h.tokens[i].user
}

// compare compares the server with the model, and checks what must be true at every step.
func (h *history) compare() {
	d := h.load()
	h.faults = append(h.faults, d.faults...)
	got, want := d.lines(), h.m.data().lines()
	for _, line := range got {
		if !slices.Contains(want, line) {
			h.fault("only the server: %s", line)
		}
	}
	for _, line := range want {
		if !slices.Contains(got, line) {
			h.fault("only the model: %s", line)
		}
	}
	for u, w := range d.waiting {
		if w.index <= h.truth.over[u] {
			h.fault("%s waits at %d, and has ended at %d", u, w.index, h.truth.over[u])
		}
	}
	for u, l := range d.leases {
		if l.until < h.truth.until[l.jti] {
			h.fault("the lease of %s ends at %d, and its shop was told %d", u, l.until, h.truth.until[l.jti])
		}
	}
	sold, purchases := int64(0), map[string]int{}
	for jti, state := range h.truth.result {
		if state == Sold {
			sold++
			purchases[h.holder(jti)]++
		}
	}
	for u, n := range purchases {
		if most := h.o.PurchasesPerUser; most > 0 && n > most || n > d.bought[u] {
			h.fault("%d sales of %s were answered, and %d are stored, of %d", n, u, d.bought[u], most)
		}
	}
	if d.sold < sold {
		h.fault("%d sales were answered, and %d are stored", sold, d.sold)
	}
	excess := max(0, d.sold+int64(len(d.leases))-d.capacity)
	if d.capacity >= 0 && excess > h.excess && !h.mayExceed {
		h.fault("%d sold and %d leases of %d", d.sold, len(d.leases), d.capacity)
	}
	h.excess, h.mayExceed = excess, false
}
