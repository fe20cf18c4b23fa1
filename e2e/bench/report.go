package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

// outcome is all runs of a comparison.
type outcome struct {
	comparison
	pairs map[string][]pair // by row
	err   error
}

// report is the outcome of all comparisons.
type report struct {
	machine     string
	took        time.Duration
	comparisons []outcome
	tables      map[string][]*table // further ones of each page
}

// table is a further table of a page.
type table struct {
	title, text string
	head        []string
	lines       [][]string
}

// note adds a line to a table of a page.
func (e *environment) note(page string, t table, cells ...string) {
	i := slices.IndexFunc(e.tables[page], func(other *table) bool { return other.title == t.title })
	if i < 0 {
		if e.tables == nil {
			e.tables = map[string][]*table{}
		}
		i = len(e.tables[page])
		e.tables[page] = append(e.tables[page], &t)
	}
	e.tables[page][i].lines = append(e.tables[page][i].lines, cells)
}

func (t *table) write(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s\n\n", t.title)
	if t.text != "" {
		fmt.Fprintf(b, "%s\n\n", t.text)
	}
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(t.head, " | "), strings.Repeat("---|", len(t.head)))
	for _, cells := range t.lines {
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
	}
}

// median returns the middle one of the pairs by their figure, and the extremes.
func median(pairs []pair) (middle, least, most pair) {
	sorted := slices.SortedFunc(slices.Values(pairs), func(a, b pair) int {
		switch {
		case a.figure() < b.figure():
			return -1
		case a.figure() > b.figure():
			return 1
		}
		return 0
	})
	return sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1]
}

// lines returns the cells of a row after its goal: figures, ratio with its spread, and verdict.
func (o outcome) lines(r row) []string {
	middle, least, most := median(o.pairs[r.key])
	figures := number(middle.ours)
	if middle.peer != 0 {
		figures += " / " + number(middle.peer)
	}
	spread := number(middle.figure()) + r.unit
	if n := len(o.pairs[r.key]); n > 1 {
		spread += fmt.Sprintf(" (%s–%s, %d runs)", number(least.figure()), number(most.figure()), n)
	}
	verdict := "met"
	if missing := r.missing(middle.figure()); missing > 0 {
		verdict = fmt.Sprintf("short by %s%s because %s", number(missing), r.unit, cmp.Or(r.why, "… (no reason is recorded)"))
	}
	return []string{figures + " → " + spread, figures, spread, verdict}
}

// missing returns by how much a figure falls short of the goal.
func (r row) missing(figure float64) float64 {
	if r.atMost {
		return figure - r.goal
	}
	return r.goal - figure
}

func (r row) target() string {
	if r.atMost {
		return "≤ " + number(r.goal) + r.unit
	}
	return "≥ " + number(r.goal) + r.unit
}

// number prints three digits.
func number(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// of returns the outcomes on a page.
func (r report) of(page string) []outcome {
	return slices.DeleteFunc(slices.Clone(r.comparisons), func(o outcome) bool { return o.page() != page })
}

// rows calls line for each row with its cells.
func rows(comparisons []outcome, line func(cells ...string)) {
	for _, o := range comparisons {
		for _, row := range o.rows {
			if len(o.pairs[row.key]) == 0 {
				line(row.what, row.against, "–", "–", row.target(), "no figure: the run failed")
				continue
			}
			cells := o.lines(row)
			line(row.what, row.against, cells[1], cells[2], row.target(), cells[3])
		}
	}
}

// text is the table for a terminal.
func (r report) text() string {
	var b strings.Builder
	rows(r.comparisons, func(cells ...string) {
		fmt.Fprintf(&b, "%-80s %-26s %-18s %-34s %-10s %s\n", cells[0], cells[1], cells[2], cells[3], cells[4], cells[5])
	})
	return b.String()
}

// failed returns why figures are missing, or nil.
func (r report) failed() error {
	var errs []error
	for _, o := range r.comparisons {
		errs = append(errs, o.err)
	}
	return errors.Join(errs...)
}

const readme = `# Benchmark

` + "`make bench`" + ` writes this file. Each row compares the built binary with its peer, on the same
servers in the same run. The ratio is that of the median run; the brackets have the smallest and the
largest. A campaign that lost or repeated a payout has no figure.

`

const jobsIntroduction = `# Benchmark of the event router

` + "`make bench ROWS=jobs`" + ` writes this file. A router and a gateway run as two processes of the
built binary. Redis, the load generator and the watchers are on the same machine. A delay lasts from
the XADD of an event until a watcher has read it from its socket. Each client received each event
once and in order; a run has no figures otherwise. An event has 200 bytes of data.

The ratio is that of the median run, and the brackets have the smallest and the largest. The client
that stops reading watches up to 31 of the jobs. A large event blocks it in the first second. When
the gateway has disconnected it, another one follows.

`

const roomIntroduction = `# Benchmark of the waiting room

` + "`make bench ROWS=room`" + ` writes this file. Redis, the product and the load generator are on the
same machine. The time of a script is what Redis measured for this call alone. Redis time is the
time of all commands that Redis measured. Users have ids of 12 characters.

`

// introductions returns the text before the table of each page.
func introductions() map[string]string {
	return map[string]string{mainPage: readme, jobsPage: jobsIntroduction, roomPage: roomIntroduction}
}

// allocationTable has the allocations of the last complete run, with one row per line.
const allocationTable = "allocations.txt"

// committed returns the figure of a row in the table of allocations, or 0.
func (e *environment) committed(key string) float64 {
	text, _ := os.ReadFile(filepath.Join(e.results, allocationTable)) // none: 0
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), " "); ok && name == key {
			n, _ := strconv.ParseFloat(value, 64)
			return n
		}
	}
	return 0
}

// write writes a page.
func (r report) write(path string, plots []byte) error {
	var b strings.Builder
	page := filepath.Base(path)
	b.WriteString(introductions()[page])
	r.table(&b, page)
	r.tried(&b, page)
	for _, t := range r.tables[page] {
		t.write(&b)
	}
	if page == mainPage {
		if err := r.writeNextTo(path, plots); err != nil {
			return err
		}
		b.WriteString("\n## The campaign with 1,000,000 targets\n\n![rate, lag, pending entries and memory over time](million.svg)\n")
	}
	fmt.Fprintf(&b, "\n## Machine\n\n%s\nThe run took %s.\n", r.machine, r.took.Round(time.Minute))
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

func (r report) table(b *strings.Builder, page string) {
	b.WriteString("| what | against | figures | ratio | target | result |\n|---|---|---|---|---|---|\n")
	rows(r.of(page), func(cells ...string) { fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | ")) })
}

// tried writes what was tried for the rows that fall short. Rows may share a text.
func (r report) tried(b *strings.Builder, page string) {
	var texts []string
	short := map[string][]string{} // rows, by text
	for _, o := range r.of(page) {
		for _, row := range o.rows {
			middle, _, _ := median(o.pairs[row.key])
			if row.tried == "" || row.missing(middle.figure()) <= 0 {
				continue
			}
			if short[row.tried] == nil {
				texts = append(texts, row.tried)
			}
			short[row.tried] = append(short[row.tried], row.what)
		}
	}
	for _, text := range texts {
		of := strings.Join(short[text], "; ")
		fmt.Fprintf(b, "\n**%s.**\n%s\n", strings.ToUpper(of[:1])+of[1:], text)
	}
}

// writeNextTo writes the plots and the table of allocations next to the README.
func (r report) writeNextTo(path string, plots []byte) error {
	var allocations strings.Builder
	for _, o := range r.of(mainPage) {
		for _, row := range o.rows {
			if strings.HasSuffix(row.key, "-allocations") {
				middle, _, _ := median(o.pairs[row.key])
				fmt.Fprintf(&allocations, "%s %.1f\n", row.key, middle.ours)
			}
		}
	}
	dir := filepath.Dir(path)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, allocationTable), []byte(allocations.String()), 0o644),
		os.WriteFile(filepath.Join(dir, "million.svg"), plots, 0o644),
	)
}

// machine describes where the run took place.
func machine(e *environment) string {
	var model string
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		_, rest, _ := strings.Cut(string(text), "model name\t: ")
		model, _, _ = strings.Cut(rest, "\n")
	}
	memory := ""
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		_, rest, _ := strings.Cut(string(text), "MemTotal:")
		memory, _, _ = strings.Cut(strings.TrimSpace(rest), "\n")
	}
	return fmt.Sprintf("- %d cores (%s), %s of memory, %s/%s\n- Go %s\n- %s\n", runtime.NumCPU(), model, memory,
		runtime.GOOS, runtime.GOARCH, strings.TrimPrefix(runtime.Version(), "go"), strings.Join(e.versions, ", "))
}
