package waitingroom

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/handlers/waitingroom/internal/dispatcher"
	"github.com/millrace-io/millrace/handlers/waitingroom/room"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
)

const (
	shownInstances = 200
	firstUsers     = 100 // whose connections are looked up
)

// workerNumber follows the name of an instance in the name of its consumer.
var workerNumber = regexp.MustCompile(`-[0-9]+$`)

var errNotRunning = errors.New("waitingroom: the connections to Redis of this instance do not run")

// showInstances shows the dispatchers that read the promotions of a room, and the brokers with its users.
func (o operators) showInstances(ctx context.Context, q console.Query) (console.Block, error) {
	event := q.Text("event")
	if !room.ValidEvent(event) {
		return nil, console.ErrNothing
	}
	presence := o.Plugin.redis.Client()
	client := o.server.Client()
	if presence == nil || client == nil {
		return nil, errNotRunning
	}
	holders, err := o.rooms.FirstHolders(ctx, event, firstUsers)
	if err != nil {
		return nil, err
	}
	delete(holders, "")
	brokers, err := o.rooms.Instances(ctx)
	if err != nil {
		return nil, err
	}
	type does struct {
		works []string
		idle  time.Duration // of a dispatcher: since it read the promotions of the room; negative: it does not read them
	}
	known := map[string]does{}
	for _, name := range append(brokers, slices.Collect(maps.Keys(holders))...) {
		known[name] = does{[]string{roleBroker}, -1}
	}
	readers, err := client.XInfoConsumers(ctx, room.EntryStream(event), dispatcher.Group).Result()
	if err != nil && !strings.Contains(err.Error(), "no such key") && !strings.HasPrefix(err.Error(), "NOGROUP") {
		return nil, err
	}
	for _, c := range readers {
		name := workerNumber.ReplaceAllString(c.Name, "")
		known[name] = does{append(known[name].works, roleDispatcher), c.Idle}
	}
	if by := o.rooms.Statuses(ctx, []string{event})[0].TickedBy; by != "" && !slices.Contains(known[by].works, roleDispatcher) {
		known[by] = does{append(known[by].works, roleDispatcher), -1}
	}
	names := slices.Sorted(maps.Keys(known))
	t := console.Table{
		Columns: console.Columns("Instance", "Does", "State", "Presence", "Read the promotions", "Users in front"),
		Empty:   "No instance has users of this room or reads its promotions.",
		Note: "Users in front are the first 100 of the queue and the 100 whose turn ends first, by the instance of their last connection. " +
			"A broker is listed once a user was promoted on it, in any room, or while it has one of these users. " +
			"Dispatchers are those that have read its promotions, and the one that ticked last: any of them may promote the users of any room.",
	}
	if len(names) > shownInstances {
		names, t.Note = names[:shownInstances], "Only the first 200 instances are shown. "+t.Note
	}
	alive, err := redis.Alive(ctx, presence, names...)
	if err != nil {
		return nil, err
	}
	marks, err := redis.Marks(ctx, presence)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		lives, seen := alive[name]
		state := console.Word("gone").In(operate.Warn)
		switch {
		case lives:
			state = console.Word("runs").In(operate.OK)
		case !seen:
			state = console.Word("never had a presence").In(operate.Warn)
		}
		last := console.Word("–")
		if at := marks[name]; at > 0 {
			last = console.Moment(time.UnixMilli(at))
		}
		read := console.Word("–")
		if idle := known[name].idle; idle >= 0 {
			read = console.Cell{Text: console.Short(idle) + " ago", Data: idle.Seconds()}
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(name), console.Word(strings.Join(known[name].works, ", ")), state, last, read, console.Count(holders[name]),
		})
	}
	return t, nil
}
