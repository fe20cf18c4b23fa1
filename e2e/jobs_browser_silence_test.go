package e2e

import (
	"context"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// The page of a job whose connection is silent. No other process has
// shards of this Redis: one that is killed would delay their events.
func TestThePageOfAJobNoticesSilence(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	b := startBrowser(t)
	servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
	jobs := &jobsOf{t: t, addr: servers.RedisAddr(), client: goredis.NewClient(&goredis.Options{Addr: servers.RedisAddr()})}
	t.Cleanup(func() { require.NoError(t, jobs.client.Close()) })
	s := startJobs(t, jobs.addr, "silence", briefHeartbeat)
	for name, test := range map[string]func(t *testing.T, b *browser, jobs *jobsOf, s *service){
		"a silent connection": watchPageLeavesASilentConnection,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, b, jobs, s)
		})
	}
}

// The connection is lost without a word to the browser. The page says so, and connects again.
func watchPageLeavesASilentConnection(t *testing.T, b *browser, jobs *jobsOf, s *service) {
	f := newForwarder(t, s.url)
	p := b.open(t, f.url()+"/jobs/scan/silent/watch", 1000)
	jobs.add("silent", 1, 3)
	p.shows(3)
	value[bool](p, `(() => {
  window.said = [];
  new MutationObserver(() => said.push(document.getElementById("status").textContent)).observe(document.getElementById("status"), {childList: true, characterData: true, subtree: true});
  return true;
})()`)
	before := f.connections()
	f.lose(s.url)
	jobs.add("silent", 4, 6)
	p.shows(6)
	require.Contains(t, value[[]string](p, "said"), "Connection lost, connecting again… Stage: scan, running.")
	require.Greater(t, f.connections(), before)
	p.says("Connected. Stage: scan, running.")
	jobs.add("silent", 7, 10)
	p.says("The job is done.")
}
