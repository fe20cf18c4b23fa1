package room

import (
	"bytes"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/waitingroom/shuffle"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// drawPlan is what a dispatcher has read of a frozen pre-queue. It stores its parts later.
type drawPlan struct {
	lots
	drawn int
}

// preQueue begins a pre-queue. Without seconds it has no schedule.
func (h *history) preQueue(seconds int64) {
	c := Change{Verb: Open, Mode: new(Shuffle)}
	if seconds > 0 {
		c.OpensAt = new(h.now/1000 + seconds*1000)
	}
	h.control(c)
}

// committed is the commitment that an operator gets. It stays the same.
func (h *history) committed(text string) {
	if before := h.m.commitment; text == "" || before != "" && before != text {
		h.fault("the commitment was %q and is %q", before, text)
	}
	h.m.commitment = text
}

// froze notes the order that follows from the secret and the users of the pre-queue.
func (h *history) froze() {
	secret, err := h.client.HGet(h.ctx, h.key("ROOM"), "secret").Result()
	h.must(err)
	if got := shuffle.Commitment(secret).String(); got != h.m.commitment {
		h.fault("the secret has the hash %s, and %s was published", got, h.m.commitment)
	}
	h.m.shuffle(h.event, secret)
	h.logf("the pre-queue is frozen at %d: %v", h.m.cut, h.m.places)
}

// plan is a dispatcher that reads the frozen pre-queue.
func (h *history) plan(dispatcher int) {
	if h.m.state != drawing {
		return
	}
	room, err := h.rooms.shuffled(h.ctx, h.event)
	h.must(err)
	all, err := h.rooms.lots(h.ctx, h.event, room)
	h.must(err)
	h.logf("dispatcher %d plans %v from %d", dispatcher, all.users, h.m.drawn)
	if !slices.Equal(all.users, h.m.places) {
		h.fault("the plan is %v, and the order %v", all.users, h.m.places)
	}
	h.plans[dispatcher] = &drawPlan{all, h.m.drawn}
}

// part is a dispatcher that stores the next part of its plan, which may be old.
func (h *history) part(dispatcher, most int) {
	if h.plans[dispatcher] == nil {
		h.plan(dispatcher)
	}
	p := h.plans[dispatcher]
	if p == nil {
		return
	}
	before := h.m.drawn
	drawn, err := h.rooms.part(h.ctx, h.event, p.lots, p.drawn, most)
	if h.m.state != drawing || p.digest != h.m.digest || p.cut != strconv.FormatInt(h.m.cut, 10) {
		h.sameError(err, ErrConflict)
		h.plans[dispatcher] = nil
		return
	}
	h.must(err)
	h.m.part(p.drawn, most)
	h.logf("dispatcher %d draws from %d: %d are drawn", dispatcher, p.drawn, drawn)
	if drawn != h.m.drawn {
		h.fault("%d are drawn, and %d of the model", drawn, h.m.drawn)
	}
	p.drawn = drawn
	h.drew(before)
}

// draw is a dispatcher that draws all that is left.
func (h *history) draw() {
	want, before := 0, h.m.drawn
	if h.m.state == drawing {
		want = len(h.m.places)
		h.m.part(before, want)
	}
	got, err := h.other.Draw(h.ctx, h.event)
	h.must(err)
	if got.Users != want {
		h.fault("%d are drawn, and %d of the model", got.Users, want)
	}
	if h.m.state != drawing && want > 0 {
		h.logf("all are drawn")
	}
	h.drew(before)
}

// drew notes the new indexes of users. After the last part it checks the audit.
func (h *history) drew(before int) {
	for i, u := range h.m.places[before:h.m.drawn] {
		h.newest[u] = max(h.newest[u], h.m.cut+int64(before+i+1))
	}
	if h.m.state == drawing || before == h.m.drawn {
		return
	}
	h.draws++
	a, err := h.rooms.Shuffle(h.ctx, h.event)
	h.must(err)
	var file bytes.Buffer
	h.must(a.Write(&file))
	a, err = shuffle.Read(&file)
	h.must(err)
	h.must(a.Verify())
	if a.Commitment != h.m.commitment || !slices.Equal(a.Order, h.m.hashes) {
		h.fault("the audit has the commitment %s and the order %v, not %s and %v", a.Commitment, a.Order, h.m.commitment, h.m.hashes)
	}
}

// A failover loses the freeze. A dispatcher that stood still stores a part of it after the next
// one, which has another user.
func TestAPartOfALostFreezeChangesNothing(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		h := newHistoryEnv(t, s).newHistory(t, func(*Options) {})
		defer h.clear()
		h.preQueue(0)
		a := h.brokers[0]
		for _, user := range h.users[:3] {
			h.enter(user, a, 0)
		}
		h.replicate()
		h.control(Change{Verb: Open})
		h.tick()
		h.advance(sec)
		h.tick()
		h.plan(0)
		h.failover()
		h.enter("u4", a, 0)
		h.control(Change{Verb: Open})
		h.pass(18_000)
		require.Equal(t, drawing, h.m.state)
		h.part(0, 3)
		require.Zero(t, h.m.drawn)
		h.compare()
		h.check()
		h.draw()
		require.Len(t, h.m.waiting, 4)
		h.compare()
		h.check()
	})
}
