package cli

import (
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/handlers/promotion/reconcile"
	"github.com/millrace-io/millrace/pipeline/app"
)

type demoFlags struct {
	targets     int
	csv         string
	failRate    float64
	timeoutRate float64
	latency     time.Duration
	seed        uint64
	concurrency int
	data        string
	app.DemoFlags
}

func (c commands) demo() *cobra.Command {
	var f demoFlags
	cmd := c.h.SettingsFlags(c.h.JSONFlag(&cobra.Command{
		Use:   "demo",
		Short: "Pay a campaign, and compare the ledger with the Money API",
		Long: `Publish a campaign to Kafka, pay it through the complete pipeline, and compare the ledger with the Money API.

Without flags it needs only this binary: Kafka, Redis, the ledger and a simulated Money API run inside the process. With
--profile local it uses the servers of "make services", and the Money API stays simulated.

The exit code is 0 only when the books balance: each accepted payout is settled, and the Money API has
charged each paid one once.`,
		Example: `  millrace demo
  millrace demo --targets 1000 --fail-rate 0.2 --timeout-rate 0.1
  millrace demo --keep --data /tmp/millrace-demo`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runDemo(cmd, f) },
	}))
	flags := cmd.Flags()
	flags.IntVar(&f.targets, "targets", 10_000, "number of targets per type")
	flags.StringVar(&f.csv, "csv", "", csvUsage("publish instead"))
	flags.Float64Var(&f.failRate, "fail-rate", 0.02, "share of Money API calls that fail with 500")
	flags.Float64Var(&f.timeoutRate, "timeout-rate", 0.01, "share of Money API calls that charge and never answer")
	flags.DurationVar(&f.latency, "latency", 5*time.Millisecond, "latency of each Money API call")
	flags.Uint64Var(&f.seed, "seed", 1, "determines values and failing calls")
	flags.IntVar(&f.concurrency, "concurrency", 32, "calls in flight per stream")
	f.Flags(cmd)
	flags.StringVar(&f.data, "data", "", "`folder` of the embedded environment; default: a temporary one, with --keep that of the settings")
	return cmd
}

func (f demoFlags) validate() error {
	switch {
	case f.targets < 1 && f.csv == "":
		return app.Usage("--targets must be > 0, got %d", f.targets)
	case f.concurrency < 1 || f.concurrency > 1024:
		return app.Usage("--concurrency must be from 1 to 1024, got %d", f.concurrency)
	case f.failRate < 0 || f.failRate > 1:
		return app.Usage("--fail-rate must be from 0 to 1, got %g", f.failRate)
	case f.timeoutRate < 0 || f.timeoutRate > 1:
		return app.Usage("--timeout-rate must be from 0 to 1, got %g", f.timeoutRate)
	case f.failRate+f.timeoutRate > 1:
		return app.Usage("--fail-rate and --timeout-rate must add up to at most 1, got %g", f.failRate+f.timeoutRate)
	case f.latency < 0:
		return app.Usage("--latency must not be negative, got %s", f.latency)
	}
	return nil
}

func (f demoFlags) overrides(dataDir string) map[string]any {
	set := map[string]any{
		"plugins.promotion.stream.enabled":                    true,
		"plugins.promotion.stream.min_consumers_per_instance": f.concurrency,
		"plugins.promotion.stream.max_consumers_per_instance": f.concurrency,
		"plugins.promotion.money_api.simulator.enabled":       true,
		"plugins.promotion.money_api.simulator.latency":       f.latency.String(),
		"plugins.promotion.money_api.simulator.fail_rate":     f.failRate,
		"plugins.promotion.money_api.simulator.timeout_rate":  f.timeoutRate,
		"plugins.promotion.money_api.simulator.seed":          f.seed,
	}
	if dataDir != "" {
		set["data_dir"] = dataDir
	}
	if !f.Keep {
		// the process ends before a scrape, and the port may be in use
		set["plugins.telemetry.listen"] = ""
	}
	return set
}

func (c commands) runDemo(cmd *cobra.Command, f demoFlags) error {
	if err := f.validate(); err != nil {
		return err
	}
	source := generatedSource(f.targets, f.seed, promotiontype.All()...)
	if f.csv != "" {
		var remove func()
		var err error
		if source, remove, err = readSource(cmd, f.csv); err != nil {
			return err
		}
		defer remove()
	}
	dir := f.data
	if dir == "" && !f.Keep {
		var err error
		if dir, err = os.MkdirTemp("", "millrace-demo-"); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	settings := f.overrides(dir)
	f.Apply(c.h, settings)
	return c.h.Run(cmd.Context(), cmd, app.RunOptions{
		Demo: true, Overrides: settings,
		Ready: func(ctx context.Context, running *app.Running) error {
			show := demoOutput{commands: c, cmd: cmd, flags: f, running: running}
			report, err := c.runCampaign(ctx, show, source)
			if err != nil {
				return exitCode(err)
			}
			if err := show.result(report); err != nil {
				return err
			}
			if f.Keep {
				if err := c.showAddresses(show, report); err != nil {
					return err
				}
				<-ctx.Done()
			}
			if !report.Balanced {
				return app.Bad("the books don't balance")
			}
			if !f.Keep {
				show.line("Next: `%[1]s demo --keep` keeps it running, with commands to try. `%[1]s new handler NAME` writes a handler.", c.h.Program())
			}
			return nil
		},
	})
}

// DemoReport is what `demo --json` writes.
type DemoReport struct {
	Promotion int64 `json:"promotion"`
	Published int64 `json:"published"`
	reconcile.Totals
	Balanced bool `json:"balanced"`
	// from the first record published to the last payout settled
	Seconds          float64 `json:"seconds"`
	PayoutsPerSecond float64 `json:"payouts_per_second"`
	CPUPerPayout     float64 `json:"cpu_us_per_payout"` // of this process and all that runs in it
	PeakMemory       int64   `json:"peak_memory_bytes"` // resident, of this process
}

func (c commands) runCampaign(ctx context.Context, show demoOutput, source targetSource) (DemoReport, error) {
	promotion := publication{promotion: time.Now().UnixMilli(), summary: 1}
	var types []promotiontype.Type
	for _, t := range promotiontype.All() {
		n, found := source.counts[t.Name]
		if !found {
			continue
		}
		types = append(types, t)
		if err := promotion.announce(ctx, c.Kafka, t.Name, n); err != nil {
			return DemoReport{}, err
		}
	}
	show.start(promotion, source, types)
	start, cpu := time.Now(), cpuTime()
	publishing := make(chan error, 1)
	bar := c.h.Progress(source.distinct, "settled")
	defer bar.Done()
	report := DemoReport{Promotion: promotion.promotion}
	go func() {
		n, err := promotion.publish(ctx, c.Kafka, source.targets, func(int64) {})
		report.Published = n
		publishing <- err
	}()
	if err := c.awaitSettled(ctx, promotion, types, source.distinct, publishing, bar); err != nil {
		return DemoReport{}, err
	}
	bar.Done()
	took := time.Since(start)
	report.CPUPerPayout = float64(cpuTime()-cpu) / float64(time.Microsecond) / float64(source.distinct)

	totals, err := c.totals(ctx, promotion.promotion, promotiontype.All())
	if err != nil {
		return DemoReport{}, err
	}
	report.Totals = totals
	report.Balanced = totals.Balance() && totals.Accepted == source.distinct && report.Published == source.total()
	report.Seconds = took.Seconds()
	report.PayoutsPerSecond = float64(totals.Paid) / took.Seconds()
	report.PeakMemory = peakMemory()
	return report, nil
}

const demoPoll = 100 * time.Millisecond

func (c commands) awaitSettled(ctx context.Context, promotion publication, types []promotiontype.Type, distinct int64, publishing <-chan error, bar *app.Progress) error {
	tick := time.NewTicker(demoPoll)
	defer tick.Stop()
	for published := false; ; {
		select {
		case err := <-publishing:
			if err != nil {
				return err
			}
			published = true
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		var settled int64
		for _, t := range types {
			n, err := c.Resources.Ledger().SettledCount(ctx, payouts.Promotion{Type: payouts.Type(t.Name), ID: promotion.promotion})
			if err != nil {
				return err
			}
			settled += n
		}
		bar.Set(settled)
		if published && settled >= distinct {
			return nil
		}
	}
}

// demoOutput writes the output of the demo: the report to standard output, all else to standard
// error.
type demoOutput struct {
	commands
	cmd     *cobra.Command
	flags   demoFlags
	running *app.Running
}

func (d demoOutput) line(format string, args ...any) { fmt.Fprintf(d.h.Err(), format+"\n", args...) }

func (d demoOutput) start(c publication, source targetSource, types []promotiontype.Type) {
	var parts []string
	for _, t := range types {
		parts = append(parts, app.Thousands(source.counts[t.Name])+" "+t.Name)
	}
	d.line("Campaign %d: %s targets, environment %s, concurrency %d per stream.", c.promotion, strings.Join(parts, " and "), d.running.Settings.Environment, d.flags.concurrency)
	d.line("Money API: latency %s, %g %% of calls fail, %g %% charge and never answer.", d.flags.latency, 100*d.flags.failRate, 100*d.flags.timeoutRate)
	if d.flags.timeoutRate > 0 {
		d.line("A call without an answer ends after %s, and a lookup then settles its payout: the last percent takes that long.", d.Settings().CallTimeout)
	}
}

func (d demoOutput) result(r DemoReport) error {
	return d.h.Show(d.cmd, r, r.write)
}

func (r DemoReport) write(w io.Writer) error {
	fmt.Fprintln(w)
	reconcile.WriteTotal(w, "published", r.Published, "records to Kafka")
	r.WriteLedger(w)
	r.WriteMoneyAPI(w)
	verdict := "The books balance: nothing lost, nothing paid twice."
	if !r.Balanced {
		verdict = "The books DON'T balance."
	}
	fmt.Fprintf(w, "\n%s\n", verdict)
	_, err := fmt.Fprintf(w, "%.1f s, %s payouts/s, %.0f µs of CPU per payout, %d MB of memory at most.\n",
		r.Seconds, app.Thousands(int64(r.PayoutsPerSecond)), r.CPUPerPayout, r.PeakMemory>>20)
	return err
}

// Connections are the addresses of a running process.
type Connections struct {
	KafkaBrokers, RedisAddrs []string
}

func (c commands) showAddresses(show demoOutput, r DemoReport) error {
	connections, flags, program := c.Connections(), "", c.h.Program()
	for _, name := range []string{"profile", "config"} {
		if value, _ := show.cmd.Flags().GetString(name); value != "" {
			flags += " --" + name + " " + value
		}
	}
	if flags == "" {
		flags = " --profile " + show.running.Document.Profile()
	}
	w := app.Table(c.h.Err())
	fmt.Fprintf(w, "\nStill running; Ctrl-C ends it.\n\n")
	fmt.Fprintf(w, "  Kafka\t%s\n  Redis\t%s\n  Money API\t%s\n", strings.Join(connections.KafkaBrokers, ","),
		strings.Join(connections.RedisAddrs, ","), c.MoneyURL())
	for _, p := range show.running.Plugins {
		if a, ok := p.(app.Announcer); ok {
			addresses := a.Announce()
			for _, name := range slices.Sorted(maps.Keys(addresses)) {
				fmt.Fprintf(w, "  %s\t%s\n", name, addresses[name])
			}
		}
	}
	if show.running.Settings.Environment != "external" {
		fmt.Fprintf(w, "  data folder\t%s (kept)\n", show.running.Settings.DataDir)
		if show.flags.data != "" {
			program = c.h.Variable("data_dir") + "=" + show.running.Settings.DataDir + " " + program
		}
	}
	first := fmt.Sprintf("%s:%d", promotiontype.Names()[0], r.Promotion)
	fmt.Fprintf(w, "\nTry in another terminal:\n")
	for _, command := range []string{"campaign list", "campaign explain " + first + ":1", "campaign reconcile " + first} {
		fmt.Fprintf(w, "  %s %s%s\n", program, command, flags)
	}
	return w.Flush()
}
