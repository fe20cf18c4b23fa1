package broker

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/topevents"
	"github.com/millrace-io/millrace/handlers/waitingroom/internal/wakeup"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/failpoint"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// Group is the consumer group of the streams DISPATCH.
const Group = "broker"

const (
	callTimeout   = 2 * time.Second // of a call to the server
	enterTimeout  = 5 * time.Second // of entering, with the confirmation of the event
	signRound     = time.Second     // between two searches for signs that are due
	maxDeliveries = 20
	warnEvery     = 10 * time.Second
	ratesWindow   = 10 * time.Second // in which a user may send Config.RequestsPerUser requests
)

// Confirmer creates the room of an event that exists but has none. *eventservice.Service is one.
type Confirmer interface {
	Confirm(ctx context.Context, event string) error
}

// Options are the parts of a Broker. All but Labels are required.
type Options struct {
	Config
	SeenInterval time.Duration // time between two signs of life of a user
	Rooms        *room.Store
	Events       Confirmer
	Redis        *redis.Plugin
	Server       *redis.Server // has the rooms
	Hub          *sse.Hub
	Tokens       *token.Plugin
	Web          *web.Plugin
	DeadLetter   pipeline.Sink // receives entries that can not be read
	// Labels are those of the process, which collects their metrics. Nil: of the broker alone.
	Labels *topevents.Labels
}

// Broker is a pipeline.Service, after that of the server. Use New.
type Broker struct {
	opts     Options
	instance string
	family   *redis.Family
	metrics  *metrics
	log      *slog.Logger
	sampled  *logs.Throttle
	loops    loop.Group
	calls    sync.WaitGroup // claims, signs and reads of tables
	reading  sync.Map       // nodes of whose tables a read waits
	requests atomic.Int64   // numbers of requests to the server

	refusals refusals
	// rates count the requests of a user for all events together, because the id of an event may be
	// invented: each new one would otherwise have all requests again, costs a call to the Event Service,
	// and leaves a key in Redis and an entry here.
	rates web.Rates

	mu     sync.Mutex
	events map[string]*eventUsers
	tables tables
	// The last reads of tables, and rounds of the loops.
	lastRead, lastBroadcast, lastSigns time.Time
}

// New returns a broker.
func New(o Options) *Broker {
	o.Labels = cmp.Or(o.Labels, topevents.New())
	b := &Broker{opts: o, sampled: logs.NewThrottle(warnEvery), events: map[string]*eventUsers{}, rates: web.Rates{Most: o.RequestsPerUser, Window: ratesWindow}}
	b.metrics = newMetrics(b)
	b.family = o.Redis.Family(redis.FamilyOptions{
		Name: room.DispatchStream("<instance>"), Group: Group, Server: o.Server, Fields: true,
		List: func(context.Context) ([]string, error) { return []string{room.DispatchStream(b.instance)}, nil },
	})
	return b
}

// Family is the stream DISPATCH of this instance, for plugins/reclaim.
func (b *Broker) Family() *redis.Family { return b.family }

// Register adds the service, the route, the HTTP handlers and the metrics.
func (b *Broker) Register(r *pipeline.Registry) {
	b.instance, b.log = r.Env().Instance, r.Env().Logger
	r.Collect(b.metrics.collectors()...)
	r.Service("waitingroom.broker", b)
	r.Route(pipeline.Route{
		Name: "waitingroom.broker", From: b.family.Source(),
		HandleBatch: func(ctx context.Context, msgs []*message.Message) []pipeline.BatchResult {
			return wakeup.Handle(msgs, func(event string, users []wakeup.User) error {
				b.promoted(ctx, event, users)
				return nil
			})
		},
		Policy: pipeline.Policy{DeadLetter: b.opts.DeadLetter, MaxDeliveries: maxDeliveries},
	})
	r.Health("waitingroom.broker", b.reads)
	r.HealthOwn("waitingroom.broker.loops", b.loopsRun)
	b.mount()
}

// Start starts the loops.
func (b *Broker) Start(ctx context.Context) error {
	b.mark(&b.lastRead, &b.lastBroadcast, &b.lastSigns)
	return b.loops.Start(ctx,
		func(ctx context.Context) { loop.Every(ctx, b.opts.BroadcastInterval, b.broadcast) },
		func(ctx context.Context) { loop.Every(ctx, signRound, b.signAll) },
	)
}

// Stop ends the loops, and sends the signs of users that have left since.
func (b *Broker) Stop(ctx context.Context) error {
	err := b.loops.Stop(ctx)
	b.calls.Wait()
	b.signAll(ctx)
	b.calls.Wait()
	return err
}

// promoted claims the leases of users that are connected here. Without an answer, the next
// broadcast claims them again.
func (b *Broker) promoted(ctx context.Context, event string, list []wakeup.User) {
	l := b.local(event)
	if l == nil {
		return
	}
	var users []*user
	l.mu.Lock()
	for _, n := range list {
		if u := l.users[n.ID]; u != nil && len(u.conns) > 0 && (u.place.State != room.Admitted || u.place.Unreplicated) {
			users = append(users, u)
		}
	}
	l.mu.Unlock()
	b.claim(ctx, l, users)
}

// broadcast shows the positions of all events. A node of a Cluster that does not answer delays no
// event of another one. It is left out while the last read of its tables waits.
func (b *Broker) broadcast(ctx context.Context) {
	b.mark(&b.lastBroadcast)
	nodes, locals := map[string][]*eventUsers{}, b.locals()
	if len(locals) == 0 {
		b.mark(&b.lastRead)
	}
	for _, l := range locals {
		node := b.opts.Server.Node(ctx, room.EntryStream(l.event))
		nodes[node] = append(nodes[node], l)
	}
	for node, locals := range nodes {
		if _, waits := b.reading.LoadOrStore(node, true); !waits {
			b.calls.Go(func() {
				defer b.reading.Delete(node)
				b.show(ctx, locals)
			})
		}
	}
}

// show reads the tables of a node, sends the positions, and claims the leases of users up to the
// index that was served.
func (b *Broker) show(ctx context.Context, locals []*eventUsers) {
	begin := time.Now()
	names := make([]string, len(locals))
	for i, l := range locals {
		names[i] = l.event
	}
	call, cancel := context.WithTimeout(ctx, callTimeout)
	tables, err := b.opts.Rooms.Tables(call, names)
	cancel()
	if err != nil {
		b.warn(ctx, "rank tables not read, trying again", err)
	} else {
		b.mark(&b.lastRead)
	}
	for i, l := range locals {
		var t *room.Table
		if i < len(tables) {
			t = tables[i]
		}
		now := time.Now()
		var claims []*user
		l.mu.Lock()
		l.update(t, err != nil, now, b.opts.SeenInterval)
		for _, u := range l.users {
			if u.claimDue(l.table, now) {
				claims = append(claims, u)
				u.claimAt = now.Add(claimAgain)
			}
			b.push(l, u, now)
		}
		l.mu.Unlock()
		if len(claims) > 0 {
			b.calls.Go(func() { b.claim(ctx, l, claims) })
		}
	}
	b.metrics.broadcast.Observe(time.Since(begin).Seconds())
}

// push sends to all connections of a user what they have not received yet. The caller has l.mu.
func (b *Broker) push(l *eventUsers, u *user, now time.Time) {
	for c := range u.conns {
		for _, s := range c.view.update(u.place, l.table, now) {
			b.send(l, c, s)
		}
	}
}

// claim claims the leases of users.
func (b *Broker) claim(ctx context.Context, l *eventUsers, users []*user) {
	if len(users) == 0 {
		return
	}
	l.mu.Lock()
	r := newBatch(b.requests.Add(1), users, time.Now())
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	places, err := b.opts.Rooms.Claim(ctx, l.event, b.instance, r.signs)
	failpoint.Hit(failpoint.Claimed)
	b.claimed(l, r, places)
	if err != nil {
		b.warn(ctx, "leases not claimed, trying again", err, slog.String("event", l.event))
	}
}

// claimed takes the answers to claims. It signs the tokens before it locks the event.
func (b *Broker) claimed(l *eventUsers, r batch, places []room.Place) {
	promotions := make([]entry, len(places))
	for i, p := range places {
		if p.State == room.Admitted {
			promotions[i], _ = b.entry(l.event, r.users[i].id, p) // send repeats it after an error
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for i, u := range r.users {
		switch {
		case i >= len(places): // not answered
			u.claimAt = now
			continue
		case places[i].State == "":
			u.signAt = now
			continue
		}
		before := u.place.State
		if !u.accept(places[i], r.indexes[i], r.request, now) {
			continue
		}
		if promotions[i].Token != "" {
			u.promotion = promotions[i]
		}
		b.push(l, u, now)
		if p := u.place; p.State == room.Admitted && before != room.Admitted && p.Promoted > 0 {
			b.metrics.delay.Observe(float64(p.Now-p.Promoted) / 1000)
		}
	}
}

// signAll sends the signs of life that are due. An event whose last signs are on their way is left
// out.
func (b *Broker) signAll(ctx context.Context) {
	b.mark(&b.lastSigns)
	for _, l := range b.locals() {
		l.mu.Lock()
		var due []*user
		if !l.signing {
			due = l.dueSigns(time.Now())
			l.signing = len(due) > 0
		}
		l.mu.Unlock()
		if len(due) > 0 {
			b.calls.Go(func() { b.sign(ctx, l, due) })
		}
	}
	b.signRefused(ctx)
	b.clean()
}

// sign sends signs of life and takes the answers. A full server refuses the signs of waiting users.
// Those of connected users with leases are sent alone: their answers show the end of a lease.
func (b *Broker) sign(ctx context.Context, l *eventUsers, users []*user) {
	now := time.Now()
	var leases, others []*user
	l.mu.Lock()
	for _, u := range users {
		if u.place.Until > 0 && len(u.conns) > 0 {
			leases = append(leases, u)
		} else {
			others = append(others, u)
		}
		u.plan(now, b.opts.SeenInterval)
	}
	l.mu.Unlock()
	var failed error
	for _, part := range [][]*user{leases, others} {
		if len(part) == 0 {
			continue
		}
		l.mu.Lock()
		r := newBatch(b.requests.Add(1), part, time.Now())
		l.mu.Unlock()
		places, err := b.opts.Rooms.Seen(ctx, l.event, b.instance, r.signs)
		b.signed(l, r, places)
		if err != nil {
			failed = err
		}
	}
	l.mu.Lock()
	l.signing = false
	l.mu.Unlock()
	if failed != nil {
		b.metrics.unsigned.Inc()
		b.warn(ctx, "signs of life not sent, trying again", failed, slog.String("event", l.event))
	}
}

// signed takes the answers to signs of life.
func (b *Broker) signed(l *eventUsers, r batch, places []room.Place) {
	// A new index is signed under the lock. Others wait for a part of the users only.
	const part = 250
	for start := 0; start < len(r.users); start += part {
		l.mu.Lock()
		for i := start; i < min(start+part, len(r.users)); i++ {
			b.answered(l, r, i, places)
		}
		l.mu.Unlock()
	}
}

// answered takes the answer to the i-th sign of life. The caller has the lock of the event.
func (b *Broker) answered(l *eventUsers, r batch, i int, places []room.Place) {
	u, now := r.users[i], time.Now()
	if i >= len(places) { // not answered
		u.signAt = now
		return
	}
	if r.signs[i].Gone {
		if len(u.conns) == 0 && u.request <= r.request {
			u.reported, u.signAt = true, now.Add(keepShown)
			return
		}
		u.signAt = now // the user is back, or was
	}
	if u.accept(places[i], r.indexes[i], r.request, now) {
		if places[i].How == "restored" {
			b.metrics.joined(l.event, places[i].How)
		}
		b.push(l, u, now)
	}
}

func (b *Broker) warn(ctx context.Context, text string, err error, attrs ...slog.Attr) {
	if ctx.Err() == nil {
		b.sampled.Warn(b.log, text, append(attrs, logs.Err(err))...)
	}
}

// local returns an event that has users here, or nil.
func (b *Broker) local(event string) *eventUsers {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.events[event]
}

func (b *Broker) locals() []*eventUsers {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*eventUsers, 0, len(b.events))
	for _, l := range b.events {
		list = append(list, l)
	}
	return list
}

// clean removes the events without users.
func (b *Broker) clean() {
	b.mu.Lock()
	defer b.mu.Unlock()
	sizes := map[string]int64{}
	for event, l := range b.events {
		l.mu.Lock()
		users := len(l.users)
		l.mu.Unlock()
		if users == 0 {
			delete(b.events, event)
		} else {
			sizes[event] = int64(users)
		}
	}
	b.metrics.labels.Choose("broker", sizes)
	b.tables.clean(time.Now())
	b.rates.Clean(time.Now())
}

// attach adds a connection of a user whose place is the answer to a request.
func (b *Broker) attach(event, id string, p room.Place, request int64, client *sse.Client) *conn {
	signed := b.signID(event, id, p.Index, time.UnixMilli(p.Now)) // before the event is locked
	b.mu.Lock()
	l := b.events[event]
	if l == nil {
		l = &eventUsers{event: event, users: map[string]*user{}, ticked: time.Now()}
		b.events[event] = l
	}
	l.mu.Lock()
	b.mu.Unlock()
	defer l.mu.Unlock()
	now := time.Now()
	u := l.users[id]
	if u == nil {
		u = &user{id: id, conns: map[*conn]struct{}{}}
		l.users[id] = u
	}
	if len(u.conns) == 0 {
		u.connect(now, b.opts.SeenInterval)
	}
	u.entered(p, request, now)
	c := &conn{user: u, local: l, client: client, view: view{lowest: &u.lowest}, id: signed}
	u.conns[c] = struct{}{}
	b.push(l, u, now)
	return c
}

// leave removes a connection.
func (b *Broker) leave(c *conn) {
	c.local.mu.Lock()
	defer c.local.mu.Unlock()
	c.local.leave(c, time.Now())
}

var _ pipeline.Service = (*Broker)(nil)
