package console

import (
	"context"
	"strings"
	"sync"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/console/graph"
)

// conditions returns those of all plugins with their secrets masked, because a far side may quote anything.
func (s *server) conditions() []operate.Condition {
	all := operate.Conditions(s.registry)
	for i, c := range all {
		all[i].Text = s.masks.text(c.Text)
	}
	return all
}

// showConditions is the panel of the home page that says what is not in order or paused, and what waits for a person.
// Of the servers it reads the store of dead letters and what instances tell, by the readings that the table of routes shows.
func (s *server) showConditions(ctx context.Context, _ console.Query) (console.Block, error) {
	t := console.Table{
		Columns: console.Columns("What", "State", "To do"),
		Empty:   "As far as this instance knows, every far side works, nothing is paused, and nothing has failed that a person must decide.",
	}
	var work operate.Work
	var reading sync.WaitGroup
	var failed []operate.Check
	reading.Go(func() { work = s.readWork(ctx) })
	reading.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, s.sources.wait)
		defer cancel()
		for _, of := range pipeline.Offers[operate.Checking](s.registry) {
			failed = append(failed, of.FailedChecks(bounded)...)
		}
	})
	value, _, problem := s.readOne(ctx, deadLetters, s.sources, s.countDead)
	reading.Wait()
	conditions := s.conditions()
	for _, check := range failed {
		check.Text = s.masks.text(check.Text)
		conditions = append(conditions, operate.Condition{Check: check})
	}
	for _, gone := range work.Gone {
		conditions = append(conditions, operate.Condition{Check: gone, Page: "instances"})
	}
	for _, c := range conditions {
		if c.Level == operate.OK {
			continue
		}
		name := console.Word(c.Name)
		if path, _, _ := strings.Cut(c.Page, "?"); c.Page != "" {
			if _, exists := s.find(path); exists {
				name = name.At(c.Page)
			}
		}
		t.Rows = append(t.Rows, []console.Cell{name, console.Word(c.Text).In(c.Level), console.Word(c.ToDo())})
	}
	if problem != "" {
		t.Rows = append(t.Rows, []console.Cell{console.Word(deadLetters), console.Word("not known: " + s.masks.text(problem)).In(operate.Warn), console.Word("the page Doctor examines the server")})
	}
	var dead int64
	if byRoute, known := value.(map[string]int64); known {
		for _, n := range byRoute {
			dead += n
		}
	}
	if dead > 0 {
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(deadLetters).At("dead-letters"), console.Word(console.Count(dead).Text + " wait for a person").In(operate.Warn),
			console.Word("look at their errors, then replay or discard them"),
		})
	}
	return t, nil
}

// about returns the conditions about a route that are not in order, by route.
func about(routes []pipeline.Route, all []operate.Condition) map[string][]operate.Condition {
	found := map[string][]operate.Condition{}
	for _, r := range routes {
		for _, c := range all {
			if c.Level != operate.OK && c.About(r) {
				found[r.Name] = append(found[r.Name], c)
			}
		}
	}
	return found
}

// say gives a box a state and the sentence about it. The worst condition comes first, and the others add theirs.
func say(box *graph.Box, level operate.Level, why string) {
	switch {
	case box == nil:
	case box.State == graph.Unknown:
		box.State, box.Why = graph.State(level), why
	case level != operate.OK:
		box.Why += "; " + why
	}
}
