package cli

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/producer"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/plugins/redis"
)

const (
	// publishBatch is the number of events that are published with one call.
	publishBatch = 100
	// publishWait is how long an event waits for others.
	publishWait = 200 * time.Millisecond
	// maxEventLine limits a line of the input, in bytes. Data has at most 64 KiB.
	maxEventLine = 256 << 10
	// progressEvery is the time between two lines about the progress.
	progressEvery = 3 * time.Second
)

type publishFlags struct {
	seq          int64
	status, data string
	wait         time.Duration
}

// Published is the output of publish --json.
type Published struct {
	Events int64 `json:"events"`
	// Seq is the number of the only event; 0: it is transient, or there were several.
	Seq     int64   `json:"seq,omitempty"`
	Seconds float64 `json:"seconds"`
}

func (c commands) publish() *cobra.Command {
	var f publishFlags
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "publish DOMAIN/JOB_ID STAGE | DOMAIN",
		Short: "Publish an event, or those of standard input",
		Long: `Publish an event, or those of standard input.

With a domain alone, each line of standard input is an event: a JSON object with job_id,
stage, seq, status, data and event_id. An event without seq gets the next number of its
job. An event that was published within two minutes is not added again: the same event_id
makes it the same event. The command waits for a full shard. An event waits at most 0.2 s
for further lines. A bad line ends the command, and the lines before it are published.
An event for a job that has ended is refused; events of standard input are not checked.`,
		Example: `  millrace jobs publish scan/42 scan --data '{"percent":50}' --profile router
  millrace jobs publish scan --profile router < events.jsonl`,
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 2 {
				if err := checkStage(args[0], args[1]); err != nil {
					return err
				}
			}
			return c.run(cmd, func(ctx context.Context, o Jobs) error { return c.runPublish(ctx, cmd, o, args, f) })
		},
	})
	flags := cmd.Flags()
	flags.Int64Var(&f.seq, "seq", 0, "`number` of the event (default: the next one of the job)")
	flags.StringVar(&f.status, "status", "", "`status` of the event")
	flags.StringVar(&f.data, "data", "", "data of the event, as `JSON`")
	flags.DurationVar(&f.wait, "wait", 30*time.Second, "how long to wait for a full shard")
	return cmd
}

var stageShape = regexp.MustCompile(`^[\pL\pN][\pL\pN ._:/-]*$`)

// checkStage refuses what is hardly the name of a stage, such as data that was given without --data. An event of
// standard input may have any.
func checkStage(job, stage string) error {
	if stageShape.MatchString(stage) {
		return nil
	}
	example := "a stage comes after the job, as in: millrace jobs publish " + job + " scan"
	if json.Valid([]byte(stage)) {
		example = "that is data, which comes with --data after a stage, as in: millrace jobs publish " + job + " scan --data '" + stage + "'"
	}
	return app.Usage("'%s' is no name of a stage, which has letters, digits, spaces and . _ : / - only; %s", app.Printable(stage), example)
}

func (c commands) runPublish(ctx context.Context, cmd *cobra.Command, o Jobs, args []string, f publishFlags) error {
	name := args[0]
	var only *event.Event
	if len(args) == 2 {
		j, err := jobArg(args[0])
		if err != nil {
			return err
		}
		name = j.domain
		only = &event.Event{JobID: j.id, Stage: args[1], Seq: f.seq, Status: f.status}
		if f.data != "" {
			only.Data = json.RawMessage(f.data)
		}
	} else if f.seq != 0 || f.status != "" || f.data != "" {
		return app.Usage("--seq, --status and --data are for one event: give DOMAIN/JOB_ID and STAGE")
	}
	domain, err := o.domain(name)
	if err != nil {
		return err
	}
	if only != nil {
		if err := o.runs(ctx, job{name, only.JobID}, only); err != nil {
			return err
		}
	}
	p := publishing{producer: o.producer(o.OfShards, domain), wait: f.wait}
	start := time.Now()
	if only != nil {
		err = p.publish(ctx, only)
	} else {
		next := start.Add(progressEvery)
		err = p.lines(ctx, cmd.InOrStdin(), func(done int64) {
			if now := time.Now(); now.After(next) {
				next = now.Add(progressEvery)
				fmt.Fprintf(c.h.Err(), "%s events published\n", app.Thousands(done))
			}
		})
	}
	result := Published{Events: p.done, Seconds: time.Since(start).Seconds()}
	if only != nil {
		result.Seq = only.Seq
	}
	if err == nil || p.done > 0 {
		showErr := c.h.Show(cmd, result, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s published to %s in %.1f s.\n", app.Plural(p.done, "event"), app.Printable(name), result.Seconds)
			return err
		})
		err = errors.Join(err, showErr)
	}
	return err
}

// runs returns an error if the job has ended, so that its watchers would not see the event.
func (o Jobs) runs(ctx context.Context, j job, e *event.Event) error {
	kept, err := o.log().Kept(ctx, j.domain, j.id)
	if err != nil || kept.End == 0 || e.Seq > 0 && e.Seq <= kept.End {
		return err
	}
	return app.Bad("job %s has ended with event %d, so nobody would see this one: `jobs reset %s --why REASON` lets the job run again", j, kept.End, j)
}

// publishing publishes to one domain.
type publishing struct {
	producer *producer.Producer
	wait     time.Duration // for a full shard
	done     int64
}

// lines publishes one event per line.
func (p *publishing) lines(ctx context.Context, in io.Reader, progress func(int64)) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	read, failed := make(chan readEvent), make(chan error, 1)
	go func() {
		defer close(read)
		failed <- readEvents(ctx, in, read)
	}()
	var batch []*event.Event
	var wait <-chan time.Time // nil without a batch
	line := 0
	send := func() error {
		err := p.publish(ctx, batch...)
		batch, wait = batch[:0], nil
		progress(p.done)
		if err != nil {
			return fmt.Errorf("lines up to %d: %w", line, err)
		}
		return nil
	}
	for {
		var due bool
		select {
		case e, more := <-read:
			if !more {
				return errors.Join(<-failed, send())
			}
			line = e.line
			if batch = append(batch, &e.event); wait == nil {
				wait = time.After(publishWait)
			}
			due = len(batch) == publishBatch
		case <-wait:
			due = true
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if due {
			if err := send(); err != nil {
				return err
			}
		}
	}
}

// readEvent is an event with the number of its line.
type readEvent struct {
	event event.Event
	line  int
}

// readEvents reads one event per line, until the end or the first bad line.
func readEvents(ctx context.Context, in io.Reader, to chan<- readEvent) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxEventLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		e, err := event.Decode(line)
		if err != nil {
			return app.Bad("line %d: %w", n, err)
		}
		select {
		case to <- readEvent{e, n}:
		case <-ctx.Done():
			return nil
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("read the events: %w", err)
	}
	return nil
}

// publish publishes events, and waits while their shard is full.
func (p *publishing) publish(ctx context.Context, events ...*event.Event) error {
	end := time.Now().Add(p.wait)
	delays := pipeline.Backoff{First: 100 * time.Millisecond, Max: 2 * time.Second}
	for try := 1; ; try++ {
		err := p.producer.Publish(ctx, events...)
		switch {
		case err == nil:
			p.done += int64(len(events))
			return nil
		case pipeline.IsPermanent(err), errors.Is(err, producer.ErrShards):
			return app.Bad("%w", err)
		case !errors.Is(err, producer.ErrFull) || time.Now().After(end):
			return err
		}
		if !loop.Sleep(ctx, delays.Delay(try)) {
			return ctx.Err()
		}
	}
}

// producer returns a producer whose numbers live longer than the logs and those that watch them.
func (s Settings) producer(server *redis.Server, domain redis.DomainConfig) *producer.Producer {
	p := producer.New(server, domain, s.Stages)
	p.CounterTTL = max(s.Logs.StateTTL, s.Logs.LogTTL) + 2*s.MaxWatch
	return p
}

// publisher returns a function that publishes to a domain.
func (c commands) publisher(server *redis.Server, name string) (func(context.Context, ...event.Event) error, error) {
	s := c.Settings()
	domain, err := s.domain(name)
	if err != nil {
		return nil, err
	}
	p := publishing{producer: s.producer(server, domain), wait: time.Minute}
	return func(ctx context.Context, events ...event.Event) error {
		list := make([]*event.Event, len(events))
		for i := range events {
			list[i] = &events[i]
		}
		return p.publish(ctx, list...)
	}, nil
}
