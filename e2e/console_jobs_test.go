package e2e

import (
	"context"
	"testing"

	"github.com/chromedp/chromedp"
	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// A person finds a job, follows it to its end while the page reads itself again, sees which numbers its producer has
// left out, and lets it run again.
func TestAPersonFollowsAJob(t *testing.T) {
	tier.Rest(t, tier.Router, tier.CLI)
	t.Parallel()
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	jobs := &jobsOf{t: t, addr: servers.RedisAddr(), client: goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})}
	t.Cleanup(func() { require.NoError(t, jobs.client.Close()) })
	listen, err := freePort()
	require.NoError(t, err)
	startJobs(t, jobs.addr, "seen", "MILLRACE__PLUGINS__CONSOLE__ENABLED=true", "MILLRACE__PLUGINS__CONSOLE__LISTEN="+listen)

	jobs.add("42", 1, 3)
	p := b.open(t, "http://"+listen+"/", desktop)
	p.follows(menu("Jobs"), "Jobs")
	p.reads("#shards td.ok", "is read")
	p.rests()
	p.accessible("the jobs")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(desktop, 740)))
	p.fills("#find input[name=job]", "scan/42")
	p.follows(button("Show"), "Job")
	p.reads("#job dd", "scan")
	p.reads("#job td", `{"percent":30}`)
	jobs.add("42", 6, 10) // 4 and 5 never come
	p.reads("#job dd", "with event 10")
	p.reads("#job td.warn", "not in the log")
	p.reads("#job td", "4 to 5")
	p.rests()
	p.accessible("a job")
	b.showsPlain(t, value[string](p, `location.href`), "#job td.warn", "not in the log")
	seen := b.seesThePagesPlain(t, "http://"+listen, []string{"/jobs/job?job=scan/42"}, "jobs", "streams", "stream")
	require.Contains(t, seen["stream"], "stream=")

	p.acts("jobs reset", "Job scan/42, which ended with event 10, would be reset", "the worker was retried")
	p.reads("main", "Job scan/42, which ended with event 10, was reset. Its next event is number 1.")
	p.follows(menu("Audit"), "Audit")
	p.reads("main td", "the worker was retried")
	p.reads("main td", "scan/42")
}
