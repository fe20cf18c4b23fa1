package console_test

import (
	"context"
	"errors"
	"maps"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// carrier is a plugin of another module whose route calls an API.
type carrier struct {
	calls operate.Calls

	mu   sync.Mutex
	more []operate.Condition
}

func (*carrier) Name() string { return "carrier" }

func (c *carrier) Register(r *pipeline.Registry) error {
	api := pipeline.ServerOf("https://carrier.example/v1")
	c.calls.Name, c.calls.Place, c.calls.Then = "carrier", api, "each parcel waits for its retry"
	r.Offer(&c.calls)
	r.Offer(c)
	r.Route(pipeline.Route{
		Name: "parcels", From: pipelinetest.NewFeed("parcels"), Calls: []pipeline.Endpoint{api}, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

func (c *carrier) Conditions() []operate.Condition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.more
}

func (c *carrier) know(more ...operate.Condition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.more = more
}

// box returns a box of the drawing on the home page, with its class and title.
func (r *rig) box(id string) string {
	r.t.Helper()
	return regexp.MustCompile(`<[ag] class="box [^>]*data-id="` + regexp.QuoteMeta(id) + `".*?</title>`).FindString(r.get("/"))
}

// eventually waits for a panel that is read once a second.
func (r *rig) eventually(what string, ok func() bool) {
	r.t.Helper()
	require.Eventually(r.t, ok, 2*time.Minute, 50*time.Millisecond, what)
}

const inOrder = "As far as this instance knows, every far side works, nothing is paused, and nothing has failed that a person must decide."

// bin stores dead letters.
type bin struct {
	mu   sync.Mutex
	of   map[string]int64
	fail error
}

func (*bin) Name() string { return "bin" }

func (b *bin) Register(r *pipeline.Registry) error {
	r.Offer(b)
	return nil
}

func (b *bin) WaitingByRoute(context.Context) (map[string]int64, bool, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.of), true, b.fail
}

func (b *bin) has(of map[string]int64, fail error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.of, b.fail = of, fail
}

// The panel of what is not in order never says that nothing waits for a person while dead letters do.
func TestDeadLettersAreTrouble(t *testing.T) {
	t.Parallel()
	dead := &bin{}
	r := start(t, nil, &carrier{}, dead)
	require.Contains(t, r.get("/"), inOrder)

	dead.has(map[string]int64{"parcels": 1200, "a route that is gone": 34}, nil)
	r.eventually("the dead letters of all routes", func() bool {
		return strings.Contains(r.get("/"), `<td class="level warn">1,234 wait for a person</td>`)
	})
	require.NotContains(t, r.get("/"), inOrder)
	require.Equal(t, "1,234 wait for a person", rows(t, r.panels("home")["conditions"].Value, "what")["dead letters"]["state"])

	dead.has(nil, errors.New("the database of dead letters is down"))
	r.eventually("a store that does not answer", func() bool {
		return strings.Contains(r.get("/"), `<td class="level warn">not known: the database of dead letters is down</td>`)
	})
	require.NotContains(t, r.get("/"), inOrder)

	dead.has(nil, nil)
	r.eventually("no dead letter", func() bool { return strings.Contains(r.get("/"), inOrder) })
}

// A far side that is down is told at its box, at the route that calls it, and in words, until it works again.
func TestAFarSideThatIsDown(t *testing.T) {
	t.Parallel()
	c := &carrier{}
	r := start(t, nil, c, page(loading("x", pages.Text("x"), nil)))
	const api, route = "server https://carrier.example", "route parcels"
	require.Contains(t, r.box(api), `class="box place unknown"`)
	require.Contains(t, r.get("/"), inOrder)

	c.calls.Answered()
	r.eventually("the far side that answers", func() bool { return strings.Contains(r.box(api), `class="box place ok"`) })
	require.Contains(t, r.box(route), `class="box step unknown"`, "nobody knows what waits")

	for range 3 {
		c.calls.Failed(`answered 503 {"token": "abc123", "reason": "maintenance"}`)
	}
	r.eventually("the far side that is down", func() bool { return strings.Contains(r.box(api), `class="box place warn"`) })
	require.Contains(t, r.box(api), "no call has succeeded since ")
	require.Contains(t, r.box(api), "maintenance")
	require.Contains(t, r.box(api), "each parcel waits for its retry")
	r.eventually("its route", func() bool { return strings.Contains(r.box(route), `class="box step warn"`) })
	require.Contains(t, r.box(route), "carrier: no call has succeeded since ")
	require.NotContains(t, r.get("/"), "abc123", "what it has said is masked in the drawing, too")
	row := rows(t, r.panels("home")["conditions"].Value, "what")["carrier"]
	require.Contains(t, row["state"], "no call has succeeded since ")
	require.Equal(t, "ask who runs it", row["to_do"])

	c.know(
		operate.Condition{Route: "parcels", Page: "tried", Check: operate.Check{Name: "parcels to Peru", Level: operate.Warn, Text: "2 are paused"}},
		operate.Condition{Place: c.calls.Place, Page: "nowhere", Check: operate.Check{Name: "credential", Level: operate.Fail, Text: "it is refused", Remedy: "correct it", Runbook: "RUNBOOK.md, Credential"}},
	)
	r.eventually("the worst", func() bool { return strings.Contains(r.box(api), `class="box place fail"`) })
	require.Regexp(t, `, fail: it is refused; no call has succeeded since `, r.box(api))
	r.eventually("each cause in its line", func() bool {
		return strings.Contains(r.get("/"), `<td class="level fail"><span class="cause level fail">credential: it is refused</span><span class="cause level warn">carrier: no call`)
	})
	text := r.get("/")
	require.Contains(t, text, `<span class="cause level warn">parcels to Peru: 2 are paused</span>`)
	require.Contains(t, text, `<td><a href="/tried">parcels to Peru</a></td>`)
	require.Contains(t, text, `<td>credential</td>`, "no page has its address")
	require.Contains(t, text, `<td>correct it (runbook: RUNBOOK.md, Credential)</td>`)
	require.Regexp(t, `^credential: it is refused; carrier: no call .*; parcels to Peru: 2 are paused`, rows(t, r.panels("home")["routes"].Value, "route")["parcels"]["state"])

	_, text = r.do("GET", "/", "", "Accept: text/plain; columns=200")
	require.Regexp(t, `(?m)^ +State: !! credential: it is refused\n +State: ! carrier: no call has succeeded .*\n(.*\n)? *State: ! parcels to Peru: 2 are paused$`, text)
	require.Regexp(t, `(?m)^carrier +ask who runs it\n +State: ! no call has succeeded since `, text)

	c.know()
	c.calls.Answered()
	r.eventually("the repair", func() bool { return strings.Contains(r.box(api), `class="box place ok"`) })
	r.eventually("nothing that is wrong", func() bool { return strings.Contains(r.get("/"), inOrder) })
	r.eventually("the route after the repair", func() bool { return !strings.Contains(r.get("/"), "no call has succeeded") })
}

// fleet offers what instances tell.
type fleet struct{ told []operate.InstanceWork }

func (fleet) Name() string { return "fleet" }

func (f fleet) Register(r *pipeline.Registry) error {
	r.Offer(f)
	return nil
}

func (fleet) Kind() string { return "redis" }

func (f fleet) ReadWork(context.Context) ([]operate.InstanceWork, bool, error) {
	return f.told, false, nil
}

func TestAnInstanceThatIsGoneIsTrouble(t *testing.T) {
	t.Parallel()
	r := start(t, nil, &carrier{}, fleet{[]operate.InstanceWork{{Instance: "two", Gone: time.Now()}, {Instance: "one"}}})
	require.Regexp(t, `<td class="level warn">is gone without having been stopped; its last sign of life was at 20\S+Z\. What`, r.get("/"))
	require.NotContains(t, r.get("/"), inOrder)
	require.NotContains(t, r.get("/"), "instance one")
	require.NotContains(t, r.get("/"), `href="/instances"`, "this console has no such page")

	r = start(t, nil, fleet{[]operate.InstanceWork{{Instance: "two", Gone: time.Now()}}}, contributor{{Path: "instances", Title: "Instances", Panels: []pages.Panel{loading("x", pages.Text("x"), nil)}}})
	require.Contains(t, r.get("/"), `<a href="/instances">instance two</a>`)
}

// checker is the plugin that runs the checks.
type checker []operate.Check

func (checker) Name() string                                   { return "checker" }
func (c checker) Register(r *pipeline.Registry) error          { r.Offer(c); return nil }
func (c checker) FailedChecks(context.Context) []operate.Check { return c }

// A check that makes the instance unready is trouble, although no plugin has a condition about it.
func TestAFailedCheckIsTrouble(t *testing.T) {
	t.Parallel()
	r := start(t, nil, checker{{Name: "check redis", Level: operate.Fail, Text: `no answer {"token": "abc123"}`, Remedy: "repair what it names"}})
	require.NotContains(t, r.get("/"), inOrder)
	row := rows(t, r.panels("home")["conditions"].Value, "what")["check redis"]
	require.Contains(t, row["state"], "no answer")
	require.NotContains(t, row["state"], "abc123")
	require.Equal(t, "repair what it names", row["to_do"])
}
