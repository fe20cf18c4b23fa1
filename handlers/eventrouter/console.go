package eventrouter

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/internal/cli"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Addresses of the pages.
const (
	jobsPage = "jobs"
	jobPage  = "jobs/job"
	fieldJob = "job" // in the address of jobPage, as the action jobs reset has it
)

const (
	shownEvents = 200 // rows on the page of a job
	shownData   = 300 // bytes of the data of one event
)

// Console implements console.Contributor: the shards of all domains, and one job with its log.
func (p *Plugin) Console() []console.Page {
	return []console.Page{
		{Path: jobsPage, Title: "Jobs", Order: 7, Panels: []console.Panel{
			{Name: "find", Title: "Find a job", Load: findJob},
			{Name: "shards", Title: "Shards", Load: p.showShards},
		}},
		{Path: jobPage, Title: "Job", Hidden: true, Panels: []console.Panel{
			{Name: "job", Title: "What is known", Values: []string{fieldJob}, Load: p.showJob, Actions: []string{"jobs reset"}}, // one read of the log for both blocks
			{Name: "find", Title: "Find another one", Load: findJob},
		}},
	}
}

func findJob(context.Context, console.Query) (console.Block, error) {
	return console.Find{Page: jobPage, Fields: []operate.Field{{Name: fieldJob, Required: true}}}, nil
}

func (p *Plugin) showShards(ctx context.Context, _ console.Query) (console.Block, error) {
	shards, err := p.jobs().Shards(ctx)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Domain", "Shard", "Stream", "Owner", "Lease until", "Entries", "Pending", "State"),
		Note:    "A job is always in the shard that its id says. Entries are those that the stream still has, also the handled ones; pending ones were delivered and are not handled yet.",
	}
	for _, s := range shards {
		owner, until, state := console.Word(s.Owner), console.Cell{Text: "–"}, console.Word("is read").In(operate.OK)
		switch {
		case s.Problem != "":
			state = console.Word(s.Problem).In(operate.Fail)
		case s.Owner == "" && s.Length == 0:
			state = console.Word("is not read, and is empty")
		case s.Owner == "":
			state = console.Word("no router reads it: start a process with the role router").In(operate.Fail)
		}
		if s.Owner == "" {
			owner = console.Cell{Text: "none"}
		} else {
			until = console.Until(s.Until)
		}
		t.Rows = append(t.Rows, []console.Cell{
			console.Word(s.Domain), console.Count(s.Shard), console.Word(s.Stream), owner, until, console.Count(s.Length), console.Count(s.Pending), state,
		})
	}
	return t, nil
}

// showJob shows the state of a job, and then its events.
func (p *Plugin) showJob(ctx context.Context, q console.Query) (console.Block, error) {
	job := q.Text(fieldJob)
	if job == "" {
		return console.Text("Give a job as DOMAIN/JOB_ID, as in scan/42."), nil
	}
	s, events, err := p.jobs().Status(ctx, job)
	if refused, ok := errors.AsType[*app.ExitError](err); ok {
		return console.Text(refused.Error()), nil
	} else if err != nil {
		return nil, err
	}
	fields := console.Stats{{Name: "Job", Cell: console.Word(s.Job)}, {Name: "Shard", Cell: console.Count(s.Shard)}}
	if s.State != nil {
		fields = append(fields, console.Stat{Name: "Stage", Cell: console.Word(s.State.Stage)}, console.Stat{Name: "Status", Cell: console.Word(s.State.Status)})
	}
	missing := console.Count(s.Missing)
	if s.Missing > 0 {
		missing = missing.In(operate.Warn)
	}
	fields = append(fields, console.Stats{
		{Name: "Ended", Cell: console.Cell{Text: s.Ended(), Data: s.End > 0}},
		{Name: "Numbers", Cell: console.Word(fmt.Sprintf("%d to %d", s.First, s.Top))},
		{Name: "Events in the log", Cell: console.Count(s.Events)},
		{Name: "Missing numbers", Cell: missing},
	}...)
	if s.Reset != nil {
		fields = append(fields, console.Stat{Name: "Last reset", Cell: console.Word(s.Reset.String())})
	}
	if p.config.has(roleGateway) {
		domain, id, _ := strings.Cut(s.Job, "/")
		fields = append(fields, console.Stat{Name: "Page for its user", Cell: console.Word(p.webURL() + "/jobs/" + url.PathEscape(domain) + "/" + url.PathEscape(id) + "/watch")})
	}
	return console.Blocks{fields, eventsOf(s, events)}, nil
}

// eventsOf has the newest events first, with a row for the numbers between them that are missing.
func eventsOf(s cli.Status, events []event.Event) console.Table {
	t := console.Table{Columns: console.Columns("Number", "Stage", "Status", "Time", "Data", "Entry"), Empty: "The log has no event: it has expired, and only the state is kept."}
	next := s.Top
	for _, e := range slices.Backward(events) {
		if len(t.Rows) >= shownEvents {
			t.Note = fmt.Sprintf("Only the newest %d rows are shown. The command jobs watch shows all events.", shownEvents)
			return t
		}
		t.Rows = append(t.Rows, lost(e.Seq+1, next)...)
		t.Rows = append(t.Rows, []console.Cell{
			console.Count(e.Seq), console.Word(e.Stage), console.Word(e.Status), console.Word(e.Timestamp), console.Word(shortened(e.Data)), console.Word(e.StreamID),
		})
		next = e.Seq - 1
	}
	t.Rows = append(t.Rows, lost(s.First, next)...)
	return t
}

// shortened returns the begin of what may have 64 KiB.
func shortened(data []byte) string {
	if len(data) <= shownData {
		return string(data)
	}
	return strings.ToValidUTF8(string(data[:shownData]), "") + "…"
}

// lost returns the row of the numbers from first to last, which the log does not have, or none.
func lost(first, last int64) [][]console.Cell {
	if first > last {
		return nil
	}
	numbers := fmt.Sprintf("%d to %d", first, last)
	if first == last {
		numbers = fmt.Sprint(first)
	}
	row := []console.Cell{{Text: numbers, Data: numbers, Right: true}, console.Word("not in the log").In(operate.Warn)}
	return [][]console.Cell{append(row, make([]console.Cell, 4)...)}
}

var _ console.Contributor = (*Plugin)(nil)
