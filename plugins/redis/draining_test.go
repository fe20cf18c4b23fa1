package redis

import (
	"log/slog"
	"slices"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// drainable is an instance that notes why it was drained, instead of ending.
type drainable struct {
	ordered
	name string
	log  *lockedLog

	mu  sync.Mutex
	why []string
}

func (d *drainable) drained() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.why)
}

func (d *drainable) drain(why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.why = append(d.why, why.Error())
}

func newDrainable(t *testing.T, s redistest.Server, db int, name string) *drainable {
	t.Helper()
	d := &drainable{name: name, log: &lockedLog{}}
	p := New()
	p.cfg.Addrs, p.cfg.DB = []string{s.Addr}, db
	env := pipeline.Env{Instance: name, Version: "v1.2.3", Logger: slog.New(slog.NewTextHandler(d.log, nil)), Drain: d.drain}
	reg, err := pipeline.NewRegistry(env, p, withRoutes{p})
	require.NoError(t, err)
	d.ordered = ordered{p, reg, s.Client(t, func(o *goredis.Options) { o.DB = db })}
	d.starts(t)
	return d
}

func (o ordered) orderDrain(t *testing.T, name string) (operate.Answer, error) {
	t.Helper()
	return o.drainAction().Do(t.Context(), o.reg, operate.Input{"instance": {name}}, operate.Use{Who: "ann", Why: "ticket 7"})
}

// One instance reads the order and ends, and only the process that ran when it was given.
func TestOneInstanceIsDrained(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		t.Parallel()
		a, b := newDrainable(t, s, db, "a-"+watermill.NewULID()), newDrainable(t, s, db, "b-"+watermill.NewULID())
		command := process(t, s, db)
		preview, err := command.drainAction().Preview(t.Context(), command.reg, operate.Input{"instance": {a.name}})
		require.NoError(t, err)
		require.Equal(t, []string{"Would drain " + a.name + " within 5s: it takes nothing new, finishes what it has, and ends with exit code 0."}, preview.Lines)
		require.Equal(t, []string{"These go on: " + b.name + "."}, preview.Notes)
		require.Empty(t, preview.Checks)
		require.Zero(t, a.c.Exists(t.Context(), drainKey(a.name)).Val(), "a preview orders nothing")

		_, err = b.orderDrain(t, a.name)
		require.NoError(t, err)
		redistest.Eventually(t, "the instance drains", func() bool { return len(a.drained()) > 0 })
		require.Equal(t, []string{"ordered by ann, because: ticket 7"}, a.drained())
		require.Contains(t, a.log.String(), `msg="drain ordered by an operator" who=ann why="ticket 7"`)
		redistest.Eventually(t, "it says so", func() bool { return a.statuses(t)[a.name].words() == "drains, ordered by ann, because: ticket 7" })
		pages := b.Console()
		instances := slices.IndexFunc(pages, func(p console.Page) bool { return p.Path == "instances" })
		require.Contains(t, pages[instances].Panels[0].Actions, drainAction)
		page, err := pages[instances].Panels[0].Load(t.Context(), console.Query{Registry: b.reg})
		require.NoError(t, err)
		states := map[string]console.Cell{}
		for _, row := range page.(console.Table).Rows {
			states[row[0].Text] = row[1]
		}
		require.Equal(t, console.Word("drains, ordered by ann, because: ticket 7").In(operate.Warn), states[a.name])
		require.Equal(t, console.Word("runs, and serves this page").In(operate.OK), states[b.name])
		changes, err := b.AuditLogs()[0].Recent(t.Context(), operate.AuditFilter{Subject: a.name}, 10)
		require.NoError(t, err)
		require.Len(t, changes.Changes, 2)
		for i, outcome := range []string{"done", "begun"} { // the newest first
			c := changes.Changes[i]
			require.Equal(t, []string{"drain", "ann", "ticket 7", outcome}, []string{c.Action, c.Who, c.Why, c.Outcome})
		}

		a.presence.followDrain(t.Context(), a.drain)
		require.Len(t, a.drained(), 1, "it drains once")
		require.NoError(t, service{a.Plugin}.Stop(t.Context()))
		again := newDrainable(t, s, db, a.name)
		again.presence.followDrain(t.Context(), again.drain)
		require.Empty(t, again.drained(), "the order was about the process before")
		require.Empty(t, b.drained())
	})
}

// A name that nobody has is refused, and so is one of an instance that was stopped. The last instance can be drained, with a
// warning.
func TestDrainingTheLastInstance(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		a, command := newDrainable(t, s, db, "a-"+watermill.NewULID()), process(t, s, db)
		for range 2 {
			_, err := command.orderDrain(t, "api-7")
			var wrong *operate.InputError
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, operate.InputError{Field: "instance", Problem: `no instance that runs has the name "api-7"; these run: ` + a.name}, *wrong)
		}
		answer, err := command.orderDrain(t, a.name)
		require.NoError(t, err)
		require.Equal(t, operate.Warn, answer.Checks[0].Level)
		require.Contains(t, answer.Checks[0].Text, "nothing is handled until one is started")
		require.NoError(t, service{a.Plugin}.Stop(t.Context()))
		_, err = command.orderDrain(t, a.name)
		require.ErrorContains(t, err, "; none runs")
	})
}

// An order that can't be read drains nothing. A process that can't be ended from within takes none.
func TestADrainThatCantBeRead(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		a := newDrainable(t, s, db, "a-"+watermill.NewULID())
		for _, text := range []string{"", "?", "{}", `{"process":7}`} {
			require.NoError(t, a.c.Set(t.Context(), drainKey(a.name), text, 0).Err())
			a.presence.followDrain(t.Context(), a.drain)
		}
		_, err := a.orderDrain(t, a.name)
		require.NoError(t, err)
		require.Empty(t, a.drained())
		a.presence.followDrain(t.Context(), nil)
		require.Nil(t, a.presence.drains.Load())
		a.presence.followDrain(t.Context(), a.drain)
		require.Len(t, a.drained(), 1)
	})
}

// Only the process that has the name of an instance now is a member, which a command asks before it believes what answers
// on its machine.
func TestOnlyTheProcessWithThePresenceIsAMember(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		a, command := newDrainable(t, s, db, "a-"+watermill.NewULID()), process(t, s, db)
		require.Empty(t, command.Process())
		is := func(instance, process string) bool {
			member, err := command.IsMember(t.Context(), instance, process)
			require.NoError(t, err)
			return member
		}
		require.True(t, is(a.name, a.Process()))
		require.False(t, is(a.name, "another"))
		require.False(t, is("another", a.Process()))
		was := a.Process()
		require.NoError(t, service{a.Plugin}.Stop(t.Context()))
		require.False(t, is(a.name, was))
		require.False(t, is(a.name, ""))
	})
}

// A demo takes no order to drain, and an operator hears that before anything is ordered.
func TestAProcessThatTakesNoOrderToDrain(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		demo, command := process(t, s, db).starts(t), process(t, s, db)
		name := demo.reg.Env().Instance
		_, err := command.orderDrain(t, name)
		_, previewed := command.drainAction().Preview(t.Context(), command.reg, operate.Input{"instance": {name}})
		for _, err := range []error{err, previewed} {
			var wrong *operate.InputError
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, name+" takes no order to drain, because it is a demo or a command; end it where it was started, such as with Ctrl-C", wrong.Problem)
		}
		require.Zero(t, command.c.Exists(t.Context(), drainKey(name), ordersAuditKey).Val())
	})
}
