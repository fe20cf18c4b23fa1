package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// desk is a process of the embedded profile that pays a campaign, and commands beside it.
type desk struct {
	t       *testing.T
	ctx     context.Context
	bin     string
	dir     string
	env     []string
	printed *pipelinetest.Buffer
	process *exec.Cmd
}

func newDesk(ctx context.Context, t *testing.T, env ...string) *desk {
	t.Helper()
	d := &desk{t: t, ctx: ctx, bin: binary(t), dir: t.TempDir(), printed: &pipelinetest.Buffer{}}
	d.env = append(os.Environ(), append(env, "MILLRACE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0", "MILLRACE__PLUGINS__CONSOLE__LISTEN=127.0.0.1:0")...)
	t.Cleanup(d.kill)
	return d
}

// kill ends the process without a drain.
func (d *desk) kill() {
	if d.process != nil {
		_ = d.process.Process.Kill()
		_ = d.process.Wait() // the signal is its end
		d.process = nil
	}
}

// run starts the process, and returns the address of its console.
func (d *desk) run() (address string) {
	d.t.Helper()
	d.process = exec.CommandContext(d.ctx, d.bin, "run", "--profile", "embedded")
	d.process.Dir, d.process.Env, d.process.Stdout, d.process.Stderr = d.dir, d.env, d.printed, d.printed
	require.NoError(d.t, d.process.Start())
	require.Eventually(d.t, func() bool {
		out, code := d.command("open")
		address = strings.TrimSpace(out)
		return code == 0 && strings.HasPrefix(address, "http://127.0.0.1:")
	}, 2*time.Minute, 200*time.Millisecond, "the console does not open: %s", d.printed)
	return address
}

func (d *desk) command(args ...string) (stdout string, code int) {
	d.t.Helper()
	c := exec.CommandContext(d.ctx, d.bin, append(args, "--profile", "embedded")...)
	var out bytes.Buffer
	c.Dir, c.Env, c.Stdout = d.dir, d.env, &out
	_ = c.Run() // its code is looked at
	return out.String(), c.ProcessState.ExitCode()
}

// A person watches a campaign run, pauses and resumes it, sees its books balance, and finds one payout by its id.
func TestAPersonWatchesACampaign(t *testing.T) {
	tier.Rest(t, tier.Promotion, tier.CLI)
	t.Parallel()
	b := startBrowser(t)
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	d := newDesk(ctx, t, "MILLRACE__PLUGINS__PROMOTION__MONEY_API__SIMULATOR__LATENCY=100ms")
	address := d.run()
	_, code := d.command("campaign", "publish", "--promotion", "77", "--targets", "600", "--type", "POINT")
	require.Zero(t, code)

	p := b.open(t, address, desktop)
	p.follows(menu("Campaigns"), "Campaigns")
	p.reads("#campaigns td", "POINT:77")
	examine := func(what string) {
		t.Helper()
		p.rests()
		p.accessible(what)
		require.NoError(t, chromedp.Do(p.ctx, chromedp.EmulateViewport(desktop, 740)))
	}
	examine("the campaigns")
	p.follows(link("POINT:77"), "Campaign")
	p.reads("#campaign .stats dd", "running")
	p.reads("#campaign dd", "closed")
	p.reads("#campaign .checks", "accepted 600 = ended ")
	p.acts("campaign pause", "POINT:77 is RUNNING: 600 payouts accepted", "the amounts are being checked")
	p.reads("main", "POINT:77: paused. No instance takes a further payout of it.")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(address+"campaigns/campaign?promotion=POINT:77")))
	p.reads("#campaign .stats dd.warn", "paused")
	p.reads("#campaign td", "the amounts are being checked")
	examine("a campaign")
	p.acts("campaign resume", "POINT:77 is PAUSED", "the amounts are right")
	p.reads("main", "POINT:77: resumed.")
	require.NoError(t, chromedp.Do(p.ctx, chromedp.Navigate(address+"campaigns/campaign?promotion=POINT:77")))
	p.reads("#campaign .checks", "accepted 600 = ended 600 + waiting 0")
	require.Equal(t, "ok", value[string](p, `document.querySelector("#campaign .checks .level").innerText`))
	p.reads("#campaign .stats dd.ok", "finished")

	p.follows(menu("Campaigns"), "Campaigns")
	p.fills("#find input[name=payout]", "POINT:77:5")
	p.follows(button("Show"), "Payout")
	p.reads("#payout dd.ok", "success")
	p.reads("#payout td", "send 1")
	examine("a payout")
	p.submits("Run")
	p.reads("#money-api", "The Money API says: ")
	examine("a payout with what the Money API says")

	b.showsPlain(t, address+"campaigns/campaign?promotion=POINT:77", "#campaign .checks", "accepted 600 = ended 600 + waiting 0")
	b.showsPlain(t, address+"campaigns/payout?payout=POINT:77:5", "#payout", "nothing. It is paid.")
	seen := b.seesThePagesPlain(t, strings.TrimSuffix(address, "/"), []string{"/campaigns/payout?payout=POINT:77:5"}, "campaigns")
	require.Contains(t, seen["campaigns/campaign"], "POINT%3A77")
}

// The embedded Redis has its streams in memory, so a killed process takes them with it. The feeder of the next one
// enqueues what was in them, so that the campaign does not stand still.
func TestAKilledEmbeddedProcessGoesOnWithItsCampaign(t *testing.T) {
	tier.Rest(t, tier.Promotion, tier.CLI)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	d := newDesk(ctx, t, "MILLRACE__PLUGINS__PROMOTION__MONEY_API__SIMULATOR__LATENCY=50ms")
	d.run()
	_, code := d.command("campaign", "publish", "--promotion", "77", "--targets", "300", "--type", "POINT")
	require.Zero(t, code)
	paid := func(text string) bool {
		out, code := d.command("campaign", "status", "POINT", "77")
		return code == 0 && strings.Contains(out, text)
	}
	require.Eventually(t, func() bool { return paid("from the stream") }, 2*time.Minute, 50*time.Millisecond)
	d.kill()
	d.run()
	require.Eventually(t, func() bool { return paid("FINISHED") }, 4*time.Minute, 500*time.Millisecond, "it stands still: %s", d.printed)
	require.Eventually(t, func() bool { // entries that were enqueued twice are acknowledged, too
		out, code := d.command("routes", "--route", "promotion.point.stream", "--json")
		var found struct {
			Routes []struct {
				Waiting  *int64 `json:"waiting"`
				InFlight *int64 `json:"in_flight"`
			} `json:"routes"`
		}
		if code != 0 || json.Unmarshal([]byte(out), &found) != nil || len(found.Routes) != 1 {
			return false
		}
		none := func(n *int64) bool { return n == nil || *n == 0 } // nil: the streams are gone
		return none(found.Routes[0].Waiting) && none(found.Routes[0].InFlight)
	}, 2*time.Minute, 500*time.Millisecond)
}
