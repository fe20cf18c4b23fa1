package room

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/plugins/redis"
)

//go:embed lua
var lua embed.FS

// Options are the times and limits of all rooms.
type Options struct {
	PromoteInterval time.Duration // time between two ticks
	PromoteBatch    int           // most promotions of one call of Tick
	TokenTTL        time.Duration // length of a claimed lease
	// MaxTurn is the most time of a lease from its claim, with all extensions by a shop. At most
	// TokenTTL: no lease is extended.
	MaxTurn  time.Duration
	ReadyTTL time.Duration // time in which a lease is claimed
	// Grace is the time without a sign of life after which a waiting user is removed. It gets
	// longer by SeenInterval, the time between two signs.
	Grace, SeenInterval time.Duration
	ClearAfter          time.Duration // time between the end of a room and the removal of its keys
	// Release: a promoted user that has no connection for SeenInterval loses the slot, unless a
	// shop has verified the lease.
	Release bool
	// CloseSoldOut closes a room at the tick after its last seat was sold. A capacity that is lowered
	// to the seats sold closes no room.
	CloseSoldOut bool
	// PurchasesPerUser is how many seats of an event a user may buy before new places are refused. 0:
	// any number. They are counted as long as the room exists.
	PurchasesPerUser int
	MaxEvents        int // maximum number of rooms that Create allows
	// Replicas have a promotion, claim, verification, end or leave before it is answered, or the
	// answer is an error after ReplicaWait. The caller repeats it.
	Replicas    int
	ReplicaWait time.Duration
	Instance    string       // that ticks, for RoomStatus; empty: not known
	Log         *slog.Logger // nil: warnings are not logged
}

// Store has the waiting rooms of all events. Safe for concurrent use.
type Store struct {
	server  *redis.Server
	opts    Options
	create  *redis.Script
	scripts map[string]*redis.Script
	sampled *logs.Throttle

	missingFor time.Duration

	mu    sync.Mutex
	ticks map[string]int64     // event → highest number of a tick that was seen
	alone map[string]time.Time // node → when it had too few replicas
}

// New returns the rooms on a server. It opens no connection.
func New(server *redis.Server, o Options) *Store { return newRooms(server, o) }

// newRooms puts front before each script. Tests control the time with it.
func newRooms(server *redis.Server, o Options, front ...string) *Store {
	r := &Store{
		server: server, opts: o, scripts: map[string]*redis.Script{}, ticks: map[string]int64{}, alone: map[string]time.Time{}, missingFor: missingFor, sampled: logs.NewThrottle(warnEvery),
	}
	read := func(name string) string {
		text, err := lua.ReadFile("lua/" + name + ".lua")
		if err != nil {
			panic(err) // the file is in the binary
		}
		return string(text)
	}
	script := func(parts ...string) *redis.Script {
		return redis.NewScript(slices.Concat(front, parts)...)
	}
	common := read("common")
	for _, name := range []string{"enter", "status", "claim", "tick", "seen", "leave", "verify", "extend", "finish", "capacity", "draw"} {
		r.scripts[name] = script(common, read(name))
	}
	r.scripts["control"] = script(read("new"), read("open"), common, read("control"))
	r.create = script(read("new"), read("create"))
	return r
}

// call returns the call of a script on the room of an event.
func (r *Store) call(name, event string, args ...any) *redis.Call {
	all := []any{
		event, r.opts.PromoteInterval.Milliseconds(), r.opts.ReadyTTL.Milliseconds(), r.opts.TokenTTL.Milliseconds(),
		(r.opts.Grace + r.opts.SeenInterval).Milliseconds(), r.opts.SeenInterval.Milliseconds(), flag(r.opts.Release),
	}
	return r.scripts[name].Call(keys(event), append(all, args...)...)
}

// flag is a bool as the scripts read it.
func flag(set bool) int {
	if set {
		return 1
	}
	return 0
}

// runScript runs a script, and returns its answer, the server's time and the other values of its reply.
// Answers such as ErrRejected come with values, and so does redis.ErrNotReplicated.
func (r *Store) runScript(ctx context.Context, name, event string, args ...any) (values []any, now int64, err error) {
	c := r.call(name, event, args...)
	if r.opts.Replicas > 0 && (waits(name) || name == "control" && (args[0] == Kick || args[0] == Open)) {
		err = r.server.DoReplicated(ctx, r.opts.Replicas, r.opts.ReplicaWait, c)
	} else {
		err = r.server.Do(ctx, c)
	}
	return r.takeReply(ctx, name, event, c, err)
}

// takeReply reads the reply of a script that has run. late is the error of its call.
func (r *Store) takeReply(ctx context.Context, name, event string, c *redis.Call, late error) (values []any, now int64, err error) {
	reply, err := parse(name, c, late)
	if err != nil {
		return nil, 0, err
	}
	if reply.late && name != "tick" { // the event may be missing from the set
		call, cancel := context.WithTimeout(ctx, enlistTimeout)
		defer cancel()
		err := r.enlist(call, event)
		if err != nil && r.opts.Log != nil { // the script has run, so its answer counts
			r.sampled.Warn(r.opts.Log, "event not added to the set of rooms, trying again", slog.String("event", event), logs.Err(err))
		}
	}
	if err := answer(reply.code); err != nil {
		return reply.values, reply.now, err // nothing was changed
	}
	return reply.values, reply.now, late
}

// reply is what a script answers.
type reply struct {
	code   string
	now    int64 // the server's time in ms
	late   bool  // the last tick is not recent
	values []any
}

// parse reads the reply of a script. late is the error of its call.
func parse(name string, c *redis.Call, late error) (reply, error) {
	if late != nil && !errors.Is(late, redis.ErrNotReplicated) {
		return reply{}, late
	}
	list, err := c.List()
	if err != nil {
		return reply{}, err
	}
	if len(list) < 3 {
		return reply{}, fmt.Errorf("%s.lua: unexpected reply with %d values", name, len(list))
	}
	code, _ := list[0].(string)
	clock, _ := list[1].(string)
	now, err := strconv.ParseInt(clock, 10, 64)
	if err != nil {
		return reply{}, fmt.Errorf("%s.lua: %w", name, err)
	}
	return reply{code, now, list[2] == "1", list[3:]}, nil
}

// waits reports whether the answer of a script waits for replicas.
func waits(name string) bool {
	return slices.Contains([]string{"tick", "claim", "verify", "extend", "finish", "leave"}, name)
}

const (
	enlistTimeout = time.Second // the set may be on another node than the room
	warnEvery     = 10 * time.Second
)

// enlist adds an event to the set of events.
func (r *Store) enlist(ctx context.Context, event string) error {
	return r.server.Do(ctx, redis.Command("SADD", roomsKey, event))
}

// one runs a script whose reply is a place.
func (r *Store) one(ctx context.Context, name, event string, args ...any) (Place, error) {
	values, now, err := r.runScript(ctx, name, event, args...)
	if len(values) == 0 {
		return Place{Now: now}, err
	}
	p, wrong := r.place(name, values[0], now)
	return p, errors.Join(err, wrong)
}

// place reads a place from the reply of a script.
func (r *Store) place(name string, reply any, now int64) (Place, error) {
	p, err := place(reply, now)
	p.Unreplicated = p.State == Admitted && r.opts.Replicas > 0 && !waits(name)
	return p, err
}

// maxCall is the maximum number of users in a call of a script. It limits how long the server is
// busy.
const maxCall = 250

// Enter queues a user, or attaches the user to the place or lease that exists. The instance has the
// user's connection. cursor is the index that a returning client presents, 0 for none. With a
// cursor there is never a new place: the state is empty when the place has ended. A negative cursor
// only attaches.
//
// The errors are ErrUnknown and ErrRejected, besides those of the server.
func (r *Store) Enter(ctx context.Context, event, user, instance string, cursor int64) (Place, error) {
	return r.Return(ctx, event, user, instance, cursor, 0)
}

// Return is Enter with a cursor that counts until a time in ms of the server's clock, and is a negative one after it.
// Zero: it always counts. The place has the server's time also with ErrUnknown.
func (r *Store) Return(ctx context.Context, event, user, instance string, cursor, until int64) (Place, error) {
	return r.one(ctx, "enter", event, user, instance, cursor, r.opts.PurchasesPerUser, until)
}

// Status describes a user, and writes nothing.
func (r *Store) Status(ctx context.Context, event, user string) (Place, error) {
	return r.one(ctx, "status", event, user)
}

// Sign is a sign of life of a user, with the place that its broker has.
type Sign struct {
	User  string
	Index int64  // 0: not known, so nothing is restored
	JTI   string // of the claimed lease, if there is one
	Until int64  // end of that lease
	Gone  bool   // the last connection of the instance was closed
}

// Seen takes signs of life. A user that is missing gets the index and the lease of the sign back,
// unless the user left or used them up. It returns a place per sign.
func (r *Store) Seen(ctx context.Context, event, instance string, signs []Sign) ([]Place, error) {
	return r.each(ctx, "seen", event, len(signs), func(i int) []any {
		s := signs[i]
		return []any{s.User, s.Index, s.JTI, s.Until, flag(s.Gone)}
	}, instance, max(r.opts.TokenTTL, r.opts.MaxTurn).Milliseconds())
}

// Leave ends the place or lease of a user. The reason is left or kicked. A lease that a shop has
// verified is only ended by kicked. With left the error is ErrVerified, and nothing has changed.
func (r *Store) Leave(ctx context.Context, event, user, reason string) (Place, error) {
	return r.one(ctx, "leave", event, user, reason)
}

type shopKey struct{}

// WithShop returns a context for Verify, Extend and Finish, whose changes are then recorded as those of
// the shop with that name. Find returns it. It decides nothing: the session has the lease.
func WithShop(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, shopKey{}, name)
}

func shopOf(ctx context.Context) string {
	name, _ := ctx.Value(shopKey{}).(string)
	return name
}

// Verify gives a lease to one session of a shop. The same session may call it again. From then on
// the lease is only ended by Finish, the end of its time, or an operator. The errors are ErrUsed
// and ErrEnded, besides ErrUnknown and those of the server.
func (r *Store) Verify(ctx context.Context, event, user, jti, by string) (Place, error) {
	return r.one(ctx, "verify", event, user, jti, by, shopOf(ctx))
}

// Extend gives a lease that the same session has verified a later end, which is a time of the
// server's clock in ms. The lease gets the requested end, or the latest one that Options.MaxTurn
// allows: Until of the place is what counts. The end never moves back, so a repeated call changes
// nothing. The errors are ErrUnverified, ErrUsed and ErrEnded, besides ErrUnknown and those of the
// server.
func (r *Store) Extend(ctx context.Context, event, user, jti, by string, until int64) (Place, error) {
	return r.one(ctx, "extend", event, user, jti, by, until, r.opts.MaxTurn.Milliseconds(), shopOf(ctx))
}

// Finish ends a lease as sold or abandoned. The same result again is no error. A sale after the end
// of the lease, expired or abandoned, needs a free slot: How is "late". If it is the last purchase of
// the user, it ends the lease that the user has since, too: How is "late_lease". Every other pair of
// state and result returns ErrConflict, with the state of the lease.
//
// by is the session of the shop. Once a session has verified the lease, or ended it, all others get
// ErrUsed, and nothing has changed. It may be empty for a lease that was not verified.
func (r *Store) Finish(ctx context.Context, event, user, jti, by string, sold bool) (Place, error) {
	result := Abandoned
	if sold {
		result = Sold
	}
	return r.one(ctx, "finish", event, user, jti, string(result), by, r.opts.PurchasesPerUser, shopOf(ctx))
}

// Claim makes READY leases ADMITTED. Their time begins with the first claim, and a repeated claim
// changes nothing. The instance has their connections. It returns a place per user, which has
// another state when there is no lease.
//
// With Options.Replicas it begins with a call that changes nothing. While there are too few
// replicas, the leases stay READY: their users get their index back, and lose no turn.
func (r *Store) Claim(ctx context.Context, event, instance string, users []Sign) ([]Place, error) {
	if err := r.replicas(ctx, event); err != nil {
		return nil, err
	}
	return r.each(ctx, "claim", event, len(users), func(i int) []any { return []any{users[i].User} }, instance)
}

// replicas returns an error if there are fewer replicas than Options.Replicas now. It changes
// nothing.
func (r *Store) replicas(ctx context.Context, event string) error {
	if r.opts.Replicas == 0 {
		return nil
	}
	_, _, err := r.runScript(ctx, "claim", event, "")
	return err
}

// each runs a script for n users, in parts. It returns a place per user; after an error those of
// the first parts.
func (r *Store) each(ctx context.Context, name, event string, n int, args func(i int) []any, first ...any) ([]Place, error) {
	places := make([]Place, 0, n)
	for start := 0; start < n; start += maxCall {
		part := append([]any{}, first...)
		for i := start; i < min(start+maxCall, n); i++ {
			part = append(part, args(i)...)
		}
		values, now, err := r.runScript(ctx, name, event, part...)
		if err != nil {
			return places, err
		}
		for _, v := range values {
			p, err := r.place(name, v, now)
			if err != nil {
				return places, err
			}
			places = append(places, p)
		}
	}
	return places, nil
}

// Create creates the room of an event without configuration. It is open, and its capacity is
// unknown until SetCapacity. What was sold in an earlier room that nobody has closed stays sold. A room that exists stays
// as it is.
func (r *Store) Create(ctx context.Context, event string) error {
	if err := r.Full(ctx); err != nil {
		return err
	}
	if err := r.server.Do(ctx, r.create.Call([]string{roomKey(event), soldKey(event)})); err != nil {
		return err
	}
	return r.created(ctx, event)
}

// Full returns ErrTooMany when there are Options.MaxEvents rooms.
func (r *Store) Full(ctx context.Context) error {
	count := redis.Command("SCARD", roomsKey)
	if err := r.server.Do(ctx, count); err != nil {
		return err
	}
	n, err := count.Int()
	if err == nil && n >= int64(r.opts.MaxEvents) {
		err = ErrTooMany
	}
	return err
}

// created puts an event that has a room now into the set of events, and removes the mark of Deny. It comes after the
// room, because a tick takes an event without a room off the set.
func (r *Store) created(ctx context.Context, event string) error {
	return r.server.Do(ctx, redis.Command("SADD", roomsKey, event), redis.Command("DEL", queryKey(event)))
}

// SetCapacity stores the number of seats while it is unknown. Later only Control changes it.
func (r *Store) SetCapacity(ctx context.Context, event string, seats int64) error {
	if seats < 0 || seats > MaxSeats {
		return fmt.Errorf("capacity: must be >= 0 and at most %d, got %d", MaxSeats, seats)
	}
	_, _, err := r.runScript(ctx, "capacity", event, seats)
	return err
}

// queryKey is the right to query the Event Service for an event, or the mark that it has none.
func queryKey(event string) string { return "ROOM_ASK:{" + event + "}" }

const noEvent = "404"

// Reserve gives one caller the right to query the Event Service for an event, for that time. The
// error is ErrUnknown while the mark of Deny is there.
func (r *Store) Reserve(ctx context.Context, event string, duration time.Duration) (bool, error) {
	take := redis.Command("SET", queryKey(event), "1", "NX", "PX", duration.Milliseconds())
	read := redis.Command("GET", queryKey(event))
	if err := r.server.Do(ctx, take, read); err != nil {
		return false, err
	}
	if text, err := read.Text(); err != nil || text == noEvent {
		return false, errors.Join(err, ErrUnknown)
	}
	return !take.Missing(), nil
}

// Deny marks for that time that there is no such event.
func (r *Store) Deny(ctx context.Context, event string, duration time.Duration) error {
	return r.server.Do(ctx, redis.Command("SET", queryKey(event), noEvent, "PX", duration.Milliseconds()))
}

// ErrTooMany means that there are as many rooms as allowed. The caller refuses the event for now.
var ErrTooMany = errors.New("there are too many rooms")

// ByNode returns events by the node of a Cluster that has their keys.
func (r *Store) ByNode(ctx context.Context, events []string) map[string][]string {
	nodes := map[string][]string{}
	for _, event := range events {
		node := r.server.Node(ctx, roomKey(event))
		nodes[node] = append(nodes[node], event)
	}
	return nodes
}

// Events returns the events that have a room.
func (r *Store) Events(ctx context.Context) ([]string, error) {
	c := redis.Command("SMEMBERS", roomsKey)
	if err := r.server.Do(ctx, c); err != nil {
		return nil, err
	}
	events, err := c.Texts()
	if err != nil {
		return nil, err
	}
	slices.Sort(events)
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.ticks, func(event string, _ int64) bool {
		_, found := slices.BinarySearch(events, event)
		return !found
	})
	return events, nil
}
