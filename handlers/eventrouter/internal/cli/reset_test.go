package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/eventrouter/event"
	"github.com/millrace-io/millrace/handlers/eventrouter/joblog"
	"github.com/millrace-io/millrace/handlers/eventrouter/producer"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// jobs is a plugin with the commands alone.
type jobs struct{ Deps }

func (jobs) Name() string                            { return "eventrouter" }
func (j jobs) Commands(h *app.Host) []*cobra.Command { return []*cobra.Command{Command(h, j.Deps)} }
func (jobs) Register(*pipeline.Registry) error       { return nil }
func (j jobs) Operations() operate.Operations        { return Operations(j.Deps) }
func (j jobs) settings(d redis.DomainConfig) Settings {
	return Settings{Domains: []redis.DomainConfig{d}, Logs: joblog.DefaultConfig(), Stages: event.DefaultStages()}
}

// rig is a domain that no other test uses, with a job that has ended with event 2.
type rig struct {
	t      *testing.T
	client *goredis.Client
	own    redis.ClientConfig
	name   string
	domain redis.DomainConfig
	job    string
}

func newRig(t *testing.T, s redistest.Server) rig {
	t.Helper()
	own := redis.DefaultClientConfig()
	own.Addrs = []string{s.Addr}
	r := rig{t: t, client: s.Client(t), own: own}
	r.name = redistest.Prefix(t, r.client)
	r.domain = redis.DomainConfig{Prefix: r.name + ":events", Shards: 4, Group: "eventrouter"}
	r.job = "job"
	require.Equal(t, []joblog.Outcome{joblog.Added, joblog.Added}, r.add(r.event(1, "step"), r.event(2, "done")))
	require.NoError(t, r.client.Set(t.Context(), producer.CounterKey(r.domain, r.job), 2, 0).Err())
	return r
}

func (r rig) event(seq int64, stage string) event.Event {
	return event.Event{Domain: r.name, JobID: r.job, Stage: stage, Seq: seq, StreamID: fmt.Sprint(r.client.Time(r.t.Context()).Val().UnixMilli(), "-0")}
}

func (r rig) add(events ...event.Event) (outcomes []joblog.Outcome) {
	r.t.Helper()
	server := redis.New().Server(&r.own)
	require.NoError(r.t, server.Start(r.t.Context()))
	defer func() { require.NoError(r.t, server.Stop(r.t.Context())) }()
	result := joblog.New(server, joblog.DefaultConfig(), event.DefaultStages()).Append(r.t.Context(), r.name, [][]event.Event{events})[0]
	require.NoError(r.t, result.Err)
	for _, a := range result.Answers {
		outcomes = append(outcomes, a.Outcome)
	}
	return outcomes
}

// command runs `jobs` with these arguments.
func (r rig) command(args ...string) (code int, stdout, stderr string) {
	r.t.Helper()
	p := jobs{}
	p.Settings = func() Settings { return p.settings(r.domain) }
	server := redis.New().Server(&r.own)
	p.Deps.Register = func(reg *pipeline.Registry) error {
		reg.Service("redis", server)
		return nil
	}
	p.Jobs = func() Jobs { return Jobs{Settings: p.Settings(), OfLogs: server, OfShards: server} }
	var out, errs bytes.Buffer
	code = app.Main(r.t.Context(), app.Options{
		Name: "router", Plugins: []pipeline.Plugin{p}, Args: append([]string{"jobs"}, args...), Environ: []string{}, Stdout: &out, Stderr: &errs,
	})
	return code, out.String(), errs.String()
}

// kept are the keys of the domain that exist.
func (r rig) kept() (list []string) {
	for name, key := range map[string]string{
		"log": joblog.LogKey(r.name, r.job), "state": joblog.StateKey(r.name, r.job), "counter": producer.CounterKey(r.domain, r.job),
		"feed": r.feed(), "audit": auditStream(r.domain),
	} {
		if r.client.Exists(r.t.Context(), key).Val() == 1 {
			list = append(list, name)
		}
	}
	return list
}

func (r rig) feed() string { return joblog.FeedKey(r.name, event.Shard(r.job, r.domain.Shards)) }

func (r rig) values(stream string) (list []map[string]any) {
	for _, e := range r.client.XRange(r.t.Context(), stream, "-", "+").Val() {
		list = append(list, e.Values)
	}
	return list
}

// A reset deletes what is kept of a job, remembers who did it and why, and tells the gateways.
func TestReset(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		job := r.name + "/" + r.job
		all := []string{"log", "state", "counter"}
		for name, args := range map[string][]string{
			"no reason":       {job},
			"no job":          {r.name, "--why", "a retry"},
			"another domain":  {"other/job", "--why", "a retry"},
			"two jobs":        {job, job, "--why", "a retry"},
			"nobody":          {job, "--why", "a retry", "--who", " "},
			"dry, no such":    {"other/job", "--dry-run"},
			"dry without job": {"--dry-run"},
		} {
			code, out, errs := r.command(append([]string{"reset"}, args...)...)
			require.Equal(t, app.ExitUsage, code, "%s: %s%s", name, out, errs)
		}
		code, out, errs := r.command("reset", job, "--dry-run")
		require.Equal(t, app.ExitOK, code, errs)
		require.Equal(t, "Job "+job+", which ended with event 2, would be reset. Its next event would be number 1. Nothing was changed.\n", out)
		require.ElementsMatch(t, all, r.kept())
		require.Equal(t, []joblog.Outcome{joblog.AfterEnd}, r.add(r.event(3, "step")))

		code, out, errs = r.command("reset", job, "--why", "a retry", "--who", "eve", "--json")
		require.Equal(t, app.ExitOK, code, errs)
		var report ResetReport
		require.NoError(t, json.Unmarshal([]byte(out), &report))
		require.Equal(t, ResetReport{Job: job, State: true, Log: true, Counter: 2, Top: 2, End: 2}, report)
		require.ElementsMatch(t, []string{"feed", "audit"}, r.kept())
		row := func(outcome string) map[string]any {
			return map[string]any{"job": r.job, "verb": "reset", "who": "eve", "why": "a retry", "outcome": outcome}
		}
		require.Equal(t, []map[string]any{row("begun"), row("done")}, r.values(auditStream(r.domain)))
		require.Equal(t, []map[string]any{{joblog.ResetField: r.job}}, r.values(r.feed()))
		code, _, errs = r.command("status", job)
		require.Equal(t, app.ExitBad, code)
		require.Regexp(t, "it was reset at .* by eve: a retry", errs)

		code, out, errs = r.command("reset", job, "--why", "again", "--who", "eve")
		require.Equal(t, app.ExitOK, code, errs)
		require.Contains(t, out, "of which an earlier reset has left nothing, was reset")
		require.Len(t, r.values(r.feed()), 2, "a gateway may not have learned of the first")
		require.Equal(t, []joblog.Outcome{joblog.Added, joblog.Added}, r.add(r.event(1, "step"), r.event(2, "done")))

		code, _, errs = r.command("reset", r.name+"/nobody", "--why", "a retry", "--who", "eve")
		require.Equal(t, app.ExitBad, code)
		require.Contains(t, errs, "job "+r.name+"/nobody has no state, no log and no number: it can run already")
		require.Len(t, r.values(auditStream(r.domain)), 4)
	})
}

// A reset that can't be remembered changes nothing.
func TestAResetIsRememberedFirst(t *testing.T) {
	redistest.Each(t, func(t *testing.T, s redistest.Server) {
		r := newRig(t, s)
		require.NoError(t, r.client.Set(t.Context(), auditStream(r.domain), "no stream", 0).Err())
		code, _, errs := r.command("reset", r.name+"/"+r.job, "--why", "a retry", "--who", "eve")
		require.NotEqual(t, app.ExitOK, code)
		require.Contains(t, errs, "record the reset of job "+r.name+"/"+r.job)
		require.ElementsMatch(t, []string{"log", "state", "counter", "audit"}, r.kept())
	})
}
