package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// end is one end of a route that can't be opened.
type end struct{ pipeline.Endpoint }

func (e end) Describe() pipeline.Endpoint { return e.Endpoint }
func (end) Delays() error                 { return nil }
func (end) Open(context.Context, pipeline.Flow) (pipeline.Subscription, error) {
	panic("the report opened a source")
}
func (end) Publish(context.Context, ...*message.Message) error { panic("the report published") }

// measured is an end with a backlog.
type measured struct {
	end
	backlog operate.Backlog
	err     error
	calls   *int
}

func (m measured) Backlog(context.Context) (operate.Backlog, error) {
	*m.calls++
	return m.backlog, m.err
}

// connecting is a measured source that needs a connection.
type connecting struct {
	measured
	opened, closed *int
}

type connectionKey struct{}

func (c connecting) Connect(ctx context.Context) (context.Context, func(), error) {
	*c.opened++
	return context.WithValue(ctx, connectionKey{}, c.opened), func() { *c.closed++ }, nil
}

func (c connecting) Backlog(ctx context.Context) (operate.Backlog, error) {
	if ctx.Value(connectionKey{}) != c.opened || *c.closed > 0 {
		return operate.Backlog{}, errors.New("there is no connection")
	}
	return c.measured.Backlog(ctx)
}

// mill has a route with a retry topic, one without, one whose source tells nothing, and dead letters.
type mill struct {
	grain, again, flour measured
	dead                map[string]int64
	known               bool
}

func (mill) Name() string { return "mill" }

func (m mill) WaitingByRoute(context.Context) (map[string]int64, bool, error) {
	return m.dead, m.known, nil
}

func (m mill) Register(r *pipeline.Registry) error {
	handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	dead := end{pipeline.Endpoint{Kind: "kafka", Name: "dead"}}
	r.Route(pipeline.Route{Name: "grind", From: m.grain, Handle: handle, Policy: pipeline.Policy{
		DeadLetter: dead, Retry: pipeline.Retry{To: end{pipeline.Endpoint{Kind: "kafka", Name: "grain-retry"}}, From: m.again, Max: 3},
	}})
	r.Route(pipeline.Route{Name: "bake", From: m.flour, Handle: handle, Policy: pipeline.Policy{DeadLetter: dead}})
	r.Route(pipeline.Route{Name: "sell", From: end{pipeline.Endpoint{Kind: "shop", Name: "bread"}}, Handle: handle, Policy: pipeline.Policy{DeadLetter: dead}})
	r.Offer(m)
	return nil
}

func newMill(now time.Time) mill {
	n := func(n int64) *int64 { return &n }
	at := func(kind, name string, b operate.Backlog) measured {
		return measured{end: end{pipeline.Endpoint{Kind: kind, Name: name, Group: "g"}}, backlog: b, calls: new(int)}
	}
	return mill{
		grain: at("kafka", "grain", operate.Backlog{Waiting: n(7), Oldest: now.Add(-90 * time.Second), OldestAt: "grain/4@17"}),
		again: at("kafka", "grain-retry", operate.Backlog{Waiting: n(2), NotDue: n(3), NextDue: now.Add(10 * time.Minute)}),
		flour: at("redis-stream", "flour", operate.Backlog{Waiting: n(0), InFlight: n(4), Oldest: now.Add(-25 * time.Hour)}),
		dead:  map[string]int64{"grind": 1, "grind.retry": 2}, known: true,
	}
}

func read(t *testing.T, m mill, in operate.Input) (operate.Answer, error) {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, m)
	require.NoError(t, err)
	return operate.Routes().Read(t.Context(), reg, in)
}

// The names of the JSON are what scripts read.
func TestRoutes(t *testing.T) {
	t.Parallel()
	now := time.Now()
	a, err := read(t, newMill(now), nil)
	require.NoError(t, err)
	require.False(t, a.Failed())
	text, err := json.Marshal(a.Value)
	require.NoError(t, err)
	ago := func(d time.Duration) string { return now.Add(d).UTC().Format(time.RFC3339Nano) }
	require.JSONEq(t, fmt.Sprintf(`{"routes": [
		{"route": "grind", "from": {"kind": "kafka", "name": "grain", "group": "g"}, "done_per_second": null, "failed_per_second": null, "waiting": 7, "in_flight": null, "oldest": %q, "oldest_at": "grain/4@17", "retries": 5, "next_due": %q, "dead_letters": 3, "last_error": null},
		{"route": "bake", "from": {"kind": "redis-stream", "name": "flour", "group": "g"}, "done_per_second": null, "failed_per_second": null, "waiting": 0, "in_flight": 4, "oldest": %q, "retries": 0, "next_due": null, "dead_letters": 0, "last_error": null},
		{"route": "sell", "from": {"kind": "shop", "name": "bread"}, "done_per_second": null, "failed_per_second": null, "waiting": null, "in_flight": null, "oldest": null, "retries": 0, "next_due": null, "dead_letters": 0, "last_error": null}
	], "checks": [], "conditions": null, "instances_unknown": "without the plugin redis, instances tell each other nothing", "rates_unknown": "without the plugin redis, instances tell each other nothing"}`, ago(-90*time.Second), ago(10*time.Minute), ago(-25*time.Hour)), string(text))
	rows := a.Tables[0].Rows
	require.Equal(t, []string{"grind", "-", "-", "7", "-", rows[0][5], "5", rows[0][7], "3"}, rows[0])
	require.Equal(t, []string{"bake", "-", "-", "0", "4", "25h0m", "0", "-", "0"}, rows[1])
	require.Equal(t, []string{"sell", "-", "-", "-", "-", "-", "0", "-", "0"}, rows[2])
	published := now.Add(-90 * time.Second).UTC()
	require.Len(t, a.Notes, 2)
	require.Equal(t, "Rates, and why messages are tried again, are not known of all instances: without the plugin redis, instances tell each other nothing.", a.Notes[1])
	require.Regexp(t, `^The oldest message of grind is grain/4@17, published `+published.Format(time.RFC3339)+`, 1m3\ds ago\.$`, a.Notes[0])

	young := newMill(now)
	young.grain.backlog.Oldest = now.Add(-time.Second)
	a, err = read(t, young, nil)
	require.NoError(t, err)
	require.Len(t, a.Notes, 1, "it has hardly waited")
	a, err = read(t, young, operate.Input{"route": {"grind"}})
	require.NoError(t, err)
	require.Contains(t, a.Notes[0], "The oldest message of grind is grain/4@17", "it was asked for")
}

// The oldest part of several has the oldest message.
func TestTheOldestOfABacklog(t *testing.T) {
	t.Parallel()
	now := time.Now()
	b := operate.Backlog{Waiting: new(int64), Streams: &operate.StreamBacklogs{}}
	b.Older(time.Time{}, "unknown")
	require.Empty(t, b.OldestAt)
	for position, published := range map[string]time.Time{"b": now, "a": now.Add(-time.Hour), "c": now.Add(time.Hour)} {
		b.Add("stream", operate.Backlog{Waiting: new(int64), Oldest: published, OldestAt: position})
	}
	require.Equal(t, now.Add(-time.Hour), b.Oldest)
	require.Equal(t, "a", b.OldestAt)
}

// kiln has two routes that retry into one topic.
type kiln struct{ mill }

func (k kiln) Register(r *pipeline.Registry) error {
	handle := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	again := end{pipeline.Endpoint{Kind: "kafka", Name: "grain-retry"}}
	policy := pipeline.Policy{DeadLetter: end{pipeline.Endpoint{Kind: "kafka", Name: "dead"}}, Retry: pipeline.Retry{To: again, Max: 3}}
	r.Route(pipeline.Route{Name: "grind", From: k.grain, Handle: handle, Policy: policy})
	r.Route(pipeline.Route{Name: "bake", From: k.flour, Handle: handle, Policy: policy})
	r.Route(pipeline.Route{Name: "again", From: k.again, Handle: handle, Policy: policy})
	r.Offer(k.mill)
	return nil
}

// What waits in the retry topic of several routes, and what its route has made dead letters of, is counted once.
func TestARetryTopicOfSeveralRoutesIsCountedOnce(t *testing.T) {
	t.Parallel()
	m := newMill(time.Now())
	m.dead = map[string]int64{"grind": 1, "bake": 2, "again": 4}
	statuses := func() map[string]operate.RouteStatus {
		reg, err := pipeline.NewRegistry(pipeline.Env{}, kiln{m})
		require.NoError(t, err)
		a, err := operate.Routes().Read(t.Context(), reg, nil)
		require.NoError(t, err)
		all := map[string]operate.RouteStatus{}
		for _, one := range a.Value.(operate.RoutesStatus).Routes {
			all[one.Route] = one
		}
		return all
	}
	all := statuses()
	require.Len(t, all, 3)
	for name, dead := range m.dead {
		require.Equal(t, dead, *all[name].DeadLetters, name)
	}
	require.Nil(t, all["grind"].Retries, "nobody tells whose they are")
	require.Nil(t, all["bake"].Retries)
	require.EqualValues(t, 5, *all["again"].Retries)
	require.EqualValues(t, 2, *all["again"].Waiting, "they are due")
	require.NotNil(t, all["again"].NextDue)
	require.True(t, all["again"].RetryTopic)
	require.False(t, all["bake"].RetryTopic)

	m.again.backlog.NotDue = nil
	require.Nil(t, statuses()["again"].Waiting, "nobody tells which are due")
}

// A route that finds its streams while it runs shows the total, and the streams that are furthest behind.
func TestRoutesOfManyStreams(t *testing.T) {
	t.Parallel()
	n := func(n int64) *int64 { return &n }
	now := time.Now()
	all := operate.Backlog{Waiting: n(0), InFlight: n(0), Streams: &operate.StreamBacklogs{}}
	for i := range int64(150) {
		one := operate.Backlog{Waiting: n(i / 2), InFlight: n(i % 2), Oldest: now.Add(-time.Duration(i) * time.Minute)}
		all.Add(fmt.Sprintf("campaign:%03d", (i*7)%150), one)
	}
	all.Add("idle", operate.Backlog{Waiting: n(0), InFlight: n(0)})
	m := newMill(now)
	m.flour.backlog = all
	a, err := read(t, m, operate.Input{"route": {"bake"}})
	require.NoError(t, err)
	status := a.Value.(operate.RoutesStatus).Routes[0]
	require.Equal(t, []int64{2 * 74 * 75 / 2, 75}, []int64{*status.Waiting, *status.InFlight})
	require.WithinDuration(t, now.Add(-149*time.Minute), *status.Oldest, time.Second)
	require.Equal(t, 151, status.Streams.Total)
	require.Len(t, status.Streams.Worst, 100)
	worst := status.Streams.Worst[0]
	require.Equal(t, []any{"campaign:143", int64(74), int64(1)}, []any{worst.Stream, *worst.Waiting, *worst.InFlight})
	require.Len(t, a.Tables, 2)
	require.Len(t, a.Tables[1].Rows, 10)
	require.Equal(t, []string{"bake", "campaign:143", "74", "1", "2h29m"}, a.Tables[1].Rows[0])
	require.Equal(t, []string{"bake has 151 streams; the 10 that are furthest behind are shown, and --json has up to 100."}, a.Notes)

	// A stream whose number is not known makes the total unknown, and is shown.
	m.flour.backlog = operate.Backlog{Waiting: n(0), InFlight: n(0), Streams: &operate.StreamBacklogs{}}
	m.flour.backlog.Add("odd", operate.Backlog{InFlight: n(0)})
	m.flour.backlog.Add("idle", operate.Backlog{Waiting: n(0), InFlight: n(0)})
	m.flour.backlog.Add("busy", operate.Backlog{Waiting: n(3), InFlight: n(0)})
	a, err = read(t, m, operate.Input{"route": {"bake"}})
	require.NoError(t, err)
	require.Nil(t, a.Value.(operate.RoutesStatus).Routes[0].Waiting)
	require.Equal(t, [][]string{{"bake", "busy", "3", "0", "-"}, {"bake", "odd", "-", "0", "-"}}, a.Tables[1].Rows)
	require.Empty(t, a.Notes)
}

// A foreign retry record may be due in any year.
func TestRoutesWithATimeThatJSONCannotHave(t *testing.T) {
	t.Parallel()
	m := newMill(time.Now())
	m.again.backlog.NextDue = time.Date(9999, time.December, 31, 23, 0, 0, 0, time.FixedZone("", -2*60*60))
	a, err := read(t, m, nil)
	require.NoError(t, err)
	text, err := json.Marshal(a.Value)
	require.NoError(t, err)
	require.Contains(t, string(text), `"retries":5,"next_due":null`)
}

// The sources of one kind share a connection, which is closed after the last of them, also when one of
// them fails.
func TestRoutesConnectOnce(t *testing.T) {
	t.Parallel()
	for name, wrong := range map[string]error{"all answer": nil, "one fails": fmt.Errorf("%w: no broker answered", pipeline.ErrUnavailable)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			opened, closed := 0, 0
			var all sources
			for _, from := range []string{"grain", "flour"} {
				m := measured{end: end{pipeline.Endpoint{Kind: "kafka", Name: from, Group: "g"}}, err: wrong, calls: new(int)}
				all = append(all, connecting{m, &opened, &closed})
			}
			reg, err := pipeline.NewRegistry(pipeline.Env{}, all)
			require.NoError(t, err)
			a, err := operate.Routes().Read(t.Context(), reg, nil)
			require.Equal(t, wrong != nil, errors.Is(err, pipeline.ErrUnavailable))
			require.Equal(t, wrong != nil, a.Failed())
			require.Equal(t, 1, opened)
			require.Equal(t, 1, closed)
		})
	}
}

// sources is a plugin with a route from each of them.
type sources []pipeline.Source

func (sources) Name() string { return "sources" }

func (s sources) Register(r *pipeline.Registry) error {
	for _, from := range s {
		r.Route(pipeline.Route{
			Name: "of." + from.Describe().Name, From: from, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
			Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
		})
	}
	return nil
}

// readerFirst registers the route that reads retries, and retries into the same topic, before the one that they are of.
type readerFirst struct{}

func (readerFirst) Name() string { return "reader-first" }

func (readerFirst) Register(r *pipeline.Registry) error {
	at := func(name string) end { return end{pipeline.Endpoint{Kind: "kafka", Name: name}} }
	for _, from := range []string{"again", "grain"} {
		r.Route(pipeline.Route{
			Name: "of." + from, From: at(from), Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
			Policy: pipeline.Policy{DeadLetter: at("dead"), Retry: pipeline.Retry{To: at("again"), Max: 3}},
		})
	}
	return nil
}

func TestTheNumbersOfARetryAreReportedWithItsRoute(t *testing.T) {
	t.Parallel()
	for name, plugin := range map[string]pipeline.Plugin{"of.grain": readerFirst{}, "grind": newMill(time.Now())} {
		reg, err := pipeline.NewRegistry(pipeline.Env{}, plugin)
		require.NoError(t, err)
		require.Equal(t, name, operate.Reported(reg, name))
		require.Equal(t, name, operate.Reported(reg, map[string]string{"of.grain": "of.again", "grind": "grind.retry"}[name]))
	}
}

func TestRoutesOfOneName(t *testing.T) {
	t.Parallel()
	a, err := read(t, newMill(time.Now()), operate.Input{"route": {"grind.retry"}})
	require.NoError(t, err)
	require.Len(t, a.Tables[0].Rows, 1)
	row := a.Tables[0].Rows[0]
	require.Equal(t, "grind.retry", row[0])
	require.Equal(t, "5", row[6])
	require.Equal(t, "2", row[8], "its own dead letters, once")
	_, err = read(t, newMill(time.Now()), operate.Input{"route": {"grnd"}})
	_, wrong := errors.AsType[*operate.InputError](err)
	require.True(t, wrong)
	require.EqualError(t, err, `no route has the name "grnd"; the routes are grind, grind.retry, bake, sell`)
}

// A server that does not answer is asked once, and the numbers of the others are shown.
func TestRoutesWithoutOneServer(t *testing.T) {
	t.Parallel()
	m := newMill(time.Now())
	m.grain.err = fmt.Errorf("%w: no broker at k:9092 answered:\n\trefused\n\trefused", pipeline.ErrUnavailable)
	m.known = false
	a, err := read(t, m, nil)
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
	require.Zero(t, *m.again.calls)
	value := a.Value.(operate.RoutesStatus)
	require.Nil(t, value.Routes[0].Waiting)
	require.Nil(t, value.Routes[0].Retries)
	require.Nil(t, value.Routes[0].DeadLetters, "no store")
	require.EqualValues(t, 4, *value.Routes[1].InFlight)
	require.Len(t, value.Checks, 1)
	require.Equal(t, operate.Fail, value.Checks[0].Level)
	require.Contains(t, value.Checks[0].String(), "not known: route grind: ")
	require.Contains(t, value.Checks[0].String(), "no broker at k:9092 answered: refused", "in one line, and each cause once")
	require.Equal(t, 1, strings.Count(value.Checks[0].String(), "refused"))
}

// What panics while it is read is not known, and the numbers of the others are shown.
func TestRoutesWhoseReadingPanics(t *testing.T) {
	t.Parallel()
	m := newMill(time.Now())
	m.grain.calls = nil
	a, err := read(t, m, nil)
	require.NoError(t, err)
	value := a.Value.(operate.RoutesStatus)
	require.Nil(t, value.Routes[0].Waiting)
	require.EqualValues(t, 5, *value.Routes[0].Retries)
	require.EqualValues(t, 4, *value.Routes[1].InFlight)
	require.Len(t, value.Checks, 1)
	require.Contains(t, value.Checks[0].String(), "route grind: panic: runtime error: invalid memory address")

	reg, err := pipeline.NewRegistry(pipeline.Env{}, sources{unconnected{m.again}}, forgetful{})
	require.NoError(t, err)
	a, err = operate.Routes().Read(t.Context(), reg, nil)
	require.NoError(t, err)
	require.Len(t, a.Checks, 2)
	require.Contains(t, a.Checks[0].String(), "route of.grain-retry: panic: no wire")
	require.Contains(t, a.Checks[1].String(), "dead letters: panic: forgot")
}

// unconnected panics when it connects, and forgetful when it counts.
type (
	unconnected struct{ measured }
	forgetful   struct{}
)

func (unconnected) Connect(context.Context) (context.Context, func(), error) { panic("no wire") }

func (forgetful) Name() string                          { return "forgetful" }
func (f forgetful) Register(r *pipeline.Registry) error { r.Offer(f); return nil }
func (forgetful) WaitingByRoute(context.Context) (map[string]int64, bool, error) {
	panic("forgot")
}

func TestCheckInOneLine(t *testing.T) {
	t.Parallel()
	c := operate.Check{Name: "orders", Level: operate.Warn, Text: "has one replica", Remedy: "add two", Runbook: "topics"}
	require.Equal(t, "orders: has one replica; add two (runbook: topics)", c.String())
	require.False(t, operate.Answer{Checks: []operate.Check{c}}.Failed())
}

// patient has a source on a server that does not answer before everything else was asked.
type patient struct {
	end
	others *sync.WaitGroup
}

func (p patient) Backlog(ctx context.Context) (operate.Backlog, error) {
	asked := make(chan struct{})
	go func() { defer close(asked); p.others.Wait() }()
	select {
	case <-asked:
		return operate.Backlog{}, nil
	case <-ctx.Done():
		return operate.Backlog{}, ctx.Err()
	}
}

func (p patient) Name() string { return "patient" }

func (p patient) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{Name: "wait", From: p, Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil }, Policy: pipeline.Policy{DeadLetter: pipeline.Drop}})
	r.Offer(p)
	return nil
}

func (p patient) WaitingByRoute(context.Context) (map[string]int64, bool, error) {
	p.others.Done()
	return map[string]int64{"wait": 7}, true, nil
}

func (p patient) ReadConditions(context.Context) ([]operate.Condition, string, error) {
	p.others.Done()
	return []operate.Condition{{Check: operate.Check{Name: "carrier", Level: operate.Warn, Text: "no call has succeeded"}}}, "127.0.0.1:9464", nil
}

// A server that does not answer uses up the time of the report. What other servers know is read meanwhile, so that the
// report does not blame them.
func TestAServerThatDoesNotAnswerHidesNoOther(t *testing.T) {
	t.Parallel()
	p := patient{end{pipeline.Endpoint{Kind: "kafka", Name: "orders", Group: "g"}}, new(sync.WaitGroup)}
	p.others.Add(2)
	reg, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	answer, err := operate.Routes().Read(ctx, reg, nil)
	require.NoError(t, err)
	status, ok := answer.Value.(operate.RoutesStatus)
	require.True(t, ok)
	require.Empty(t, status.Checks)
	require.EqualValues(t, 7, *status.Routes[0].DeadLetters)
	require.Len(t, status.Conditions, 1)
}
