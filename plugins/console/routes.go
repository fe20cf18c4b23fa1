package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console/graph"
)

// behindAfter is the age of the oldest message at which a route is said to be behind. It is longer than a
// rebalance of a group, and than a rolling restart with the default stop_timeout.
const behindAfter = 2 * time.Minute

const deadLetters = "dead letters"

// readings are what was read for the home page: by server, so that one that does not answer takes away its
// own numbers only.
type readings struct {
	backlogs map[string]operate.Backlog
	dead     map[string]int64 // nil: not known
	work     operate.Work
	problems map[string]string // by kind, and deadLetters
	oldest   time.Time         // when the oldest of them was read; zero: none was read
}

// read reads all servers side by side.
func (s *server) read(ctx context.Context) readings {
	all := readings{backlogs: map[string]operate.Backlog{}, problems: map[string]string{}}
	var mu sync.Mutex
	var reading sync.WaitGroup
	take := func(what string, do func(context.Context) (any, error), use func(any)) {
		reading.Go(func() {
			value, at, problem := s.readOne(ctx, what, s.sources, do)
			mu.Lock()
			defer mu.Unlock()
			if problem != "" {
				all.problems[what] = problem
			}
			if value != nil {
				use(value)
			}
			if !at.IsZero() && (all.oldest.IsZero() || at.Before(all.oldest)) {
				all.oldest = at
			}
		})
	}
	kinds := map[string]bool{}
	for _, r := range s.registry.Routes() {
		kinds[r.From.Describe().Kind] = true
	}
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		take(kind, func(ctx context.Context) (any, error) { return operate.Backlogs(ctx, s.registry, kind) },
			func(v any) {
				found, _ := v.(map[string]operate.Backlog)
				maps.Copy(all.backlogs, found)
			})
	}
	reading.Go(func() {
		work := s.readWork(ctx)
		mu.Lock()
		defer mu.Unlock()
		all.work = work
	})
	take(deadLetters, s.countDead, func(v any) { all.dead, _ = v.(map[string]int64) })
	reading.Wait()
	return all
}

// readWork returns what instances tell. Why it is not known of all of them stands in it.
func (s *server) readWork(ctx context.Context) operate.Work {
	value, _, problem := s.readOne(ctx, "instances", s.sources, func(ctx context.Context) (any, error) {
		work, _ := operate.ReadWork(ctx, s.registry)
		work.Unknown, work.RatesUnknown = s.masks.text(work.Unknown), s.masks.text(work.RatesUnknown)
		for route, one := range work.Routes { // here, because the graph shows them, too
			if one.LastError != nil {
				seen := *one.LastError
				seen.Text = s.masks.text(seen.Text)
				one.LastError = &seen
				work.Routes[route] = one
			}
		}
		return work, nil
	})
	work, _ := value.(operate.Work)
	work.Unknown, work.RatesUnknown = cmp.Or(work.Unknown, problem), cmp.Or(work.RatesUnknown, problem)
	return work
}

func (s *server) countDead(ctx context.Context) (any, error) {
	return operate.CountDead(ctx, s.registry)
}

// readOne reads one server for all panels that show it. value is the last one that is known and at its time, also
// when problem says why there is no newer one.
func (s *server) readOne(ctx context.Context, what string, p pace, do func(context.Context) (any, error)) (value any, at time.Time, problem string) {
	r, late := s.loads.get(ctx, "reading "+what, p, do)
	switch {
	case late && r.at.IsZero():
		problem = fmt.Sprintf("no answer within %s", p.wait)
	case late:
		problem = fmt.Sprintf("no answer within %s, so its numbers are %s old", p.wait, console.Short(time.Since(r.at)))
	case r.err != nil:
		problem = r.err.Error()
	}
	return r.value, r.at, problem
}

// showGraph is the first panel of the home page: the same states and numbers as in the table of routes.
func (s *server) showGraph(ctx context.Context, _ console.Query) (console.Block, error) {
	g, topology := s.graph(s.read(ctx))
	return drawn(g, topology)
}

// drawn is a graph in a part of the page that can be scrolled. data is for programs.
func drawn(g graph.Graph, data any) (console.Block, error) {
	drawing, err := g.SVG()
	if err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return console.HTML{Source: `<div class="scroll" tabindex="0" role="group" aria-label="Drawing of the pipeline">` + drawing + `</div>`, Data: data}, nil
}

// graph returns the graph of all routes, with what is known of each box and the page that it leads to.
func (s *server) graph(found readings) (graph.Graph, app.Topology) {
	topology := app.NewTopology(s.registry)
	g := graph.Of(topology)
	s.link(&g)
	boxes := map[string]*graph.Box{}
	for i := range g.Boxes {
		boxes[g.Boxes[i].ID] = &g.Boxes[i]
	}
	conditions := s.conditions()
	for _, c := range conditions { // those of places; a route has its own in its state
		if c.Place.Kind != "" {
			say(boxes[graph.PlaceID(c.Place)], c.Level, c.Text)
		}
	}
	ofRoute := about(s.registry.Routes(), conditions)
	for _, r := range operate.StatusOf(s.registry, found.backlogs, found.dead, found.work) {
		box := boxes[graph.RouteID(r.Route)]
		if box == nil {
			continue
		}
		state := stateOf(r, found, ofRoute[r.Route], time.Now())
		box.Why = state.Text
		switch {
		case state.Level != "":
			box.State = graph.State(state.Level)
		case isKnown(r):
			box.State = graph.OK
		}
		box.Numbers = []graph.Number{
			{Name: "waiting", Value: console.Number(r.Waiting).Text}, {Name: "retries", Value: console.Number(r.Retries).Text},
			{Name: "dead", Value: console.Number(r.DeadLetters).Text}, {Name: "done/s", Value: console.Rate(r.DonePerSecond).Text},
		}
	}
	return g, topology
}

// showRoutes is the panel with the table of the home page.
func (s *server) showRoutes(ctx context.Context, _ console.Query) (console.Block, error) {
	found := s.read(ctx)
	blocks := console.Blocks{s.routesTable(found, operate.StatusOf(s.registry, found.backlogs, found.dead, found.work))}
	var checks console.Checks
	for _, what := range slices.Sorted(maps.Keys(found.problems)) {
		checks = append(checks, operate.Check{Name: what, Level: operate.Fail, Text: found.problems[what], Remedy: "the page Doctor examines the server"})
	}
	if len(checks) > 0 {
		blocks = append(blocks, checks)
	}
	return blocks, nil
}

// routesTable has a row per route.
func (s *server) routesTable(found readings, routes []operate.RouteStatus) console.Table {
	t := console.Table{
		Columns: console.Columns("Route", "State", "From", "Done/s", "Failed/s", "Waiting", "In flight", "Oldest", "Retries", "Next retry", "Dead letters"),
		Empty:   "This instance has no routes.",
		Note: "All numbers are those of all instances. Done/s are the messages that were handled, and Failed/s those that failed, counted each time. What waits in a Kafka topic includes what is in flight. " +
			"Retries are records that wait in the retry topic, also of work that a ledger has done by another way meanwhile. " + toldBy(found.work),
	}
	t.Columns[3].Name, t.Columns[4].Name = "done_per_second", "failed_per_second"
	ofRoute := about(s.registry.Routes(), s.conditions())
	for _, r := range routes {
		dead := console.Number(r.DeadLetters)
		if r.DeadLetters != nil && *r.DeadLetters > 0 {
			dead = dead.At("dead-letters").In(operate.Warn)
		}
		oldest, due := console.Cell{Text: "–"}, console.Cell{Text: "–"}
		if r.Oldest != nil {
			oldest = console.Moment(*r.Oldest)
		}
		if r.NextDue != nil {
			due = console.Until(*r.NextDue)
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(r.Route).At(routePage + "?" + url.Values{"route": {r.Route}}.Encode()), stateOf(r, found, ofRoute[r.Route], time.Now()), console.Word(placeOf(r.From)),
			console.Rate(r.DonePerSecond), console.Rate(r.FailedPerSecond), console.Number(r.Waiting), console.Number(r.InFlight), oldest, console.Number(r.Retries), due, dead,
		})
	}
	return t
}

// toldBy says whose the numbers are that instances tell about themselves.
func toldBy(w operate.Work) string {
	if w.Unknown != "" {
		return "Rates and last errors are not known of all instances: " + w.Unknown + "."
	}
	text := fmt.Sprintf("Rates, what is in flight of a Kafka topic, and last errors are what each of the instances (%d) told within the last seconds.", w.Known)
	if w.RatesUnknown != "" {
		text += " Rates are not known of all of them: " + w.RatesUnknown + "."
	}
	return text
}

// stateOf says in words what a route does: each reason why it does not do its work, in a line of its own.
func stateOf(r operate.RouteStatus, found readings, conditions []operate.Condition, now time.Time) console.Cell {
	var reasons []console.Cell
	add := func(level operate.Level, text string) { reasons = append(reasons, console.Word(text).In(level)) }
	for _, c := range conditions {
		add(c.Level, c.Name+": "+c.Text)
	}
	problem, unknown := found.problems[r.From.Kind], !isKnown(r)
	switch {
	case unknown && problem != "":
		add(operate.Fail, "not known, because "+r.From.Kind+" does not answer")
	case unknown && r.From.Group == "":
		add("", "every instance reads each message, so nothing waits for a group")
	case unknown:
		add("", "not known, because sources of this kind tell no numbers")
	}
	if r.Oldest != nil && now.Sub(*r.Oldest) > behindAfter {
		text := "behind: the oldest message waits for " + console.Short(now.Sub(*r.Oldest))
		if r.OldestAt != "" {
			text += " (" + r.OldestAt + ")"
		}
		add(operate.Warn, text)
	}
	switch {
	case r.DeadLetters == nil && found.problems[deadLetters] != "":
		add(operate.Warn, "not known whether dead letters wait, because their store can't be read")
	case count(r.DeadLetters) > 0:
		add(operate.Warn, "dead letters wait for a person")
	}
	again := ""
	if r.Retries != nil && *r.Retries > 0 {
		again = "some messages failed and wait for a retry"
	}
	if r.Again() {
		again = cmp.Or(again, "some messages failed and are tried again") + "; the last error: " + operate.Sentence(*r.LastError, now)
	}
	if again != "" {
		add("", again)
	}
	switch {
	case len(reasons) > 0:
		sorted.By(reasons, func(a, b console.Cell) int {
			switch {
			case a.Level.Worse(b.Level):
				return -1
			case b.Level.Worse(a.Level):
				return 1
			}
			return 0
		})
		return console.Lines(reasons...)
	case count(r.Waiting)+count(r.InFlight) > 0:
		return console.Word("works").In(operate.OK)
	}
	return console.Word("idle: nothing waits").In(operate.OK)
}

// isKnown reports whether the server of a route has told what waits. What waits in a retry topic are its retries.
func isKnown(r operate.RouteStatus) bool {
	return r.Waiting != nil || r.InFlight != nil || r.RetryTopic && r.Retries != nil
}

func count(n *int64) int64 {
	if n == nil {
		return 0
	}
	return *n
}

func placeOf(e pipeline.Endpoint) string {
	if e.Group == "" {
		return e.Kind + " " + e.Name
	}
	return e.Kind + " " + e.Name + ", group " + e.Group
}
