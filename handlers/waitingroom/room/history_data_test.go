package room

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	goredis "github.com/redis/go-redis/v9"
)

// data is what the server has of one event.
type data struct {
	waiting                       map[string]waiter
	leases                        map[string]lease
	ended                         map[string]ended
	gone                          map[string]memory
	bought                        map[string]int
	sold, capacity, last, entries int64
	draw                          string
	faults                        []string // keys that do not agree
}

// lines is the data as text.
func (d *data) lines() (list []string) {
	for u, w := range d.waiting {
		list = append(list, fmt.Sprintf("%s waits at %d, seen at %d", u, w.index, w.seen))
	}
	for u, l := range d.leases {
		list = append(list, fmt.Sprintf("%s is %s at %d until %d as %s for shop %q, extended from %d", u, l.state, l.index, l.until, l.jti, l.by, l.from))
	}
	for jti, e := range d.ended {
		list = append(list, fmt.Sprintf("%s ended %s for shop %q", jti, e.state, e.by))
	}
	for u, g := range d.gone {
		list = append(list, fmt.Sprintf("%s is void up to %d, absent from %d", u, g.void, g.absent))
	}
	for u, n := range d.bought {
		list = append(list, fmt.Sprintf("%s has bought %d", u, n))
	}
	return append(list, fmt.Sprintf("sold %d of %d", d.sold, d.capacity), fmt.Sprintf("last index %d", d.last), fmt.Sprintf("%d entries", d.entries), d.draw)
}

func drawText(state string, cut int64, drawn int, frozen map[string]int64) string {
	return fmt.Sprintf("the room is %s, cut at %d, with %d drawn of %v", state, cut, drawn, frozen)
}

func (m *model) data() *data {
	d := &data{waiting: map[string]waiter{}, leases: map[string]lease{}, ended: map[string]ended{}, gone: m.gone, bought: m.bought, sold: m.sold, capacity: m.capacity, last: m.last, entries: m.entries,
		draw: drawText(m.state, m.cut, m.drawn, m.frozen)}
	for u, w := range m.waiting {
		d.waiting[u] = *w
	}
	for u, l := range m.leases {
		d.leases[u] = *l
	}
	for jti, e := range m.ended {
		d.ended[jti] = e
	}
	return d
}

func (h *history) key(name string) string { return name + ":{" + h.event + "}" }

// load reads the keys of the event, and checks that they agree with each other.
func (h *history) load() *data {
	d := &data{waiting: map[string]waiter{}, leases: map[string]lease{}, ended: map[string]ended{}, gone: map[string]memory{}, bought: map[string]int{}, capacity: -1}
	ctx, pipe := context.Background(), h.client.Pipeline()
	waiting, seen, leases := pipe.ZRangeWithScores(ctx, h.key("WAITING"), 0, -1), pipe.ZRangeWithScores(ctx, h.key("WAITING_SEEN"), 0, -1), pipe.ZRangeWithScores(ctx, h.key("ENTRY_LEASES"), 0, -1)
	frozen := pipe.ZRangeWithScores(ctx, h.key("WAITING_FROZEN"), 0, -1)
	places, ids, records := pipe.HGetAll(ctx, h.key("WAITING_QUEUE_INDEX_RECORD")), pipe.HGetAll(ctx, h.key("WAITING_USER_IDS")), pipe.HGetAll(ctx, h.key("ENTRY_RECORD"))
	over, room := pipe.HGetAll(ctx, h.key("ENTRY_ENDED")), pipe.HGetAll(ctx, h.key("ROOM"))
	left, last, entries := pipe.HGetAll(ctx, h.key("WAITING_LEFT")), pipe.HGet(ctx, h.key("WAITING_QUEUE_IDX"), h.event), pipe.XLen(ctx, h.key("ENTRY"))
	bought := pipe.HGetAll(ctx, h.key("ENTRY_BUYERS"))
	tokens := make([]*goredis.StringCmd, len(h.users))
	for i, u := range h.users {
		tokens[i] = pipe.Get(ctx, h.key("ENTRY_TOKEN")+":"+u)
	}
	if _, err := pipe.Exec(ctx); err != nil && !errors.Is(err, goredis.Nil) {
		h.fault("read the server: %v", err)
	}
	fault := func(format string, args ...any) { d.faults = append(d.faults, fmt.Sprintf(format, args...)) }
	users := func(list []goredis.Z, f func(user string, index int64)) {
		for _, z := range list {
			if user, ok := userOf(z.Member.(string)); ok {
				f(user, int64(z.Score))
			} else {
				fault("member %s", z.Member)
			}
		}
	}
	users(waiting.Val(), func(u string, index int64) { d.waiting[u] = waiter{index: index} })
	cohort := map[string]int64{}
	users(frozen.Val(), func(u string, index int64) {
		cohort[u] = index
		if d.waiting[u].index == 0 && places.Val()[u] != "" {
			d.waiting[u] = waiter{index: index}
		}
	})
	for u, text := range places.Val() {
		var r struct {
			UserID string
			Idx    int64
		}
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.UserID != u || r.Idx != d.waiting[u].index {
			fault("WAITING_QUEUE_INDEX_RECORD of %s is %s, WAITING has %d (%v)", u, text, d.waiting[u].index, err)
		}
	}
	for _, z := range seen.Val() {
		u := z.Member.(string)
		d.waiting[u] = waiter{d.waiting[u].index, int64(z.Score)}
	}
	for u, w := range d.waiting {
		if places.Val()[u] == "" || ids.Val()[u] == "" || w.seen == 0 || w.index == 0 {
			fault("%s waits, but has no place, no record, no id or no sign of life", u)
		}
	}
	if len(places.Val()) != len(d.waiting) || len(ids.Val()) != len(d.waiting) {
		fault("%d users wait, with %d records and %d ids", len(d.waiting), len(places.Val()), len(ids.Val()))
	}
	ends := map[string]int64{}
	for _, z := range leases.Val() {
		ends[z.Member.(string)] = int64(z.Score)
	}
	for u, text := range records.Val() {
		var r struct {
			JTI     string
			Idx     int64
			State   State
			Until   int64
			Started int64
			By      string
		}
		if err := json.Unmarshal([]byte(text), &r); err != nil {
			fault("ENTRY_RECORD of %s is %s: %v", u, text, err)
		}
		d.leases[u] = lease{jti: r.JTI, index: r.Idx, state: r.State, until: ends[u], by: r.By, from: r.Started}
		if ends[u] == 0 || ends[u] != r.Until {
			fault("the lease of %s ends at %d, its record is %s", u, ends[u], text)
		}
		if d.waiting[u].index != 0 {
			fault("%s waits and has a lease", u)
		}
	}
	if len(ends) != len(d.leases) {
		fault("%d leases, and %d records", len(ends), len(d.leases))
	}
	for i, u := range h.users {
		if tokens[i].Val() != d.leases[u].jti {
			fault("ENTRY_TOKEN of %s is %q, and the lease %q", u, tokens[i].Val(), d.leases[u].jti)
		}
	}
	for jti, text := range over.Val() {
		var e struct {
			State State
			By    string
		}
		if err := json.Unmarshal([]byte(text), &e); err != nil {
			fault("ENTRY_ENDED of %s is %s: %v", jti, text, err)
		}
		d.ended[jti] = ended{state: e.State, by: e.By}
	}
	for u, text := range left.Val() {
		var g struct{ Void, Absent int64 }
		if err := json.Unmarshal([]byte(text), &g); err != nil {
			fault("WAITING_LEFT of %s is %s: %v", u, text, err)
		}
		d.gone[u] = memory{void: g.Void, absent: g.Absent}
	}
	for u, text := range bought.Val() {
		d.bought[u], _ = strconv.Atoi(text)
	}
	number := func(to *int64, text string) {
		if text != "" {
			*to, _ = strconv.ParseInt(text, 10, 64)
		}
	}
	number(&d.sold, room.Val()["sold"])
	number(&d.capacity, room.Val()["capacity"])
	number(&d.last, last.Val())
	d.entries = entries.Val()
	var cut, drawn int64
	number(&cut, room.Val()["cut"])
	number(&drawn, room.Val()["drawn"])
	d.draw = drawText(room.Val()["state"], cut, int(drawn), cohort)
	return d
}
