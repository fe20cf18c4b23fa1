package cli

import (
	"context"
	"fmt"
	"strconv"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Status is the output of status --json.
type Status struct {
	Job   string       `json:"job"`
	Shard int          `json:"shard"`
	State *event.Event `json:"state,omitempty"` // nil: it has expired
	First int64        `json:"first"`           // lowest number that may be in the log
	Top   int64        `json:"top"`             // highest number
	End   int64        `json:"end,omitempty"`   // number of the last event; 0: the job runs
	// Events is the number of events in the log, Missing that of the numbers that it lacks.
	Events  int   `json:"events"`
	Missing int64 `json:"missing"`
	// Reset is the last reset of the job; nil: there is none.
	Reset *Reset `json:"reset,omitempty"`
}

func (e Deps) status() operate.Report {
	return operate.Report{
		About: operate.About{
			Name: "jobs status", Short: "Show the state and the log of a job",
			Long: `Show the state and the log of a job, read from Redis.

The exit code is 1 if Redis has neither.`,
			Examples: []string{"jobs status scan/42 --profile router"}, Fields: jobField(), Validate: checkJob, Register: e.Register,
		},
		Read: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			s, _, err := e.Jobs().Status(ctx, in.Text("job"))
			if err != nil {
				return operate.Answer{}, err
			}
			return s.answer(), nil
		},
	}
}

// Status returns what Redis has of a job, DOMAIN/JOB_ID, and its log. The error says that the text is no job, that there is no such
// domain, or that Redis has nothing of the job.
func (o Jobs) Status(ctx context.Context, text string) (Status, []event.Event, error) {
	j, err := jobArg(text)
	if err != nil {
		return Status{}, nil, err
	}
	domain, err := o.domain(j.domain)
	if err != nil {
		return Status{}, nil, err
	}
	read := o.log().Read(ctx, []joblog.Query{{Domain: j.domain, JobID: j.id, Limit: o.Logs.LogMax + o.Logs.LogMax/10}})[0]
	if read.Err != nil {
		return Status{}, nil, read.Err
	}
	reset, err := o.lastReset(ctx, domain, j.id)
	switch {
	case err != nil:
		return Status{}, nil, err
	case !read.Found && reset != nil:
		return Status{}, nil, app.Bad("job %s has no state and no log: it was reset at %s", j, reset)
	case !read.Found:
		return Status{}, nil, app.Bad("job %s has no state and no log: it has not begun, or they have expired", j)
	}
	s := Status{
		Job: j.String(), Shard: event.Shard(j.id, domain.Shards), State: read.State,
		First: read.First, Top: read.Top, End: read.End, Events: len(read.Events), Reset: reset,
	}
	s.Missing = max(0, s.Top-s.First+1-int64(s.Events))
	return s, read.Events, nil
}

// Ended says whether the job has ended, for people.
func (s Status) Ended() string {
	if s.End == 0 {
		return "no"
	}
	return fmt.Sprintf("with event %d", s.End)
}

func (s Status) answer() operate.Answer {
	rows := [][]string{{"job", s.Job}, {"shard", strconv.Itoa(s.Shard)}}
	if s.State != nil {
		rows = append(rows, []string{"stage", s.State.Stage}, []string{"status", s.State.Status})
	}
	rows = append(rows, [][]string{
		{"ended", s.Ended()}, {"numbers", fmt.Sprintf("%d to %d", s.First, s.Top)},
		{"events in the log", strconv.Itoa(s.Events)}, {"missing numbers", strconv.FormatInt(s.Missing, 10)},
	}...)
	if s.Reset != nil {
		rows = append(rows, []string{"reset", s.Reset.String()})
	}
	return operate.Answer{Value: s, Tables: []operate.Table{{Rows: rows}}}
}
