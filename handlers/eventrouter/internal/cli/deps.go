// Package cli has the commands of the event router.
package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
)

// Deps is what the commands need of the plugin. The settings are valid while services run.
type Deps struct {
	// Settings returns the settings of the plugin.
	Settings func() Settings
	// Register adds servers with clients of their own, which Jobs then has: a command does not use the name of a
	// running instance.
	Register func(*pipeline.Registry) error
	// Jobs returns the jobs on the servers of this process.
	Jobs func() Jobs
	// Sign returns a watch token for jobs. The error says that there is no key that a gateway has.
	Sign func(jobs []string, subject string, expires time.Time) (string, error)
	// Redis returns the server of the shards.
	Redis func() redis.ClientConfig
	// Addr returns the address of the gateway that runs in this process.
	Addr func() string
	// WebURL returns the address of the gateway in the settings.
	WebURL func() string
}

// Settings are the settings that the commands use.
type Settings struct {
	Domains  []redis.DomainConfig
	Logs     joblog.Config
	Stages   event.Stages
	MaxWatch time.Duration
}

// domain returns the domain with that name: the text before the colon of its prefix.
func (s Settings) domain(name string) (redis.DomainConfig, error) {
	var names []string
	for _, d := range s.Domains {
		n, _, _ := strings.Cut(d.Prefix, ":")
		if n == name {
			return d, nil
		}
		names = append(names, n)
	}
	return redis.DomainConfig{}, app.Usage("no domain %q: the settings have %s", name, strings.Join(names, ", "))
}

// commands has what each command needs.
type commands struct {
	Deps
	h *app.Host
}

// Command returns the command with its subcommands.
func Command(h *app.Host, deps Deps) *cobra.Command {
	c := commands{deps, h}
	group := &cobra.Command{
		Use:     "jobs",
		Short:   "Publish, watch and inspect events of jobs",
		Example: "  millrace jobs watch scan/42 --profile gateway\n  millrace jobs shards --profile router",
	}
	for _, cmd := range []*cobra.Command{c.publish(), c.watch(), c.token()} {
		group.AddCommand(h.ServiceFlags(cmd))
	}
	group.AddCommand(c.demo()) // makes its own settings
	return group
}

// Operations returns the reports and actions of the group of commands.
func Operations(deps Deps) operate.Operations {
	return operate.Operations{Reports: []operate.Report{deps.status(), deps.shards()}, Actions: []operate.Action{deps.reset()}}
}

// jobField is the argument of the commands about one job.
func jobField() []operate.Field {
	return []operate.Field{{Name: "job", Arguments: true, Shape: "DOMAIN/JOB_ID", Required: true, Help: "a `job`, as in scan/42"}}
}

func checkJob(in operate.Input) error {
	_, err := jobArg(in.Text("job"))
	return err
}

// job is a job in the form of the arguments: <domain>/<job_id>.
type job struct{ domain, id string }

func (j job) String() string { return j.domain + "/" + j.id }

func jobArg(text string) (job, error) {
	domain, id, ok := strings.Cut(text, "/")
	if !ok || domain == "" || id == "" || strings.Contains(id, "/") {
		return job{}, app.Usage("a job is DOMAIN/JOB_ID, as in scan/42; got %q", text)
	}
	return job{domain, id}, nil
}

// Jobs are the jobs on the servers of a process. Its servers belong to the process.
type Jobs struct {
	Settings
	OfLogs, OfShards *redis.Server
}

func (o Jobs) log() *joblog.Log { return joblog.New(o.OfLogs, o.Logs, o.Stages) }

// run starts the servers and calls do.
func (c commands) run(cmd *cobra.Command, do func(context.Context, Jobs) error) error {
	return c.h.Services(cmd.Context(), cmd, app.ServicesOptions{Register: c.Register}, func(ctx context.Context, _ *app.Running) error { return do(ctx, c.Jobs()) })
}

// selected returns the domains with these names, or all.
func (s Settings) selected(names []string) ([]redis.DomainConfig, error) {
	if len(names) == 0 {
		return s.Domains, nil
	}
	var list []redis.DomainConfig
	for _, name := range slices.Compact(slices.Sorted(slices.Values(names))) {
		d, err := s.domain(name)
		if err != nil {
			return nil, err
		}
		list = append(list, d)
	}
	return list, nil
}
