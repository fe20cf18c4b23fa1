package waitingroom

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"sync"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/admin"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Addresses of the pages.
const (
	roomsPage = "rooms"
	roomPage  = "rooms/room"
)

// shownChanges is the number of changes on the page of a room.
const shownChanges = 100

// operators offers the pages and the actions of the rooms to the console.
type operators struct {
	*Plugin

	rooms  *room.Store
	server *redis.Server // has the rooms
	rates  *rates
}

// Operations implements operate.Operated. The commands are those of package cli, which use the same actions.
func (o operators) Operations() operate.Operations {
	return operate.Operations{Actions: admin.Actions(func() *room.Store { return o.rooms })}
}

// Console implements console.Contributor: the list of rooms, and one room with its instances, its audit and a
// person in it.
func (o operators) Console() []console.Page {
	var steer []string
	for _, verb := range admin.Changes() {
		if verb != room.Kick {
			steer = append(steer, admin.NameOf(verb))
		}
	}
	return []console.Page{
		{Path: roomsPage, Title: "Waiting rooms", Order: 8, Panels: []console.Panel{
			{Name: "rooms", Title: "Rooms", Values: []string{"after"}, Load: o.showRooms, Actions: []string{admin.NameOf(room.Open)}},
			{Name: "find", Title: "Find a room, or a person in it", Values: []string{"event"}, Load: showFind},
		}},
		{Path: roomPage, Title: "Waiting room", Hidden: true, Panels: []console.Panel{
			{Name: "room", Title: "Room", Values: []string{"event"}, Load: o.showRoom, Actions: steer},
			{Name: "person", Title: "Person", Values: []string{"event", "user"}, Load: o.showPerson, Actions: []string{admin.NameOf(room.Kick)}},
			{Name: "find", Title: "Find a person", Values: []string{"event"}, Load: showFind},
			{Name: "instances", Title: "Instances", Values: []string{"event"}, Load: o.showInstances},
			{Name: "audit", Title: "Changes, newest first", Values: []string{"event"}, Load: o.showAudit},
		}},
	}
}

func showFind(_ context.Context, q console.Query) (console.Block, error) {
	return console.Find{Page: roomPage, Fields: []operate.Field{{Name: "event", Default: q.Text("event"), Required: true}, {Name: "user"}}}, nil
}

func (o operators) showRooms(ctx context.Context, q console.Query) (console.Block, error) {
	events, next, err := o.rooms.EventsAfter(ctx, q.Text("after"))
	if errors.Is(err, room.ErrPlace) {
		return console.Text("The address names no part of the list. Begin with the first one: choose Waiting rooms in the navigation."), nil
	} else if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Event", "State", "Waiting", "Leases", "Sold", "Capacity", "Free", "Promoted per minute", "Capacity ≥ leases + sold"),
		Empty:   "No event has a waiting room in this part of the list. An action of this page opens one.",
		Note:    "The rate is what was promoted between two looks of this instance at the page, so the first look has none.",
	}
	if next != "" || q.Text("after") != "" {
		t.Note = fmt.Sprintf("A page has at most %d rooms, so that it costs the same with any number of them. Pages follow each other in no order: "+
			"find a room by its event. ", room.PageSize) + t.Note
	}
	if next != "" {
		t.Next = roomsPage + "?" + url.Values{"after": {next}}.Encode()
	}
	var failed console.Checks
	list := o.rooms.Statuses(ctx, events)
	sorted.By(list, func(a, b room.Looked) int { return cmp.Compare(b.Waiting, a.Waiting) })
	for _, s := range list {
		if errors.Is(s.Err, room.ErrUnknown) {
			continue // it was cleared in between
		}
		if s.Err != nil { // the node of another room may answer
			failed = append(failed, operate.Check{Name: s.Event, Level: operate.Fail, Text: s.Err.Error()})
			continue
		}
		books := booksOf(s.Status)
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(s.Event).At(linkTo(s.Event, "")), stateCell(s.Status), console.Count(s.Waiting), console.Count(leasesOf(s.Status)), console.Count(s.Sold),
			limit(s.Capacity, console.Unknown), console.Count(s.Free), o.rates.of(s.Status), console.Word(books.Text).In(books.Level),
		})
	}
	if len(failed) > 0 {
		return console.Blocks{t, failed}, nil
	}
	return t, nil
}

func leasesOf(s room.Status) int64 { return s.Ready + s.Admitted }

// limit returns a number of which a negative one means a text.
func limit(n int64, text string) console.Cell {
	if n < 0 {
		return console.Cell{Text: text, Right: true}
	}
	return console.Count(n)
}

// stateCell says whether the queue moves, and why it does not.
func stateCell(s room.Status) console.Cell {
	cell := console.Word(s.Short())
	switch s.Halted {
	case "", room.RoomClosed, room.NotOpen:
		return cell
	case room.SoldOut, room.SeatsHeld, room.OnHold, room.CapacityUnknown, room.LimitedToNone:
	}
	return cell.In(operate.Warn)
}

// booksOf says whether no more seats are sold or held than there are.
func booksOf(s room.Status) operate.Check {
	c := operate.Check{Name: "seats", Level: operate.OK}
	if s.Capacity < 0 {
		c.Level, c.Text = operate.Warn, "the capacity is unknown, so nobody is promoted"
		c.Remedy, c.Runbook = "give it with room set --capacity, or repair the Event Service", "configs/RUNBOOK.md, MillraceRoomWithoutCapacity"
		return c
	}
	sum := fmt.Sprintf("%s leases + %s sold", app.Thousands(leasesOf(s)), app.Thousands(s.Sold))
	if excess := leasesOf(s) + s.Sold - s.Capacity; excess > 0 {
		c.Level, c.Text = operate.Fail, fmt.Sprintf("capacity %s < %s: %s too many, so nobody is promoted until as many turns have ended", app.Thousands(s.Capacity), sum, app.Plural(excess, "seat"))
		c.Remedy, c.Runbook = "compare the seats sold with the shop; the capacity may have been lowered, or a failover has lost a lease", "configs/RUNBOOK.md, MillraceRoomOverCapacity"
		return c
	}
	c.Text = fmt.Sprintf("capacity %s ≥ %s", app.Thousands(s.Capacity), sum)
	return c
}

// lateTick is the age of the last tick from which nobody seems to promote.
const lateTick = 10 * time.Second

// ticksOf says whether a dispatcher promotes.
func ticksOf(s room.Status) operate.Check {
	age := time.Duration(s.Now-s.LastTick) * time.Millisecond
	c := operate.Check{Name: "ticks", Level: operate.OK, Text: "the last tick was " + console.Short(age) + " ago"}
	if s.TickedBy != "" {
		c.Text += ", by " + s.TickedBy
	}
	if age >= lateTick {
		c.Level, c.Text = operate.Fail, c.Text+": no dispatcher promotes users, and no turn ends"
		c.Remedy, c.Runbook = "start a dispatcher, or repair its connection to Redis", "configs/RUNBOOK.md, MillraceRoomWithoutTicks"
	}
	return c
}

func (o operators) showRoom(ctx context.Context, q console.Query) (console.Block, error) {
	event := q.Text("event")
	if !room.ValidEvent(event) {
		return console.Text("Give the id of an event, which has 1 to 128 characters of A-Za-z0-9._-."), nil
	}
	s := o.rooms.Statuses(ctx, []string{event})[0]
	if errors.Is(s.Err, room.ErrUnknown) {
		return console.Text(fmt.Sprintf("The event %q has no room. The action room open creates one.", event)), nil
	} else if s.Err != nil {
		return nil, s.Err
	}
	moment := func(ms int64) console.Cell {
		switch {
		case ms <= 0:
			return console.Word("–")
		case ms > s.Now:
			return console.Until(time.UnixMilli(ms))
		}
		return console.Moment(time.UnixMilli(ms))
	}
	about := console.Stats{
		{Name: "Event", Cell: console.Word(event)},
		{Name: "State", Cell: stateCell(s.Status)},
		{Name: "No promotions because", Cell: console.Word(cmp.Or(s.Halted.Text(), "–"))},
		{Name: "Mode", Cell: console.Word(cmp.Or(s.Mode, room.FIFO))},
		{Name: "Message", Cell: console.Word(cmp.Or(s.Message, "–"))},
		{Name: "Opens", Cell: moment(s.OpensAt)},
		{Name: "Closes", Cell: moment(s.ClosesAt)},
	}
	if s.Commitment != "" {
		about = append(about, console.Stat{Name: "Commitment", Cell: console.Word(s.Commitment)},
			console.Stat{Name: "Drawn", Cell: console.Word(fmt.Sprintf("%s of %s", app.Thousands(s.Drawn), app.Thousands(s.Frozen)))})
	}
	aside := console.Count(s.Aside)
	if s.Aside > 0 {
		aside = aside.In(operate.Warn)
	}
	return console.Blocks{
		about,
		console.Stats{
			{Name: "Waiting", Cell: console.Count(s.Waiting)},
			{Name: "Promoted, not notified", Cell: console.Count(s.Ready)},
			{Name: "Admitted", Cell: console.Count(s.Admitted)},
			{Name: "Free", Cell: console.Count(s.Free)},
			{Name: "Sold", Cell: console.Count(s.Sold)},
			{Name: "Capacity", Cell: limit(s.Capacity, console.Unknown)},
			{Name: "Admitted at most", Cell: limit(s.Concurrency, "no limit")},
			{Name: "Per minute at most", Cell: limit(s.PerMinute, "no limit")},
			{Name: "Promoted per minute", Cell: o.rates.of(s.Status)},
			{Name: "Promoted", Cell: console.Count(s.Promoted)},
			{Name: "Records set aside", Cell: aside},
		},
		console.Checks{booksOf(s.Status), ticksOf(s.Status)},
	}, nil
}

// showPerson answers what room find does.
func (o operators) showPerson(ctx context.Context, q console.Query) (console.Block, error) {
	event, user := q.Text("event"), q.Text("user")
	if user == "" {
		return nil, console.ErrNothing
	}
	answer, err := admin.Do(ctx, o.rooms, event, admin.Find, admin.Request{User: user})
	switch {
	case err != nil && admin.IsMistake(err):
		return console.Text(err.Error()), nil
	case errors.Is(err, room.ErrUnknown):
		return console.Text(fmt.Sprintf("The event %q has no room, so nobody has a place.", event)), nil
	case err != nil:
		return nil, err
	}
	u, _ := answer.(admin.User)
	fields := console.Stats{{Name: "User", Cell: console.Word(u.User)}, {Name: "State", Cell: personState(u.State)}}
	word := func(name, value string) {
		if value != "" {
			fields = append(fields, console.Stat{Name: name, Cell: console.Word(value)})
		}
	}
	word("Why there is no place", u.Reason)
	if u.Ahead != nil {
		fields = append(fields, console.Stat{Name: "Place", Cell: console.Count(*u.Ahead + 1)}, console.Stat{Name: "Ahead", Cell: console.Count(*u.Ahead)})
	}
	if u.Until > 0 {
		fields = append(fields, console.Stat{Name: "Turn ends", Cell: console.Until(time.UnixMilli(u.Until))})
	}
	word("Lease", u.JTI)
	word("Connection", u.Instance)
	word("Shop", u.Shop)
	fields = append(fields, console.Stat{Name: "Bought", Cell: console.Count(u.Bought)})
	record := console.Record{Fields: fields}
	if memory := string(u.Memory); memory != "null" && memory != "" {
		record.Folds = []console.Fold{{Title: "An earlier place", Payload: u.Memory}}
	}
	return record, nil
}

func personState(s room.State) console.Cell {
	switch s {
	case room.Waiting:
		return console.Word("waits")
	case room.Ready:
		return console.Word("promoted, not notified").In(operate.OK)
	case room.Admitted:
		return console.Word("admitted").In(operate.OK)
	case "":
		return console.Word("no place").In(operate.Warn)
	case room.Sold, room.Abandoned, room.Expired:
	}
	return console.Word(string(s))
}

func (o operators) showAudit(ctx context.Context, q console.Query) (console.Block, error) {
	event := q.Text("event")
	if !room.ValidEvent(event) {
		return nil, console.ErrNothing
	}
	records, err := o.rooms.Latest(ctx, event, shownChanges)
	if err != nil {
		return nil, err
	}
	t := console.Table{Columns: console.Columns("When", "Change", "Who", "Why", "Detail"), Empty: "Nobody has changed this room."}
	for _, r := range records {
		t.Rows = append(t.Rows, []console.Cell{console.Moment(time.UnixMilli(r.At)), console.Word(r.Verb), console.Word(r.By), console.Word(r.Why), console.Word(r.Detail)})
	}
	if len(records) == shownChanges {
		t.Note = fmt.Sprintf("Only the newest %d changes are shown. The page Audit and the command room audit have the others.", shownChanges)
	}
	return t, nil
}

func linkTo(event, user string) string {
	values := url.Values{"event": {event}}
	if user != "" {
		values.Set("user", user)
	}
	return roomPage + "?" + values.Encode()
}

// rates remembers how many users of a room were promoted when somebody looked, for the number per minute.
type rates struct {
	mu    sync.Mutex
	looks map[string][2]look // of an event: an earlier look and the last one
}

type look struct{ at, promoted int64 } // by the server's clock in ms

const (
	rateLeast = 5 * time.Second // between two looks that give a rate
	rateMost  = 5 * time.Minute
	rateRooms = 10 * room.PageSize // that are remembered
)

// of returns the promotions per minute since an earlier look.
func (r *rates) of(s room.Status) console.Cell {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.looks == nil {
		r.looks = map[string][2]look{}
	}
	now := look{s.Now, s.Promoted}
	known := r.looks[s.Event]
	fits := func(l look) bool {
		return l.at > 0 && now.at-l.at <= rateMost.Milliseconds() && now.promoted >= l.promoted // a room may have been created again
	}
	if !fits(known[1]) {
		known = [2]look{{}, now}
	} else if now.at-known[1].at >= rateLeast.Milliseconds() {
		known = [2]look{known[1], now}
	}
	if _, found := r.looks[s.Event]; !found && len(r.looks) >= rateRooms {
		maps.DeleteFunc(r.looks, func(_ string, l [2]look) bool { return now.at-l[1].at > rateMost.Milliseconds() })
		if len(r.looks) >= rateRooms {
			return console.Number(nil)
		}
	}
	r.looks[s.Event] = known
	if !fits(known[0]) || now.at-known[0].at < rateLeast.Milliseconds() {
		return console.Number(nil)
	}
	perMinute := (now.promoted - known[0].promoted) * time.Minute.Milliseconds() / (now.at - known[0].at)
	return console.Count(perMinute)
}

var (
	_ console.Contributor = operators{}
	_ operate.Operated    = operators{}
)
