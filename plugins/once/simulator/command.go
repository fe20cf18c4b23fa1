package simulator

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"reflect"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline/app"
)

const stopWithin = 10 * time.Second

type options struct {
	cfg      Config
	interval time.Duration
	json     bool
	what     string
}

// Command gives cmd its flags and its run: the far side that api returns, until it is interrupted. api is called when
// the flags were read, and what names it in the output. It prints its address, a summary after changes, and a last
// summary.
func Command(cmd *cobra.Command, what string, api func() (API, error)) *cobra.Command {
	o := options{what: what}
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if o.interval <= 0 {
			return app.Usage("--interval must be > 0, got %s", o.interval)
		}
		a, err := api()
		if err != nil {
			return app.Usage("%w", err)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		return o.run(ctx, a, cmd.OutOrStdout())
	}
	o.addFlags(cmd)
	return cmd
}

func (o *options) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&o.cfg.Listen, "listen", "127.0.0.1:8089", "address to listen on; port 0 takes a free one")
	f.StringVar(&o.cfg.JournalPath, "journal", "", "SQLite file of the journal; without it the journal is in memory and ends with the process")
	f.BoolVar(&o.cfg.SyncAlways, "sync", false, "fsync the journal before every answer, not once per second")
	f.DurationVar(&o.cfg.KeyTTL, "key-ttl", 0, "time after which an idempotency key is executed again; 0: never")
	f.BoolVar(&o.cfg.KeysAgeFromFirstUse, "key-ttl-from-first-use", false, "count --key-ttl from the first request with a key, refused or not, and keep rejections")
	f.TextVar(&o.cfg.Token, "token", o.cfg.Token, "required bearer token: env:NAME, file:/path or the token itself")
	x := &o.cfg.Faults
	f.DurationVar(&x.Latency, "latency", 0, "latency of every answer")
	f.DurationVar(&x.Jitter, "jitter", 0, "maximum additional latency")
	f.Float64Var(&x.FailRate, "fail-rate", 0, "share of requests answered 500, not executed")
	f.Float64Var(&x.TimeoutRate, "timeout-rate", 0, "share of requests executed but never answered")
	f.Float64Var(&x.ResetRate, "reset-rate", 0, "share of requests executed, then the connection is cut")
	f.Float64Var(&x.RejectRate, "reject-rate", 0, "share of keys refused permanently with 422")
	f.Float64Var(&x.PoisonRate, "poison-rate", 0, "share of keys whose requests all fail and are never executed")
	f.Float64Var(&x.ThrottleRate, "throttle-rate", 0, "share of requests answered 429 with --retry-after, not executed")
	f.DurationVar(&x.RetryAfter, "retry-after", time.Second, "Retry-After of a 429, in whole seconds")
	f.IntVar(&x.PerSecond, "per-second", 0, "requests and lookups per second, beyond which the answer is 429; 0: no limit")
	f.BoolVar(&x.Silence, "silence", false, "answer nothing, execute nothing")
	f.BoolVar(&x.Unauthorized, "unauthorized", false, "answer 401 to everything")
	f.Uint64Var(&x.Seed, "seed", 1, "selects the requests that fail; the same seed selects the same ones")
	f.DurationVar(&o.interval, "interval", 5*time.Second, "shortest time between two summaries")
	f.BoolVar(&o.json, "json", false, "write one JSON object per line")
}

func (o *options) run(ctx context.Context, api API, out io.Writer) error {
	s, err := New(api, o.cfg)
	if err != nil {
		return app.Usage("%w", err)
	}
	if err := s.Start(ctx); err != nil {
		if listen, ok := errors.AsType[*net.OpError](err); ok {
			return app.Usage("--listen: %w", listen)
		}
		return err
	}
	last := s.Summary()
	o.print(out, event{Event: "listening", URL: s.URL(), Journal: o.cfg.JournalPath})
	err = o.watch(ctx, out, s, last)
	stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer cancel()
	if stopErr := s.Stop(stopCtx); err == nil {
		err = stopErr
	}
	sum := s.Summary()
	o.print(out, event{Event: "stopped", Summary: &sum})
	return err
}

// watch prints summaries that differ from the last one until ctx ends or the server fails.
func (o *options) watch(ctx context.Context, out io.Writer, s *Server, last Summary) error {
	tick := time.NewTicker(o.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.Failed():
			return err
		case <-tick.C:
			if sum := s.Summary(); !reflect.DeepEqual(sum, last) {
				o.print(out, event{Event: "summary", Summary: &sum})
				last = sum
			}
		}
	}
}

type event struct {
	Event   string   `json:"event"` // listening, summary or stopped
	URL     string   `json:"url,omitempty"`
	Journal string   `json:"journal,omitempty"`
	Summary *Summary `json:"summary,omitempty"`
}

func (o *options) print(out io.Writer, e event) {
	if o.json {
		_ = json.NewEncoder(out).Encode(e) // a closed standard output does not stop the API
		return
	}
	if e.Summary == nil {
		fmt.Fprintf(out, "%s %s on %s (journal %s)\n", o.what, e.Event, e.URL, cmp.Or(e.Journal, "in memory"))
		return
	}
	fmt.Fprintf(out, "%s: %s\n", e.Event, e.Summary)
}

// String returns the summary on one line, without kinds that have no requests.
func (s *Summary) String() string {
	executions, requests := "", ""
	if s.Executions != s.Executed {
		executions = fmt.Sprintf(" in %d executions", s.Executions)
	}
	for k := range kinds {
		if n := s.Requests[k.String()]; n > 0 {
			requests += fmt.Sprintf(" %s %d", k, n)
		}
	}
	return fmt.Sprintf("executed %d%s, executed twice %d, overlapping calls %d, calls after the good answer %d; requests:%s",
		s.Executed, executions, s.Doubled, s.Overlaps, s.AfterDone, cmp.Or(requests, " none"))
}
