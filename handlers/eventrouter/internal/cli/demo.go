package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/eventrouter/demo"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/token"
)

// The domain of the demo.
const (
	demoDomain = "demo"
	demoPrefix = demoDomain + ":events"
	demoShards = 4
)

type demoFlags struct {
	app.DemoFlags
	jobs, events, watchers, rate int
	noKill                       bool
}

func (c commands) demo() *cobra.Command {
	var f demoFlags
	cmd := c.h.SettingsFlags(c.h.JSONFlag(&cobra.Command{
		Use:   "demo",
		Short: "Watch jobs while a router is killed, and check what arrives",
		Long: `Watch jobs while a router is killed, and check what arrives.

The gateway, and Redis without other settings, run in this process. Two routers are
processes of their own, and one of them is killed (SIGKILL). The exit code is 0 only if
each watcher received each numbered event once and in order, and the end as the last one.`,
		Example: "  millrace jobs demo\n  millrace jobs demo --jobs 200 --events 50 --rate 2000\n  millrace jobs demo --keep",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return c.runDemo(cmd, f) },
	}))
	flags := cmd.Flags()
	flags.IntVar(&f.jobs, "jobs", 20, "number of jobs")
	flags.IntVar(&f.events, "events", 30, "numbered events per job")
	flags.IntVar(&f.watchers, "watchers", 2, "watchers per job")
	flags.IntVar(&f.rate, "rate", 100, "events per second of all jobs")
	flags.BoolVar(&f.noKill, "no-kill", false, "kill no router")
	f.Flags(cmd)
	return cmd
}

func (f demoFlags) validate() error {
	for name, n := range map[string]int{"jobs": f.jobs, "events": f.events, "watchers": f.watchers, "rate": f.rate} {
		if n < 1 {
			return app.Usage("--%s must be > 0, got %d", name, n)
		}
	}
	return nil
}

// demoSettings are the settings of the demo: those of the gateway, or of a router.
func demoSettings(role string) map[string]any {
	return map[string]any{
		"plugins.eventrouter.enabled": true, "plugins.eventrouter.roles": []string{role}, "plugins.eventrouter.domains": []string{demoPrefix},
		"plugins.eventrouter.loopback_without_token": true,
		"plugins.redis.domains": []any{map[string]any{
			"prefix": demoPrefix, "shards": demoShards, "group": "eventrouter", "fields": true, "exclusive": true, "poll_interval": "10ms",
		}},
		"plugins.web.listen": "127.0.0.1:0", "plugins.web.max_streams_per_user": 20000,
		"plugins.telemetry.listen": "",
	}
}

func (c commands) runDemo(cmd *cobra.Command, f demoFlags) error {
	if err := f.validate(); err != nil {
		return err
	}
	return app.RunDemo(c.h, cmd, app.Demo[demo.Report]{
		DemoFlags: f.DemoFlags, Off: []string{"kafka", "promotion"},
		Settings: func(dir string) (map[string]any, error) {
			set, key := demoSettings("gateway"), filepath.Join(dir, "key.pem")
			set["plugins.deadletter.store.dsn"] = ""
			set["plugins.token.keys"] = []any{map[string]any{"kid": "demo", "file": key}}
			return set, token.CreateKey(key)
		},
		Run: func(ctx context.Context, routers *app.Processes) (demo.Report, error) {
			return c.runJobs(ctx, f, routers)
		},
		Text: writeReport,
		Verdict: func(r demo.Report) error {
			if !r.OK() || r.Killed == f.noKill {
				return app.Bad("the watchers did not receive what was published")
			}
			return nil
		},
		Next: fmt.Sprintf("`%[1]s jobs demo --keep` keeps it running, and `%[1]s jobs --help` has the commands for other jobs.", c.h.Program()),
	})
}

func (c commands) runJobs(ctx context.Context, f demoFlags, routers *app.Processes) (demo.Report, error) {
	run := strconv.FormatInt(time.Now().UnixMilli(), 36)
	first, err := c.startRouter(ctx, routers, "router-1", run)
	if err == nil {
		_, err = c.startRouter(ctx, routers, "router-2", run)
	}
	if err != nil {
		return demo.Report{}, fmt.Errorf("demo: %w", err)
	}
	publish, err := c.publisher(c.Jobs().OfShards, demoDomain)
	if err != nil {
		return demo.Report{}, err
	}
	base := "http://" + c.Addr() + "/jobs/" + demoDomain + "/"
	o := demo.Options{
		Domain: demoDomain, Run: run, Jobs: f.jobs, Events: f.events, Watchers: f.watchers, Rate: f.rate,
		Stages: c.Settings().Stages, URL: func(id string) string { return base + id + "/events" }, Publish: publish,
	}
	if !f.noKill {
		o.Kill = first.Kill
	}
	fmt.Fprintf(c.h.Err(), "%s with %s each, and %s. Watch the first one in a browser:\n  %s%s/watch\n",
		app.Plural(int64(f.jobs), "job"), app.Plural(int64(f.events), "event"), app.Plural(int64(f.jobs*f.watchers), "watcher"), base, o.JobID(0))
	bar := c.h.Progress(o.Total(), "events received")
	defer bar.Done()
	o.Progress = bar.Set
	return demo.Run(ctx, o)
}

// startRouter starts a process with the role router.
func (c commands) startRouter(ctx context.Context, routers *app.Processes, name, run string) (*app.Process, error) {
	settings := c.Redis().Overrides()
	maps.Copy(settings, demoSettings("router"))
	settings["instance_id"] = name + "-" + run
	return routers.Start(ctx, name, settings)
}

func writeReport(out io.Writer, r demo.Report) error {
	w := app.Table(out)
	row := func(n int, text string) { fmt.Fprintf(w, "  %s\t%s\n", app.Thousands(int64(n)), text) }
	fmt.Fprintln(w)
	row(r.Published, fmt.Sprintf("events of %s published", app.Plural(int64(r.Jobs), "job")))
	row(r.Received, fmt.Sprintf("received by %s", app.Plural(int64(r.Watchers), "watcher")))
	row(r.Transients, "transient events received")
	row(r.Reconnects, "reconnects")
	row(r.Gaps, "numbers shown as missing")
	if err := w.Flush(); err != nil {
		return err
	}
	for _, problem := range r.Problems[:min(10, len(r.Problems))] {
		fmt.Fprintf(out, "  %s\n", problem)
	}
	verdict := "Each watcher received each event once and in order."
	if !r.OK() {
		verdict = fmt.Sprintf("WRONG: %s.", app.Plural(int64(len(r.Problems)+r.Lost), "problem"))
	}
	killed := ""
	if r.Killed {
		killed = " A router was killed in between."
	}
	_, err := fmt.Fprintf(out, "\n%s%s\n%.1f s. From publishing to the watcher: median %.0f ms, 99 %% within %.0f ms, at most %.0f ms.\n",
		verdict, killed, r.Seconds, r.P50, r.P99, r.Max)
	return err
}
