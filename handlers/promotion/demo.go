package promotion

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/pipeline/app"
)

// demoOptions are the flags of `demo`.
type demoOptions struct {
	targets     int
	csv         string
	failRate    float64
	timeoutRate float64
	latency     time.Duration
	seed        uint64
	slots       int
	keep        bool
	verbose     bool
	data        string
}

func (p *Plugin) demoCommand(h *app.Host) *cobra.Command {
	var o demoOptions
	cmd := h.SettingsFlags(h.JSONFlag(&cobra.Command{
		Use:   "demo",
		Short: "Publish a campaign to Kafka, pay it through the whole path, and hold the books against each other",
		Long: `Publish a campaign to Kafka, pay it through the whole path, and hold the books against each other.

Without more it needs nothing but this binary: Kafka, Redis, the ledger and a simulated Money API run inside the
process. With --profile local it is the same against the servers of "make services"; the Money API stays simulated.
It ends with 0 only when the books balance: every accepted payout is settled, and what the Money API charged is
what the ledger says was paid, once each.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return p.demo(cmd, h, o) },
	}))
	f := cmd.Flags()
	f.IntVar(&o.targets, "targets", 10_000, "targets of each type")
	f.StringVar(&o.csv, "csv", "", "publish the targets of this `file` instead; columns "+strings.Join(csvColumns, ","))
	f.Float64Var(&o.failRate, "fail-rate", 0.02, "share of Money API calls that fail with 500")
	f.Float64Var(&o.timeoutRate, "timeout-rate", 0.01, "share of Money API calls that charge and never answer")
	f.DurationVar(&o.latency, "latency", 5*time.Millisecond, "of every Money API call")
	f.Uint64Var(&o.seed, "seed", 1, "for amounts and failing calls")
	f.IntVar(&o.slots, "slots", 32, "calls in flight a stream")
	f.BoolVar(&o.keep, "keep", false, "stay up afterwards, until Ctrl-C")
	f.BoolVar(&o.verbose, "verbose", false, "show the log")
	f.StringVar(&o.data, "data", "", "`folder` of the embedded home; without it a temporary one")
	return cmd
}

func (o demoOptions) validate() error {
	switch {
	case o.targets < 1 && o.csv == "":
		return fmt.Errorf("--targets must be > 0, got %d", o.targets)
	case o.slots < 1 || o.slots > 1024:
		return fmt.Errorf("--slots must be from 1 to 1024, got %d", o.slots)
	}
	return nil
}

// overrides are the settings that the flags stand for.
func (o demoOptions) overrides(dataDir string) map[string]any {
	set := map[string]any{
		"data_dir":                         dataDir,
		"plugins.promotion.stream.enabled": true,
		"plugins.promotion.stream.min_consumers_per_instance": o.slots,
		"plugins.promotion.stream.max_consumers_per_instance": o.slots,
		"plugins.promotion.money_api.simulator.enabled":       true,
		"plugins.promotion.money_api.simulator.latency":       o.latency.String(),
		"plugins.promotion.money_api.simulator.fail_rate":     o.failRate,
		"plugins.promotion.money_api.simulator.timeout_rate":  o.timeoutRate,
		"plugins.promotion.money_api.simulator.seed":          o.seed,
	}
	if !o.keep {
		set["plugins.telemetry.listen"] = "" // nobody looks that fast, and the port may be another process's
	}
	if !o.verbose {
		set["log.level"] = "error"
	}
	return set
}

// campaignOf returns the targets to publish, how many of each type there are, and how many different ones
// in all. A file is read twice: it is checked before anything is published.
func (o demoOptions) campaignOf() (targets iter.Seq2[target, error], counts map[string]int64, distinct int64, err error) {
	counts = map[string]int64{}
	if o.csv == "" {
		for _, kind := range kinds() {
			counts[kind] = int64(o.targets)
			distinct += int64(o.targets)
		}
		return generated(o.targets, o.seed, kinds()...), counts, distinct, nil
	}
	type id struct {
		kind   string
		target int64
	}
	seen := map[id]struct{}{}
	for t, err := range fromCSV(o.csv) {
		if err != nil {
			return nil, nil, 0, err
		}
		counts[t.kind]++
		seen[id{t.kind, t.id}] = struct{}{}
	}
	if len(seen) == 0 {
		return nil, nil, 0, fmt.Errorf("%s has no targets", o.csv)
	}
	return fromCSV(o.csv), counts, int64(len(seen)), nil
}

func (p *Plugin) demo(cmd *cobra.Command, h *app.Host, o demoOptions) error {
	if err := o.validate(); err != nil {
		return &app.ExitError{Code: app.ExitUsage, Err: err}
	}
	targets, counts, distinct, err := o.campaignOf()
	if err != nil {
		return &app.ExitError{Code: app.ExitUsage, Err: err}
	}
	dir := o.data
	if dir == "" {
		if dir, err = os.MkdirTemp("", "millrace-demo-"); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
	}
	return h.Run(cmd.Context(), cmd, app.RunOptions{
		Overrides: o.overrides(dir),
		Ready: func(ctx context.Context, running *app.Running) error {
			show := demoShow{h: h, json: h.JSON(cmd), home: running.Settings.Home, options: o}
			report, err := p.runCampaign(ctx, show, targets, counts, distinct)
			if err != nil {
				return bad(err)
			}
			if err := show.report(report); err != nil {
				return err
			}
			if o.keep {
				show.say("Still running; Ctrl-C ends it.")
				<-ctx.Done()
			}
			if !report.Balanced {
				return &app.ExitError{Code: app.ExitBad, Err: errors.New("the books don't balance")}
			}
			return nil
		},
	})
}

// DemoReport is what `demo --json` prints.
type DemoReport struct {
	Promotion int64 `json:"promotion"`
	Published int64 `json:"published"`
	Books
	Balanced         bool    `json:"balanced"`
	Seconds          float64 `json:"seconds"` // from the first record published to the last payout settled
	PayoutsPerSecond float64 `json:"payouts_per_second"`
	CPUPerPayout     float64 `json:"cpu_us_per_payout"` // of this process, everything it runs included
	PeakMemory       int64   `json:"peak_memory_bytes"` // resident, of this process
}

// runCampaign publishes the targets and waits until everything is settled.
func (p *Plugin) runCampaign(ctx context.Context, show demoShow, targets iter.Seq2[target, error], counts map[string]int64, distinct int64) (DemoReport, error) {
	c := campaign{promotion: time.Now().UnixMilli(), summary: 1}
	var total int64
	for kind, n := range counts {
		total += n
		if err := c.announce(ctx, p.kafka, kind, n); err != nil {
			return DemoReport{}, err
		}
	}
	show.begin(c, counts)
	begin, cpu := time.Now(), cpuTime()
	publishing := make(chan error, 1)
	bar := show.progress(distinct)
	defer bar.Done()
	report := DemoReport{Promotion: c.promotion}
	go func() {
		n, err := c.publish(ctx, p.kafka, targets, func(int64) {})
		report.Published = n
		publishing <- err
	}()
	if err := p.awaitSettled(ctx, c, counts, distinct, publishing, bar); err != nil {
		return DemoReport{}, err
	}
	bar.Done()
	took := time.Since(begin)
	report.CPUPerPayout = float64(cpuTime()-cpu) / float64(time.Microsecond) / float64(distinct)

	books, err := p.run.books(ctx, c.promotion, strategies()...)
	if err != nil {
		return DemoReport{}, err
	}
	report.Books = books
	report.Balanced = books.Balance() && books.Accepted == distinct && report.Published == total
	report.Seconds = took.Seconds()
	report.PayoutsPerSecond = float64(books.Paid) / took.Seconds()
	report.PeakMemory = peakMemory()
	return report, nil
}

// demoPoll is how often the ledger is asked how far it is.
const demoPoll = 100 * time.Millisecond

// awaitSettled returns when everything is published and settled.
func (p *Plugin) awaitSettled(ctx context.Context, c campaign, counts map[string]int64, distinct int64, publishing <-chan error, bar *app.Progress) error {
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
		for kind := range counts {
			n, err := p.run.ledger.Settled(ctx, ledger.Promotion{Type: ledger.Type(kind), ID: c.promotion})
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

// demoShow is what a person sees of the demo.
type demoShow struct {
	h       *app.Host
	json    bool
	home    string
	options demoOptions
}

// say writes a line for people: beside the result, never into it.
func (d demoShow) say(format string, args ...any) { fmt.Fprintf(d.h.Err(), format+"\n", args...) }

func (d demoShow) begin(c campaign, counts map[string]int64) {
	var parts []string
	for _, kind := range kinds() {
		if n := counts[kind]; n > 0 {
			parts = append(parts, thousands(n)+" "+kind)
		}
	}
	d.say("Campaign %d: %s targets, home %s, %d slots a stream.", c.promotion, strings.Join(parts, " and "), d.home, d.options.slots)
	d.say("Money API: %s latency, %g %% of calls fail, %g %% charge and never answer.", d.options.latency, 100*d.options.failRate, 100*d.options.timeoutRate)
}

func (d demoShow) progress(total int64) *app.Progress { return d.h.Progress(total, "settled") }

func (d demoShow) report(r DemoReport) error {
	if d.json {
		return d.h.WriteJSON(r)
	}
	writeReport(d.h.Out(), r)
	return nil
}

func writeReport(w io.Writer, r DemoReport) {
	fmt.Fprintf(w, "\n  %-15s %12s  records to Kafka\n", "published", thousands(r.Published))
	writeLedgerBook(w, r.Books)
	writeMoneyBook(w, r.Books)
	verdict := "The books balance: nothing lost, nothing paid twice."
	if !r.Balanced {
		verdict = "The books DON'T balance."
	}
	fmt.Fprintf(w, "\n%s\n", verdict)
	fmt.Fprintf(w, "%.1f s, %s payouts/s, %.0f µs of CPU each, %d MB of memory at most.\n",
		r.Seconds, thousands(int64(r.PayoutsPerSecond)), r.CPUPerPayout, r.PeakMemory>>20)
}

// shownNumber is a number of the books with what it means.
type shownNumber struct {
	name  string
	n     int64
	about string
}

func writeLedgerBook(w io.Writer, b Books) {
	writeLines(w, []shownNumber{
		{"accepted", b.Accepted, "payouts in the ledger"},
		{"paid", b.Paid, ""},
		{"failed", b.Failed, "refused for good, nothing charged"},
		{"unknown", b.Unknown, "perhaps charged, for a person to find out"},
		{"cancelled", b.Cancelled, ""},
		{"pending", b.Pending, "not settled yet"},
		{"dead", b.Dead, "dead letters, conflicts among them"},
		{"conflict", b.Conflict, "same target, other request"},
	})
}

func writeMoneyBook(w io.Writer, b Books) {
	writeLines(w, []shownNumber{
		{"charged", b.Charged, "according to the Money API's own book"},
		{"double charged", b.DoubleCharged, ""},
		{"missing", b.Missing, "paid, but not in the Money API's book"},
		{"unbooked", b.Unbooked, "in the Money API's book, but not paid here yet"},
		{"unexplained", b.Unexplained, "in the Money API's book, but never to be paid here"},
		{"amount differs", b.AmountDiffers, ""},
	})
}

func writeLines(w io.Writer, lines []shownNumber) {
	for _, line := range lines {
		fmt.Fprintf(w, "  %-15s %12s  %s\n", line.name, thousands(line.n), line.about)
	}
}

// thousands writes n with a comma every three digits.
func thousands(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}
