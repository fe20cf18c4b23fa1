package redis

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// ordered is a process with two routes, whose server has no keys of other tests.
type ordered struct {
	*Plugin
	reg *pipeline.Registry
	c   goredis.UniversalClient
}

type withRoutes struct{ p *Plugin }

func (withRoutes) Name() string { return "test" }

func (w withRoutes) Register(r *pipeline.Registry) error {
	ack := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	retry := pipeline.Retry{To: w.p.Sink("again"), From: w.p.Source("again", "g")}
	r.Route(pipeline.Route{Name: "invoices", From: w.p.Source("in", "g"), Handle: ack, Policy: pipeline.Policy{DeadLetter: pipeline.Drop, Retry: retry}})
	r.Route(pipeline.Route{Name: "mails", From: w.p.Source("mails", "g"), Handle: ack, Policy: pipeline.Policy{DeadLetter: pipeline.Drop}})
	return nil
}

// process returns a process that was not started: it is a command.
func process(t *testing.T, s redistest.Server, db int) ordered {
	t.Helper()
	p := New()
	p.cfg.Addrs, p.cfg.DB = []string{s.Addr}, db
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "test-" + watermill.NewULID(), Logger: redistest.Logger(t)}, p, withRoutes{p})
	require.NoError(t, err)
	return ordered{p, reg, s.Client(t, func(o *goredis.Options) { o.DB = db })}
}

// starts starts the service of the process.
func (o ordered) starts(t *testing.T) ordered {
	t.Helper()
	require.NoError(t, service{o.Plugin}.Start(t.Context()))
	t.Cleanup(func() { _ = service{o.Plugin}.Stop(context.Background()) })
	return o
}

func (o ordered) action(verb string) operate.Action {
	for _, a := range o.Operations().Actions {
		if a.Name == "routes "+verb {
			return a
		}
	}
	return operate.Action{}
}

// does uses an action, and returns its line.
func (o ordered) does(t *testing.T, verb, route string) string {
	t.Helper()
	answer, err := o.action(verb).Do(t.Context(), o.reg, operate.Input{"route": {route}}, operate.Use{Who: "ann", Why: "the shop moves"})
	require.NoError(t, err)
	return answer.Lines[0]
}

// previews returns the line of a dry run.
func (o ordered) previews(t *testing.T, verb, route string) string {
	t.Helper()
	answer, err := o.action(verb).Preview(t.Context(), o.reg, operate.Input{"route": {route}})
	require.NoError(t, err)
	return answer.Lines[0]
}

// eachDatabase runs the test on each server, with a database that no other test has.
func eachDatabase(t *testing.T, test func(t *testing.T, s redistest.Server, db int)) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) { test(t, s, s.Database(t)) })
}

// A command without an instance pauses, says so when it was so already, and resumes. Each change has a row in the
// audit, and a preview changes nothing.
func TestRoutesArePausedAndResumed(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		o := process(t, s, db)
		require.Equal(t, "mails is not paused.", o.does(t, "resume", "mails"))
		require.Contains(t, o.previews(t, "pause", "invoices"), "Would pause invoices and invoices.retry, within 5s on every instance that runs")
		require.Zero(t, o.c.Exists(t.Context(), ordersKey, ordersAuditKey).Val(), "a preview changes nothing, and nothing is recorded without a change")

		require.Contains(t, o.does(t, "pause", "invoices"), "Paused invoices and invoices.retry, within 5s")
		require.Regexp(t, `^invoices is paused already: paused since 20\S+Z, for \S+, by ann, because: the shop moves$`, o.does(t, "pause", "invoices"))
		require.Contains(t, o.previews(t, "pause", "invoices"), "invoices is paused already")
		require.Contains(t, o.previews(t, "resume", "invoices"), "Would resume invoices and invoices.retry, within 5s on every instance that runs. It is paused since")
		require.Equal(t, "mails is not paused.", o.previews(t, "resume", "mails"))
		require.Contains(t, o.does(t, "resume", "invoices"), "Resumed invoices and invoices.retry")
		require.Equal(t, "invoices is not paused.", o.does(t, "resume", "invoices"))
		require.Contains(t, o.does(t, "pause", "invoices"), "Paused invoices")
		require.False(t, o.RoutePaused("invoices"), "a command has no routes of its own")
		require.Empty(t, o.Conditions())
		paused, err := o.ReadPauses(t.Context(), o.reg.Routes())
		require.NoError(t, err)
		require.Len(t, paused, 1, "mails is not")
		require.Equal(t, "invoices", paused[0].Route)
		require.Regexp(t, `^paused since 20\S+Z, for \S+, by ann, because: the shop moves$`, paused[0].Text)

		i := process(t, s, db).starts(t)
		page, err := i.AuditLogs()[0].Recent(t.Context(), operate.AuditFilter{Subject: "INVOICES"}, 10)
		require.NoError(t, err)
		var rows []string
		for _, c := range page.Changes {
			rows = append(rows, fmt.Sprint(c.Action, " ", c.Subject, " ", c.Who, " ", c.Why))
			require.WithinDuration(t, time.Now(), c.At, 5*time.Minute)
		}
		require.Equal(t, []string{"pause invoices ann the shop moves", "resume invoices ann the shop moves", "pause invoices ann the shop moves"}, rows)
		_, err = o.AuditLogs()[0].Recent(t.Context(), operate.AuditFilter{}, 10)
		require.ErrorIs(t, err, pipeline.ErrUnavailable, "the service does not run there")
	})
}

// What another plugin changes about a route is in the same audit, with its outcome, also when the process was not started.
func TestTheAuditOfRoutesTakesOtherChanges(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		o := process(t, s, db)
		reset := operate.Change{Who: "ann", Why: "ticket 7", Action: "reset", Subject: "invoices", Detail: "0: 12 to 5"}
		refused := errors.New("the group\nhas members")
		connected, closeIt, err := operate.Recording(t.Context(), o.reg)
		require.NoError(t, err)
		defer closeIt()
		c, done, err := o.connected(connected)
		require.NoError(t, err)
		done()
		require.Same(t, connected.Value(sharedClient{o.Plugin}), c, "all changes share a connection")
		recorded, failed, unrecorded := operate.Record(connected, o.reg, reset, func() error { return refused })
		require.NoError(t, unrecorded)
		require.ErrorIs(t, failed, refused)
		require.True(t, recorded)
		o.does(t, "pause", "invoices")
		page, err := process(t, s, db).starts(t).AuditLogs()[0].Recent(t.Context(), operate.AuditFilter{}, 10)
		require.NoError(t, err)
		var rows []string
		for _, c := range page.Changes {
			rows = append(rows, fmt.Sprintf("%s %s by %s because %s: %q, %q", c.Action, c.Subject, c.Who, c.Why, c.Outcome, c.Detail))
		}
		require.Equal(t, []string{
			`pause invoices by ann because the shop moves: "done", ""`,
			`reset invoices by ann because ticket 7: "failed", "the group; has members"`, `reset invoices by ann because ticket 7: "begun", "0: 12 to 5"`,
		}, rows)
	})
}

// A route that nobody has is refused with the names of those that exist. An order about one that existed can be
// taken back.
func TestAnUnknownRouteIsRefused(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		o := process(t, s, db)
		for _, verb := range []string{"pause", "resume"} {
			_, err := o.action(verb).Preview(t.Context(), o.reg, operate.Input{"route": {"invoice"}})
			var wrong *operate.InputError
			require.ErrorAs(t, err, &wrong)
			require.Equal(t, operate.InputError{Field: "route", Problem: `no route has the name "invoice"; the routes are invoices, invoices.retry, mails`}, *wrong)
			_, err = o.action(verb).Do(t.Context(), o.reg, operate.Input{"route": {"invoice"}}, operate.Use{Who: "ann", Why: "x"})
			require.ErrorAs(t, err, &wrong)
		}
		_, _, err := storeOrder(t.Context(), o.c, "invoice", true, orderedBy{"ann", "it was called so"})
		require.NoError(t, err)
		_, err = o.action("pause").Do(t.Context(), o.reg, operate.Input{"route": {"invoice"}}, operate.Use{Who: "ann", Why: "x"})
		require.ErrorContains(t, err, `no route has the name "invoice"`)
		require.Contains(t, o.does(t, "resume", "invoice"), "Resumed invoice, within 5s")
	})
}

// Every instance that runs reads an order with the renewal of its presence, also one that starts later. A wiped
// server gets the orders back from the instances.
func TestOrdersReachEveryInstance(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		t.Parallel()
		a, b := process(t, s, db).starts(t), process(t, s, db).starts(t)
		require.False(t, b.RoutePaused("invoices"))
		require.Empty(t, b.Conditions())
		a.does(t, "pause", "invoices")
		require.True(t, a.RoutePaused("invoices"), "at once, where it was ordered")
		redistest.Eventually(t, "the other one knows it", func() bool { return b.RoutePaused("invoices") })
		require.False(t, b.RoutePaused("mails"))
		all := b.Conditions()
		require.Len(t, all, 1)
		require.Equal(t, []any{"route invoices", "invoices", operate.Warn}, []any{all[0].Name, all[0].Route, all[0].Level})
		require.Regexp(t, `^paused since 20\S+Z, for \S+, by ann, because: the shop moves$`, all[0].Text)
		require.True(t, all[0].About(b.reg.Routes()[0]))
		require.True(t, all[0].About(b.reg.Routes()[1]), "its retries wait too")
		require.False(t, all[0].About(b.reg.Routes()[2]))
		seconds := map[string]float64{}
		gathered := prometheus.NewRegistry()
		gathered.MustRegister(pausedMetric{b.Plugin})
		families, err := gathered.Gather()
		require.NoError(t, err)
		for _, m := range families[0].GetMetric() {
			seconds[m.GetLabel()[1].GetValue()+" "+m.GetLabel()[2].GetValue()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
		require.Len(t, seconds, 3)
		require.Positive(t, seconds["invoices in g"])
		require.Positive(t, seconds["invoices.retry again g"])
		require.Zero(t, seconds["mails mails g"])
		late := process(t, s, db).starts(t)
		require.True(t, late.RoutePaused("invoices"), "from its start on")

		require.NoError(t, a.c.FlushDB(t.Context()).Err())
		redistest.Eventually(t, "the order is there again", func() bool { return a.c.HExists(t.Context(), ordersKey, "invoices").Val() })
		require.True(t, process(t, s, db).starts(t).RoutePaused("invoices"), "also after the wipe")
		require.Contains(t, process(t, s, db).does(t, "resume", "invoices"), "Resumed")
		redistest.Eventually(t, "all have resumed", func() bool {
			return !a.RoutePaused("invoices") && !b.RoutePaused("invoices") && !late.RoutePaused("invoices")
		})
		require.Empty(t, b.Conditions())
	})
}

// Of two copies of an order the later one holds, whoever has it.
func TestTheLaterOrderHolds(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		o := process(t, s, db)
		log := redistest.Logger(t)
		o.does(t, "pause", "invoices")
		require.NoError(t, o.orders.read(t.Context(), o.c, log))
		old := o.orders.of("invoices").text
		o.does(t, "resume", "invoices")
		require.NoError(t, o.orders.read(t.Context(), o.c, log))
		require.False(t, o.RoutePaused("invoices"), "the server has the later one")
		require.NoError(t, o.c.HSet(t.Context(), ordersKey, "invoices", old).Err(), "a failover has lost the resume")
		require.NoError(t, o.orders.read(t.Context(), o.c, log))
		require.False(t, o.RoutePaused("invoices"), "the instance has the later one")
		require.NotEqual(t, old, o.c.HGet(t.Context(), ordersKey, "invoices").Val(), "and the server has it again")

		o.does(t, "pause", "invoices")
		require.NoError(t, o.orders.read(t.Context(), o.c, log))
		future := routeOrder{at: o.orders.of("invoices").at + int64(time.Hour/time.Microsecond)}
		require.NoError(t, o.c.HSet(t.Context(), ordersKey, "invoices", fmt.Sprintf("%d 1 {}", future.at)).Err(), "of a server whose clock was ahead")
		require.NoError(t, o.orders.read(t.Context(), o.c, log))
		o.does(t, "resume", "invoices")
		require.NoError(t, o.orders.read(t.Context(), o.c, log))
		require.False(t, o.RoutePaused("invoices"))
		require.Greater(t, o.orders.of("invoices").at, future.at)
	})
}

// An order that can't be read pauses its route alone, until another one is stored.
func TestAnUnreadableOrderPausesItsRoute(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		for _, text := range []string{"?", "1764590400000000 1 {", "1764590400000000 2 {}", "x 0 {}", ""} {
			o := process(t, s, db)
			require.NoError(t, o.c.HSet(t.Context(), ordersKey, "invoices", text).Err())
			o.starts(t)
			require.True(t, o.RoutePaused("invoices"), text)
			require.False(t, o.RoutePaused("mails"))
			require.NotEmpty(t, o.Conditions()[0].Text)
			o.does(t, "resume", "invoices")
			require.False(t, o.RoutePaused("invoices"), text)
		}
	})
}

// An instance that can't read the orders does not start, because it would run what is paused. One that runs keeps
// the last orders.
func TestOrdersThatCantBeRead(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		o := process(t, s, db).starts(t)
		o.does(t, "pause", "invoices")
		require.NoError(t, o.c.Del(t.Context(), ordersKey).Err())
		require.NoError(t, o.c.Set(t.Context(), ordersKey, "of another program", 0).Err())
		o.orders.follow(t.Context(), o.c, redistest.Logger(t))
		require.True(t, o.RoutePaused("invoices"))
		fresh := process(t, s, db)
		err := service{fresh.Plugin}.Start(t.Context())
		require.ErrorContains(t, err, "read the orders about routes: ")
		require.ErrorContains(t, err, "WRONGTYPE")
		alive, err := Alive(t.Context(), o.c, fresh.reg.Env().Instance)
		require.NoError(t, err)
		require.False(t, alive[fresh.reg.Env().Instance], "its name is free again")
	})
}

// The hash is bounded. Routes that were resumed make place for one that is paused.
func TestTheOrdersAreBounded(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		o := process(t, s, db)
		pipe := o.c.Pipeline()
		for i := range ordersMost {
			pipe.HSet(t.Context(), ordersKey, fmt.Sprint("r", i), "1764590400000000 1 {}")
		}
		_, err := pipe.Exec(t.Context())
		require.NoError(t, err)
		_, err = o.action("pause").Do(t.Context(), o.reg, operate.Input{"route": {"invoices"}}, operate.Use{Who: "ann", Why: "x"})
		require.ErrorIs(t, err, errOrdersFull)
		require.Contains(t, o.does(t, "resume", "r7"), "Resumed r7")
		require.Contains(t, o.does(t, "pause", "invoices"), "Paused invoices")
		require.False(t, o.c.HExists(t.Context(), ordersKey, "r7").Val())
		require.Equal(t, int64(ordersMost), o.c.HLen(t.Context(), ordersKey).Val())
	})
}

// A full server takes an order all the same.
func TestAFullServerTakesOrders(t *testing.T) {
	redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
		o := process(t, s.Server, 0)
		require.NoError(t, o.c.ConfigSet(t.Context(), "maxmemory", "1").Err())
		require.ErrorContains(t, o.c.Set(t.Context(), "k", "v", 0).Err(), "OOM")
		require.Contains(t, o.does(t, "pause", "invoices"), "Paused invoices")
		o.starts(t)
		require.True(t, o.RoutePaused("invoices"))
	})
}
