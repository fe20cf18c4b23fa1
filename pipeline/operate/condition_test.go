package operate_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// knowing is a plugin with conditions, and broken one that panics.
type (
	knowing []operate.Condition
	broken  struct{}
)

func (knowing) Name() string                          { return "knowing" }
func (k knowing) Register(r *pipeline.Registry) error { r.Offer(k); return nil }
func (k knowing) Conditions() []operate.Condition     { return k }

func (broken) Name() string                          { return "broken" }
func (b broken) Register(r *pipeline.Registry) error { r.Offer(b); return nil }
func (broken) Conditions() []operate.Condition       { panic("no memory") }

func condition(name string, level operate.Level) operate.Condition {
	return operate.Condition{Check: operate.Check{Name: name, Level: level, Text: name + " is " + string(level)}}
}

// The worst comes first, and a plugin that panics takes away no other.
func TestConditions(t *testing.T) {
	t.Parallel()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, knowing{condition("a", operate.OK), condition("b", operate.Warn), condition("c", operate.Fail)}, broken{})
	require.NoError(t, err)
	var said []string
	for _, c := range operate.Conditions(reg) {
		said = append(said, c.Name+" "+string(c.Level))
	}
	require.Equal(t, []string{"c fail", "broken fail", "b warn", "a ok"}, said)
}

func TestConditionsAboutARoute(t *testing.T) {
	t.Parallel()
	api := pipeline.Endpoint{Kind: pipeline.KindServer, Name: "https://api.example"}
	grain := end{pipeline.Endpoint{Kind: "kafka", Name: "grain", Group: "g"}}
	r := pipeline.Route{Name: "grind", From: grain, To: end{pipeline.Endpoint{Kind: "kafka", Name: "flour"}}, Calls: []pipeline.Endpoint{api}}
	for name, c := range map[string]struct {
		of   operate.Condition
		want bool
	}{
		"a server that it calls":  {operate.Condition{Place: api}, true},
		"another server":          {operate.Condition{Place: pipeline.Endpoint{Kind: pipeline.KindServer, Name: "https://other.example"}}, false},
		"its topic":               {operate.Condition{Place: pipeline.Endpoint{Kind: "kafka", Name: "grain"}}, true},
		"its output":              {operate.Condition{Place: pipeline.Endpoint{Kind: "kafka", Name: "flour"}}, true},
		"itself":                  {operate.Condition{Route: "grind"}, true},
		"another route and place": {operate.Condition{Route: "bake", Place: api}, false},
		"nothing in particular":   {operate.Condition{}, false},
	} {
		require.Equal(t, c.want, c.of.About(r), name)
	}
}

// telling is a plugin that asks an instance.
type telling struct {
	all []operate.Condition
	err error
}

func (telling) Name() string                          { return "telling" }
func (p telling) Register(r *pipeline.Registry) error { r.Offer(p); return nil }
func (p telling) ReadConditions(context.Context) ([]operate.Condition, string, error) {
	return p.all, "127.0.0.1:9464", p.err
}

// The command is a process of its own, so it asks the instance on this machine what holds the routes up.
func TestRoutesSaysWhatAnInstanceKnows(t *testing.T) {
	t.Parallel()
	ask := func(in operate.Input, plugins ...pipeline.Plugin) (operate.Answer, string) {
		reg, err := pipeline.NewRegistry(pipeline.Env{}, append(plugins, newMill(time.Now()))...)
		require.NoError(t, err)
		a, err := operate.Routes().Read(t.Context(), reg, in)
		require.NoError(t, err)
		text, err := json.Marshal(a.Value.(operate.RoutesStatus).Conditions)
		require.NoError(t, err)
		return a, string(text)
	}
	down, paused := condition("API", operate.Fail), condition("campaigns", operate.Warn)
	down.Place, paused.Route = pipeline.Endpoint{Kind: "kafka", Name: "grain"}, "bake"
	told := telling{all: []operate.Condition{down, paused, condition("fine", operate.OK)}}

	a, conditions := ask(nil, told)
	require.Equal(t, []operate.Check{down.Check, paused.Check}, a.Checks)
	require.True(t, a.Failed())
	require.Equal(t, []string{"What is said of far sides and effects is what the instance at 127.0.0.1:9464 knows."}, a.Notes[2:], "the first ones are about the oldest message, and the instances")
	require.JSONEq(t, `[
		{"name": "API", "level": "fail", "text": "API is fail", "place": {"kind": "kafka", "name": "grain"}},
		{"name": "campaigns", "level": "warn", "text": "campaigns is warn", "route": "bake"}
	]`, conditions)

	a, _ = ask(operate.Input{"route": {"bake"}}, told)
	require.Equal(t, []operate.Check{paused.Check}, a.Checks, "of one route")

	a, conditions = ask(nil, telling{})
	require.Equal(t, "[]", conditions)
	require.Len(t, a.Notes, 2, "about the oldest message, and the instances")

	for name, c := range map[string][]pipeline.Plugin{"none runs": {telling{err: errors.New("none runs at 127.0.0.1:9464")}}, "nothing asks": nil} {
		a, conditions = ask(nil, c...)
		require.Equal(t, "null", conditions, name)
		require.False(t, a.Failed(), name)
	}
	a, _ = ask(nil, telling{err: fmt.Errorf("none runs at 127.0.0.1:9464")})
	require.Equal(t, []string{"Far sides, pauses of effects, and unknown outcomes are known to a running instance, and are not shown: none runs at 127.0.0.1:9464"}, a.Notes[2:])
}

// keeping is a plugin that keeps the orders about routes.
type keeping struct {
	paused []operate.Condition
	err    error
}

func (keeping) Name() string                          { return "keeping" }
func (p keeping) Register(r *pipeline.Registry) error { r.Offer(p); return nil }
func (p keeping) ReadPauses(context.Context, []pipeline.Route) ([]operate.Condition, error) {
	return p.paused, p.err
}

// A pause is known without an instance on this machine, and is said once where one knows it as well.
func TestRoutesSaysWhatIsPaused(t *testing.T) {
	t.Parallel()
	ask := func(in operate.Input, plugins ...pipeline.Plugin) operate.Answer {
		reg, err := pipeline.NewRegistry(pipeline.Env{}, append(plugins, newMill(time.Now()))...)
		require.NoError(t, err)
		a, err := operate.Routes().Read(t.Context(), reg, in)
		require.NoError(t, err)
		return a
	}
	paused, down := condition("route bake", operate.Warn), condition("API", operate.Fail)
	paused.Route = "bake"
	orders := keeping{paused: []operate.Condition{paused}}
	for name, plugins := range map[string][]pipeline.Plugin{"nothing asks": {orders}, "none runs": {orders, telling{err: errors.New("none runs")}}} {
		a := ask(nil, plugins...)
		require.Equal(t, []operate.Check{paused.Check}, a.Checks, name)
		require.Equal(t, orders.paused, a.Value.(operate.RoutesStatus).Paused, name)
		require.False(t, a.Failed(), name)
	}
	require.Equal(t, []operate.Check{paused.Check, down.Check}, ask(nil, orders, telling{all: []operate.Condition{down, paused}}).Checks)
	require.Equal(t, []operate.Check{paused.Check}, ask(operate.Input{"route": {"bake"}}, orders).Checks)
	require.Empty(t, ask(operate.Input{"route": {"grind"}}, orders).Checks)

	a := ask(nil, keeping{err: errors.New("no answer")})
	require.Contains(t, a.Notes, "Which routes are paused is not known: no answer")
}

// cutOff has a route whose server can't be reached. The orders about routes and what instances tell are there, too.
type cutOff struct{ from connecting }

func (cutOff) Name() string { return "cut-off" }

func (c cutOff) Register(r *pipeline.Registry) error {
	r.Offer(keeping{})
	r.Offer(reader{})
	r.Route(pipeline.Route{
		Name: "grind", From: unreachable{c.from}, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

type unreachable struct{ connecting }

func (unreachable) Connect(context.Context) (context.Context, func(), error) {
	return nil, nil, fmt.Errorf("%w: no route to host", pipeline.ErrUnavailable)
}

// Orders that can't be read are not the same as none.
func TestRoutesSaysThatPausesAreNotKnown(t *testing.T) {
	t.Parallel()
	reg, err := pipeline.NewRegistry(pipeline.Env{}, cutOff{connecting{measured: measured{end: end{pipeline.Endpoint{Kind: reader{}.Kind(), Name: "grain"}}}}})
	require.NoError(t, err)
	a, err := operate.Routes().Read(t.Context(), reg, nil)
	require.ErrorIs(t, err, pipeline.ErrUnavailable)
	require.Regexp(t, "(?m)^Which routes are paused is not known: .*no route to host", strings.Join(a.Notes, "\n"))
}
