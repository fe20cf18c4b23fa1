package console

import (
	"context"
	"net/url"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// partsOf returns a route and those that are part of it, which is the one that reads its retries.
func (s *server) partsOf(route string) (names []string) {
	for _, r := range s.registry.Routes() {
		if operate.Reported(s.registry, r.Name) == route {
			names = append(names, r.Name)
		}
	}
	return names
}

// showRoutePlaces leads to the places of a route, and to its dead letters in the store.
func (s *server) showRoutePlaces(ctx context.Context, q console.Query) (console.Block, error) {
	t := console.Table{Columns: console.Columns("Messages", "Place", "Waiting dead letters")}
	add := func(what string, at *pipeline.Endpoint, dead console.Cell) {
		if at == nil {
			return
		}
		place := console.Word(placeOf(*at)).At(s.linkOf(*at))
		if *at == pipeline.Drop.Describe() {
			place = console.Word("none, because the route drops them")
		}
		t.Rows = append(t.Rows, []console.Cell{console.Word(what), place, dead})
	}
	none := console.Cell{Text: "–"}
	route := q.Text("route")
	for _, r := range app.NewTopology(s.registry).Routes {
		if r.Name != route {
			continue
		}
		add("are read from", &r.From, none)
		add("are written to", r.To, none)
		for _, o := range r.Outputs {
			add("are written to, as "+o.Output, &o.Endpoint, none)
		}
		add("wait for a retry in", r.Retry, none)
		add("end as dead letters in", r.DeadLetter, s.deadOf(ctx, route))
	}
	if len(t.Rows) == 0 {
		return nil, console.ErrNothing
	}
	return t, nil
}

// deadOf has a line for each part of a route, which leads to its dead letters.
func (s *server) deadOf(ctx context.Context, route string) console.Cell {
	value, _, _ := s.readOne(ctx, deadLetters, s.sources, s.countDead) // the state of the route says why it is not known
	byRoute, _ := value.(map[string]int64)
	if byRoute == nil {
		return console.Number(nil)
	}
	var lines []console.Cell
	for _, part := range s.partsOf(route) {
		text := console.Count(byRoute[part]).Text
		if part != route {
			text += " of " + part
		}
		line := console.Cell{Text: text, Data: byRoute[part], Link: "dead-letters?" + url.Values{"handler": {part}}.Encode()}
		if byRoute[part] > 0 {
			line.Level = operate.Warn
		}
		lines = append(lines, line)
	}
	return console.Lines(lines...)
}

// showMeasured shows the metrics of this process, which count since its start.
func (s *server) showMeasured(_ context.Context, q console.Query) (console.Block, error) {
	outcomes := console.Table{
		Columns: console.Columns("Route", "Outcome", "Class", "Messages"), Empty: "This instance has handled no message of it since it was started.",
		Note: "These are the numbers of this instance alone, since it was started. The metrics have those of all.",
	}
	durations := console.Table{
		Columns: console.Columns("Route", "Messages", "Mean", "p50", "p99", "Batches", "Messages per batch"),
		Note:    "A message takes from when it is received to its ack or nack. Half of them took at most p50, and 99 of 100 at most p99, which are estimated from the buckets of the metric.",
	}
	parts := s.partsOf(q.Text("route"))
	if len(parts) == 0 {
		return nil, console.ErrNothing
	}
	for _, part := range parts {
		m, known := operate.MeasuresHere(s.registry, part)
		if !known {
			return nil, console.ErrNothing
		}
		for _, o := range m.Outcomes {
			outcomes.Rows = append(outcomes.Rows, []console.Cell{console.Word(part), console.Word(o.Outcome), console.Word(o.Class), console.Count(int64(o.Messages))}) //nolint:gosec // no process handles as many
		}
		if m.Durations.Count == 0 {
			continue
		}
		batches, size := console.Cell{Text: "–", Right: true}, console.Cell{Text: "–", Right: true}
		if m.Batches.Count > 0 {
			mean := m.Batches.Mean()
			batches, size = console.Count(int64(m.Batches.Count)), console.Rate(&mean) //nolint:gosec // as above
		}
		mean := m.Durations.Mean()
		durations.Rows = append(durations.Rows, []console.Cell{
			console.Word(part), console.Count(int64(m.Durations.Count)), seconds(mean, false), quantile(m.Durations, 0.5), quantile(m.Durations, 0.99), batches, size, //nolint:gosec // as above
		})
	}
	if len(durations.Rows) == 0 {
		return outcomes, nil
	}
	return console.Blocks{outcomes, durations}, nil
}

func quantile(d pipeline.Distribution, share float64) console.Cell {
	value, beyond := d.Quantile(share)
	return seconds(value, beyond)
}

// seconds is a measured time. beyond says that it was longer, and nobody knows how much.
func seconds(value float64, beyond bool) console.Cell {
	d := time.Duration(value * float64(time.Second))
	switch {
	case d < 10*time.Millisecond:
		d = d.Round(10 * time.Microsecond)
	case d < time.Second:
		d = d.Round(time.Millisecond)
	default:
		d = d.Round(10 * time.Millisecond)
	}
	if beyond {
		return console.Cell{Text: "more than " + d.String(), Right: true}
	}
	return console.Cell{Text: d.String(), Data: value, Right: true}
}
