package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/producer"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
)

// maxAudit is about how many resets a domain remembers, with two rows each.
const maxAudit = 1000

// ResetReport is the output of reset --json.
type ResetReport struct {
	Job    string `json:"job"`
	DryRun bool   `json:"dry_run"`
	State  bool   `json:"state"` // a state was deleted, or would be
	Log    bool   `json:"log"`   // the same of the log
	// Counter is the last number that a Go producer or `jobs publish` has given; 0: none.
	Counter int64 `json:"counter"`
	Top     int64 `json:"top"` // the highest number of the log or state
	// End is the number of the event that ended the job; 0: it had not ended.
	End int64 `json:"end"`
}

// Reset is who has reset a job last, when and why.
type Reset struct {
	At  time.Time `json:"at"`
	Who string    `json:"who"`
	Why string    `json:"why"`
}

// auditStream has the resets of a domain, on the server of its shards.
func auditStream(d redis.DomainConfig) string { return d.Prefix + ":audit" }

func (e Deps) reset() operate.Action {
	return operate.Action{
		About: operate.About{
			Name: "jobs reset", Short: "Delete the log of a job, so that it can run again",
			Long: `Delete the log of a job, so that it can run again.

The log, the state and the last number of the job are deleted. The numbers of its events
begin again at 1, and watchers are told which numbers they have to forget. Reset a job
when nothing of its first run is on its way any more: events of the first run that arrive
later count as those of the second.

A Go producer and "jobs publish" do not add an event again whose event_id they have added
within two minutes, also after a reset. A worker that gives its events ids of its own
therefore needs other ids in the second run, or begins it two minutes later.

The stream PREFIX:audit keeps --who, --why and the time, and "jobs status" shows the
last reset. --dry-run needs no --why.`,
			Examples: []string{"jobs reset scan/42 --dry-run --profile router", `jobs reset scan/42 --why "the worker was retried" --profile router`},
			Fields:   jobField(), Validate: checkJob, Register: e.Register,
		},
		Danger: operate.Irreversible, Role: operate.Operator, Audited: true,
		Preview: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			return resetAnswer(e.Jobs().reset(ctx, in.Text("job"), nil))
		},
		Do: func(ctx context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return resetAnswer(e.Jobs().reset(ctx, in.Text("job"), &use))
		},
	}
}

func resetAnswer(r ResetReport, err error) (operate.Answer, error) {
	if err != nil {
		return operate.Answer{}, err
	}
	return operate.Answer{Value: r, Lines: []string{r.String()}}, nil
}

// reset deletes what is kept of a job. Without a use it only says what it would delete.
func (o Jobs) reset(ctx context.Context, text string, use *operate.Use) (ResetReport, error) {
	j, err := jobArg(text)
	if err != nil {
		return ResetReport{}, err
	}
	r := ResetReport{Job: j.String(), DryRun: use == nil}
	domain, err := o.domain(j.domain)
	if err != nil {
		return r, err
	}
	log := o.log()
	kept, err := log.Kept(ctx, j.domain, j.id)
	if err != nil {
		return r, err
	}
	counter := redis.Command("GET", producer.CounterKey(domain, j.id))
	if err := o.OfShards.Do(ctx, counter); err != nil {
		return r, fmt.Errorf("read the last number of job %s: %w", j, err)
	}
	if !counter.Missing() {
		if r.Counter, err = counter.Int(); err != nil {
			return r, fmt.Errorf("read the last number of job %s: %w", j, err)
		}
	}
	r.State, r.Log, r.Top, r.End = kept.State, kept.Log, kept.Top, kept.End
	if !r.State && !r.Log && r.Counter == 0 {
		// A reset that failed at its end is repeated, so that the gateways learn of it.
		if last, err := o.lastReset(ctx, domain, j.id); err != nil || last == nil {
			return r, errors.Join(err, app.Bad("job %s has no state, no log and no number: it can run already", j))
		}
	}
	if use == nil {
		return r, nil
	}
	// The audit comes first: a reset that fails after it is repeated.
	record := func(ctx context.Context, outcome string) error {
		return o.OfShards.Do(ctx, redis.Command("XADD", auditStream(domain), "MAXLEN", "~", 2*maxAudit, "*",
			"job", j.id, "verb", "reset", "who", use.Who, "why", use.Why, "outcome", outcome))
	}
	if err := record(ctx, operate.OutcomeBegun); err != nil {
		return r, fmt.Errorf("record the reset of job %s: %w", j, err)
	}
	err = o.OfShards.Do(ctx, redis.Command("DEL", producer.CounterKey(domain, j.id)))
	if err != nil {
		err = fmt.Errorf("delete the last number of job %s: %w", j, err)
	} else {
		err = log.Reset(ctx, j.domain, event.Shard(j.id, domain.Shards), j.id)
	}
	outcome := operate.OutcomeDone
	if err != nil {
		outcome = operate.OutcomeFailed
	}
	_ = record(context.WithoutCancel(ctx), outcome) // the first row says who and why
	return r, err
}

func (r ResetReport) String() string {
	ended := "which has not ended"
	switch {
	case r.End > 0:
		ended = fmt.Sprintf("which ended with event %d", r.End)
	case !r.State && !r.Log && r.Counter == 0:
		ended = "of which an earlier reset has left nothing"
	case r.Top == 0:
		ended = "of which only the last number or an unreadable key is kept"
	}
	if r.DryRun {
		return fmt.Sprintf("Job %s, %s, would be reset. Its next event would be number 1. Nothing was changed.", r.Job, ended)
	}
	return fmt.Sprintf("Job %s, %s, was reset. Its next event is number 1.", r.Job, ended)
}

// lastReset returns the last reset of a job, or nil.
func (o Jobs) lastReset(ctx context.Context, domain redis.DomainConfig, jobID string) (*Reset, error) {
	entries, err := o.OfShards.Newest(ctx, map[string]string{"": auditStream(domain)}, "", 4*maxAudit)
	if err != nil {
		return nil, fmt.Errorf("read the resets: %w", err)
	}
	for _, e := range entries {
		if e.Fields["job"] == jobID {
			return &Reset{At: e.At(), Who: e.Fields["who"], Why: e.Fields["why"]}, nil
		}
	}
	return nil, nil //nolint:nilnil // it was never reset
}

func (r *Reset) String() string {
	return fmt.Sprintf("%s by %s: %s", r.At.Format(time.RFC3339), r.Who, r.Why)
}
