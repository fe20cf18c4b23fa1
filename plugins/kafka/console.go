package kafka

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Console implements console.Contributor: the topics of all plugins, and the groups that read them.
func (p *Plugin) Console() []console.Page {
	return []console.Page{{Path: "topics", Title: "Topics and groups", Order: 10, Places: []string{Kind}, Panels: []console.Panel{
		{Name: "groups", Title: "Consumer groups", Load: p.showGroups},
		{Name: "topics", Title: "Topics", Load: console.OfReport(p.Operations().Reports[0], nil), Actions: []string{"topics create"}},
	}}}
}

// showGroups shows the lag of each group, over all instances. A broadcast has no group.
func (p *Plugin) showGroups(ctx context.Context, q console.Query) (console.Block, error) {
	backlogs, err := operate.Backlogs(ctx, q.Registry, Kind)
	t := console.Table{
		Columns: console.Columns("Group", "Topic", "Route", "Lag", "Oldest message", "Next retry due"),
		Empty:   "No route reads a topic with a consumer group.",
		Note:    "The lag includes the records that are in flight, because their offsets are not committed yet.",
	}
	routes := slices.Clone(q.Registry.Routes())
	sorted.By(routes, func(a, b pipeline.Route) int {
		return strings.Compare(a.From.Describe().Group, b.From.Describe().Group)
	})
	for _, r := range routes {
		at := r.From.Describe()
		if at.Kind != Kind || at.Group == "" {
			continue
		}
		b := backlogs[r.Name]
		due := console.Cell{Text: "–"}
		if !b.NextDue.IsZero() {
			due = console.Until(b.NextDue)
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(at.Group), console.Word(at.Name), console.Word(r.Name), console.Number(b.Waiting), console.Moment(b.Oldest), due,
		})
	}
	if err == nil {
		return t, nil
	}
	if errors.Is(err, pipeline.ErrUnavailable) && len(backlogs) == 0 {
		return nil, err
	}
	return console.Blocks{t, console.Checks{{Name: "not known", Level: operate.Fail, Text: err.Error()}}}, nil
}

var _ console.Contributor = (*Plugin)(nil)
