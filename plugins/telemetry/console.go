package telemetry

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Console implements console.Contributor: the checks of this instance are on the home page.
func (p *Plugin) Console() []console.Page {
	return []console.Page{{Panels: []console.Panel{{Name: "checks", Title: "Checks of this instance", Load: p.server.showChecks}}}}
}

// FailedChecks implements operate.Checking. During the drain it has none, because services stop.
func (p *Plugin) FailedChecks(ctx context.Context) (failed []operate.Check) {
	if p.server.now() == draining {
		return nil
	}
	results := p.server.results(ctx, p.server.registry)
	for _, name := range slices.Sorted(maps.Keys(results)) {
		if r := results[name]; !r.OK {
			failed = append(failed, operate.Check{
				Name: "check " + name, Level: operate.Fail, Text: logs.OneLine(r.Error), Remedy: "repair what it names; the panel of the checks has the details",
			})
		}
	}
	return failed
}

// results are those of all checks. Without an operations server nothing has run them, so they run now.
func (s *server) results(ctx context.Context, reg *pipeline.Registry) map[string]CheckResult {
	s.mu.Lock()
	serves, probes := s.http != nil, s.probes
	s.mu.Unlock()
	if !serves {
		return runNow(ctx, reg.HealthChecks())
	}
	results := map[string]CheckResult{}
	for _, p := range probes {
		results[p.Name] = p.result(time.Now())
	}
	return results
}

// showChecks shows what /readyz?verbose answers.
func (s *server) showChecks(ctx context.Context, q console.Query) (console.Block, error) {
	results := s.results(ctx, q.Registry)
	t := console.Table{Columns: console.Columns("Check", "State", "Reason", "Measured", "Details"), Empty: "No plugin has a check."}
	for _, name := range slices.SortedFunc(maps.Keys(results), func(a, b string) int {
		failed := map[bool]int{false: 0, true: 1} // what failed comes first
		return cmp.Or(failed[results[a].OK]-failed[results[b].OK], strings.Compare(a, b))
	}) {
		r := results[name]
		state := console.Word("passes").In(operate.OK)
		if !r.OK {
			state = console.Word("fails").In(operate.Fail)
		}
		details := console.Cell{Text: inWords(r.Details), Data: printable(r.Details)}
		var reasons []console.Cell // an error that joins several has a line for each
		for _, reason := range strings.Split(r.Error, "\n") {
			reasons = append(reasons, console.Word(reason))
		}
		t.Rows = append(t.Rows, []console.Cell{console.Word(name), state, console.Lines(reasons...), console.Moment(r.Measured), details})
	}
	return t, nil
}

// runNow runs checks at once. What does not end with ctx has failed, and goes on in the background.
func runNow(ctx context.Context, checks []pipeline.HealthCheck) map[string]CheckResult {
	results := map[string]CheckResult{}
	var mu sync.Mutex // guards results until the end of ctx
	ended := make(chan struct{}, len(checks))
	for _, c := range checks {
		go func() {
			p := &probe{HealthCheck: c, interval: time.Minute, timeout: time.Minute}
			p.check(ctx, time.Now())
			mu.Lock()
			defer mu.Unlock()
			results[c.Name] = p.result(time.Now())
			ended <- struct{}{}
		}()
	}
	for range checks {
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
	mu.Lock()
	defer mu.Unlock()
	all := maps.Clone(results)
	for _, c := range checks {
		if _, known := all[c.Name]; !known {
			all[c.Name] = CheckResult{Error: errors.Join(fmt.Errorf("the check has not returned"), ctx.Err()).Error()}
		}
	}
	return all
}

// inWords writes details in one line, sorted by name.
func inWords(details map[string]any) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(details)) {
		text := fmt.Sprint(details[name])
		if encoded, err := json.Marshal(details[name]); err == nil {
			text = strings.Trim(string(encoded), `"`)
		}
		words = append(words, strings.ReplaceAll(name, "_", " ")+": "+text)
	}
	return strings.Join(words, "; ")
}

var (
	_ console.Contributor = (*Plugin)(nil)
	_ operate.Checking    = (*Plugin)(nil)
)
