package cli

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline/app"
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

func (c commands) status() *cobra.Command {
	return c.h.JSONFlag(&cobra.Command{
		Use:   "status DOMAIN/JOB_ID",
		Short: "Show the state and the log of a job",
		Long: `Show the state and the log of a job, read from Redis.

The exit code is 1 if Redis has neither.`,
		Example: "  millrace jobs status scan/42 --profile router",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			j, err := jobArg(args[0])
			if err != nil {
				return err
			}
			return c.run(cmd, func(ctx context.Context, o opened) error {
				s, err := o.status(ctx, j)
				if err != nil {
					return err
				}
				return c.h.Show(cmd, s, s.write)
			})
		},
	})
}

func (o opened) status(ctx context.Context, j job) (Status, error) {
	domain, err := o.domain(j.domain)
	if err != nil {
		return Status{}, err
	}
	log := joblog.New(o.logs, o.Logs, o.Stages)
	read := log.Read(ctx, []joblog.Query{{Domain: j.domain, JobID: j.id, Limit: o.Logs.LogMax + o.Logs.LogMax/10}})[0]
	if read.Err != nil {
		return Status{}, read.Err
	}
	reset, err := o.lastReset(ctx, domain, j.id)
	switch {
	case err != nil:
		return Status{}, err
	case !read.Found && reset != nil:
		return Status{}, app.Bad("job %s has no state and no log: it was reset at %s", j, reset)
	case !read.Found:
		return Status{}, app.Bad("job %s has no state and no log: it has not begun, or they have expired", j)
	}
	s := Status{
		Job: j.String(), Shard: event.Shard(j.id, domain.Shards), State: read.State,
		First: read.First, Top: read.Top, End: read.End, Events: len(read.Events), Reset: reset,
	}
	s.Missing = max(0, s.Top-s.First+1-int64(s.Events))
	return s, nil
}

func (s Status) write(out io.Writer) error {
	w := app.Table(out)
	fmt.Fprintf(w, "job\t%s\n", app.Printable(s.Job))
	fmt.Fprintf(w, "shard\t%d\n", s.Shard)
	if s.State != nil {
		fmt.Fprintf(w, "stage\t%s\n", app.Printable(s.State.Stage))
		fmt.Fprintf(w, "status\t%s\n", app.Printable(s.State.Status))
	}
	ended := "no"
	if s.End > 0 {
		ended = fmt.Sprintf("with event %d", s.End)
	}
	fmt.Fprintf(w, "ended\t%s\n", ended)
	fmt.Fprintf(w, "numbers\t%d to %d\n", s.First, s.Top)
	fmt.Fprintf(w, "events in the log\t%d\n", s.Events)
	fmt.Fprintf(w, "missing numbers\t%d\n", s.Missing)
	if s.Reset != nil {
		fmt.Fprintf(w, "reset\t%s\n", s.Reset)
	}
	return w.Flush()
}
