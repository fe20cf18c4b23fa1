package room

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace-io/millrace/plugins/redis"
)

// MaxInterval bounds the time between two ticks, and between two reads of their tables. A table
// expires after 10 s. Brokers must see the pause after an outage within its 10 s.
const MaxInterval = 3 * time.Second

// Tick is the result of one call of Store.Tick.
type Tick struct {
	Ran      bool // false: the last tick was a moment ago
	Promoted int
	Ended    map[State]int // leases
	Removed  int           // waiting users that were absent, or whose room was closed
	Aside    int           // bad records that were set aside
	More     bool          // the caller calls again at once
	Gap      time.Duration // not 0: there were no ticks for that long, and leases end later
	Hold     time.Duration // rest of the time without promotions and removals after an outage
	Rewound  bool          // another server, or a clock that went back: writes may be lost
	Cleared  bool          // the keys were removed
	Table    *Table        // nil when Ran is false or Cleared is true
}

// Tick ends leases, removes absent users and promotes users. Each process may call it at any time.
// It does nothing when the last tick was less than 0.9 intervals ago. Without a room it takes the
// event off the set of events and returns ErrUnknown. With redis.ErrNotReplicated the tick has run,
// and its result is returned.
//
// While there are fewer replicas than Options.Replicas, no user is promoted: the users in front get
// no token, and those behind would overtake them. The time of the room stands still, so no turn
// ends.
func (r *Store) Tick(ctx context.Context, event string) (Tick, error) {
	if missing := r.missing(ctx, event); missing != nil {
		c := r.call("tick", event, r.tickArgs(event, 0)...)
		values, _, err := r.takeReply(ctx, "tick", event, c, r.server.Do(ctx, c))
		if err == nil {
			err = missing
		}
		return r.ticked(ctx, event, values, err)
	}
	values, _, late := r.runScript(ctx, "tick", event, r.tickArgs(event, r.opts.PromoteBatch)...)
	return r.ticked(ctx, event, values, late)
}

// missingFor is the time for which a node is expected to have too few replicas again. Each wait for
// them takes Options.ReplicaWait, and the node may have thousands of events.
const missingFor = time.Second

// missing returns redis.ErrNotReplicated when the node of an event has too few replicas.
func (r *Store) missing(ctx context.Context, event string) error {
	if r.opts.Replicas == 0 {
		return nil
	}
	node := r.server.Node(ctx, roomKey(event))
	r.mu.Lock()
	known := time.Since(r.alone[node]) < r.missingFor
	r.mu.Unlock()
	if known {
		return redis.ErrNotReplicated
	}
	err := r.replicas(ctx, event)
	if !errors.Is(err, redis.ErrNotReplicated) {
		return nil
	}
	r.mu.Lock()
	r.alone[node] = time.Now()
	r.mu.Unlock()
	return err
}

// tickArgs returns the arguments of the script.
func (r *Store) tickArgs(event string, batch int) []any {
	r.mu.Lock()
	known := r.ticks[event]
	r.mu.Unlock()
	nonce := make([]byte, 12)
	_, _ = rand.Read(nonce) // it never fails
	return []any{batch, hex.EncodeToString(nonce), known, r.opts.ClearAfter.Milliseconds(), flag(r.opts.CloseSoldOut), r.opts.Instance}
}

// Ticked is what Tick returns.
type Ticked struct {
	Tick
	Err error
}

// Ticks is Tick for several events of one node. It sends one pipeline, in which each event has its
// own result. With Options.Replicas each event has a pipeline of its own.
func (r *Store) Ticks(ctx context.Context, events []string) []Ticked {
	list := make([]Ticked, len(events))
	if r.opts.Replicas > 0 || len(events) == 1 {
		for i, event := range events {
			list[i].Tick, list[i].Err = r.Tick(ctx, event)
		}
		return list
	}
	calls := make([]*redis.Call, len(events))
	for i, event := range events {
		calls[i] = r.call("tick", event, r.tickArgs(event, r.opts.PromoteBatch)...)
	}
	_ = r.server.Do(ctx, calls...) // each call has its own error
	for i, event := range events {
		values, _, err := r.takeReply(ctx, "tick", event, calls[i], calls[i].Err())
		list[i].Tick, list[i].Err = r.ticked(ctx, event, values, err)
	}
	return list
}

// ticksMost is how many events without users have one call of Ticks. Their scripts are short: other
// clients of the server wait for all of them.
const ticksMost = 20

// TicksMost returns how many events without users have one call of Ticks.
func (r *Store) TicksMost() int {
	if r.opts.Replicas > 0 {
		return 1
	}
	return ticksMost
}

// ticked reads the values of the script's reply. late is the error of its call.
func (r *Store) ticked(ctx context.Context, event string, values []any, late error) (Tick, error) {
	if err := late; err != nil && !errors.Is(err, redis.ErrNotReplicated) {
		if errors.Is(err, ErrUnknown) {
			err = errors.Join(err, r.drop(ctx, event))
		}
		return Tick{}, err
	}
	if len(values) == 1 {
		return Tick{}, nil // it was too early
	}
	if len(values) != 12 {
		return Tick{}, fmt.Errorf("tick.lua: unexpected reply with %d values", len(values))
	}
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i], _ = v.(string)
	}
	var promoted, expired, abandoned, removed, aside, gap, hold int64
	if err := integers(append(texts[1:6:6], texts[7], texts[8]), &promoted, &expired, &abandoned, &removed, &aside, &gap, &hold); err != nil {
		return Tick{}, fmt.Errorf("tick.lua: %w", err)
	}
	t := Tick{
		Ran: true, Promoted: int(promoted), Ended: map[State]int{Expired: int(expired), Abandoned: int(abandoned)},
		Removed: int(removed), Aside: int(aside), More: texts[6] == "1", Cleared: texts[9] == "1", Rewound: texts[10] == "1",
		Gap: time.Duration(gap) * time.Millisecond, Hold: time.Duration(hold) * time.Millisecond,
	}
	if t.Cleared {
		return t, errors.Join(late, r.drop(ctx, event))
	}
	var err error
	if t.Table, err = table(texts[11]); err != nil {
		return t, err
	}
	r.mu.Lock()
	r.ticks[event] = max(r.ticks[event], t.Table.Tick)
	r.mu.Unlock()
	return t, late
}

// drop takes an event without a room off the set of events. Another process may have created the
// room again in between: then the event stays.
func (r *Store) drop(ctx context.Context, event string) error {
	r.mu.Lock()
	delete(r.ticks, event)
	r.mu.Unlock()
	if err := r.server.Do(ctx, redis.Command("SREM", roomsKey, event)); err != nil {
		return err
	}
	exists := redis.Command("HEXISTS", roomKey(event), "state")
	if err := r.server.Do(ctx, exists); err != nil {
		return err
	}
	if n, err := exists.Int(); err != nil || n == 0 {
		return err
	}
	return r.enlist(ctx, event)
}

// Table has the figures of one tick and the ranks of some indexes: the first 100, some of the
// others, and the last. A broker that sees another epoch sends all its signs at once. The times are
// in ms of the server's clock.
type Table struct {
	AsOf     int64  `json:"asOf"`
	Tick     int64  `json:"tick"`  // number of the tick
	Epoch    int64  `json:"epoch"` // another one: a recovery began
	State    string `json:"roomState"`
	Waiting  int64  `json:"waiting"`
	Served   int64  `json:"served"` // the highest index that was promoted
	Free     int64  `json:"free"`   // slots
	Ready    int64  `json:"ready"`
	Admitted int64  `json:"admitted"`
	Sold     int64  `json:"sold"`
	Capacity int64  `json:"capacity"` // -1: unknown
	// Concurrency and PerMinute limit the promotion. -1: no limit, also in the mode pass-through.
	Concurrency int64 `json:"concurrency"`
	PerMinute   int64 `json:"perMinute"`
	Hold        int64 `json:"hold"` // rest of the pause after a recovery in ms
	// Flow is how users keep their slots: for each tenth of the time of a lease how many leases
	// ended early in it, then how many seconds leases were in it, then the sales and all ends.
	Flow []float64 `json:"flow"`
	// Ends are how many ms are left of the leases, in order. With more than 50 leases they are
	// samples at equal distances.
	Ends      []int64 `json:"ends"`
	TokenTime int64   `json:"tokenTime"` // length of a claimed lease in ms
	ReadyTime int64   `json:"readyTime"` // of one that is not claimed
	OpensAt   int64   `json:"opensAt"`   // 0: no schedule
	Cut       int64   `json:"cut"`       // indexes up to it are from before the draw
	// Commitment is the hash of the secret of the shuffle. It is empty without a shuffle.
	Commitment string     `json:"commitment"`
	Message    string     `json:"message"` // for all users
	Ranks      [][2]int64 `json:"ranks"`   // index and rank

	forecast func() forecast // of all users; nil: not shared
}

func table(text string) (*Table, error) {
	t := &Table{}
	if err := json.Unmarshal([]byte(text), t); err != nil {
		return nil, fmt.Errorf("rank table: %w", err)
	}
	t.forecast = sync.OnceValue(func() forecast { return newForecast(t) })
	return t, nil
}

// Tables returns the table of each event, in one pipeline. It is nil when there was no tick for
// 10 s.
func (r *Store) Tables(ctx context.Context, events []string) ([]*Table, error) {
	calls := make([]*redis.Call, len(events))
	for i, event := range events {
		calls[i] = redis.Command("GET", TableKey(event))
	}
	err := r.server.Do(ctx, calls...)
	tables := make([]*Table, len(events))
	for i, c := range calls {
		text, failed := c.Text()
		if failed == nil && text != "" {
			tables[i], failed = table(text)
			err = errors.Join(err, failed)
		}
	}
	return tables, err
}
