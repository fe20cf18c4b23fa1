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

// introductions returns the text before the table of each page.
func introductions() map[string]string {
	return map[string]string{mainPage: `# Benchmark

` + "`make bench`" + ` writes this file. Each row compares the built binary with its peer, on the same
servers in the same run. The ratio is that of the median run; the brackets have the smallest and the
largest. A campaign that lost or repeated a payout has no figure.

`, jobsPage: `# Benchmark of the event router

` + "`make bench ROWS=jobs`" + ` writes this file. A router and a gateway run as two processes of the
built binary. Redis, the load generator and the watchers are on the same machine. A delay lasts from
the XADD of an event until a watcher has read it from its socket. Each client received each event
once and in order; a run has no figures otherwise. An event has 200 bytes of data.

The ratio is that of the median run, and the brackets have the smallest and the largest. The client
that stops reading watches up to 31 of the jobs. A large event blocks it in the first second. When
the gateway has disconnected it, another one follows.

`, roomPage: `# Benchmark of the waiting room

` + "`make bench ROWS=room`" + ` writes this file. Redis, the product and the load generator are on the
same machine. The time of a script is what Redis measured for this call alone. Redis time is the
time of all commands that Redis measured. Users have ids of 12 characters.

`}
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
		i = len(e.tables[page])
		e.tables[page] = append(e.tables[page], &t)
	}
	e.tables[page][i].lines = append(e.tables[page][i].lines, cells)
}

// other prints a figure without a goal, and adds it to the page.
func (t *trial) other(what, format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	t.logf("  %s: %s", what, text)
	t.note(t.page, table{title: "Other figures", head: []string{"what", "figure"}}, what, text)
}

// markdown writes a table.
func markdown(b *strings.Builder, head []string, lines [][]string) {
	fmt.Fprintf(b, "| %s |\n|%s\n", strings.Join(head, " | "), strings.Repeat("---|", len(head)))
	for _, cells := range lines {
		fmt.Fprintf(b, "| %s |\n", strings.Join(cells, " | "))
	}
}

// median returns the middle one of the pairs by their figure, and the extremes.
func median(pairs []pair) (middle, least, most pair) {
	sorted := slices.SortedFunc(slices.Values(pairs), func(a, b pair) int { return cmp.Compare(a.figure(), b.figure()) })
	return sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1]
}

// result returns the figures of a row, their ratio with its spread, and the verdict.
func (o outcome) result(r row) (figures, spread, verdict string) {
	pairs := o.pairs[r.key]
	if len(pairs) == 0 {
		return none, none, "no figure: the run failed"
	}
	middle, least, most := median(pairs)
	figures = number(middle.ours)
	if middle.peer != 0 {
		figures += " / " + number(middle.peer)
	}
	spread = number(middle.figure()) + r.unit
	if len(pairs) > 1 {
		spread += fmt.Sprintf(" (%s–%s, %d runs)", number(least.figure()), number(most.figure()), len(pairs))
	}
	verdict = "met"
	if missing := r.missing(middle); missing > 0 {
		verdict = fmt.Sprintf("short by %s%s because %s", number(missing), r.unit, cmp.Or(r.why, "… (no reason is recorded)"))
	}
	return figures, spread, verdict
}

// missing returns by how much a figure falls short of the goal.
func (r row) missing(p pair) float64 {
	if r.atMost {
		return p.figure() - r.goal
	}
	return r.goal - p.figure()
}

// number prints three digits.
func number(v float64) string {
	decimals := 2
	switch {
	case v >= 100:
		decimals = 0
	case v >= 10:
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// lines returns the cells of each row on a page, or on all pages without a name.
func (r report) lines(page string) (lines [][]string) {
	for _, o := range r.of(page) {
		for _, row := range o.rows {
			figures, spread, verdict := o.result(row)
			sign := "≥ "
			if row.atMost {
				sign = "≤ "
			}
			lines = append(lines, []string{row.what, row.against, figures, spread, sign + number(row.goal) + row.unit, verdict})
		}
	}
	return lines
}

// of returns the outcomes on a page, or all without a name.
func (r report) of(page string) []outcome {
	return slices.DeleteFunc(slices.Clone(r.comparisons), func(o outcome) bool { return page != "" && o.page() != page })
}

// text is the table for a terminal.
func (r report) text() string {
	var b strings.Builder
	for _, c := range r.lines("") {
		fmt.Fprintf(&b, "%-80s %-26s %-18s %-34s %-10s %s\n", c[0], c[1], c[2], c[3], c[4], c[5])
	}
	return b.String()
}

// failed returns why figures are missing, or nil.
func (r report) failed() (err error) {
	for _, o := range r.comparisons {
		err = errors.Join(err, o.err)
	}
	return err
}

// allocationTable has the allocations of the last complete run, with one row per line.
const allocationTable = "allocations.txt"

// committed returns the figure of a row in the table of allocations, or 0.
func (e *environment) committed(key string) float64 {
	text, _ := os.ReadFile(filepath.Join(e.results, allocationTable)) // none: 0
	_, rest, _ := strings.Cut("\n"+string(text), "\n"+key+" ")
	value, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseFloat(value, 64)
	return n
}

// write writes a page, and next to the main one the plots and the table of allocations.
func (r report) write(path string, plots []byte) error {
	var b, allocations strings.Builder
	page := filepath.Base(path)
	b.WriteString(introductions()[page])
	markdown(&b, []string{"what", "against", "figures", "ratio", "target", "result"}, r.lines(page))
	r.tried(&b, page)
	for _, t := range r.tables[page] {
		fmt.Fprintf(&b, "\n## %s\n\n", t.title)
		if t.text != "" {
			fmt.Fprintf(&b, "%s\n\n", t.text)
		}
		markdown(&b, t.head, t.lines)
	}
	var err error
	if page == mainPage {
		b.WriteString("\n## The campaign with 1,000,000 targets\n\n![rate, lag, pending entries and memory over time](million.svg)\n")
		for _, o := range r.of(page) {
			for _, row := range o.rows {
				if strings.HasSuffix(row.key, "-allocations") {
					middle, _, _ := median(o.pairs[row.key])
					fmt.Fprintf(&allocations, "%s %.1f\n", row.key, middle.ours)
				}
			}
		}
		dir := filepath.Dir(path)
		err = errors.Join(
			os.WriteFile(filepath.Join(dir, allocationTable), []byte(allocations.String()), 0o644),
			os.WriteFile(filepath.Join(dir, "million.svg"), plots, 0o644),
		)
	}
	fmt.Fprintf(&b, "\n## Machine\n\n%s\nThe run took %s.\n", r.machine, r.took.Round(time.Minute))
	return errors.Join(err, os.WriteFile(path, []byte(b.String()), 0o644))
}

// tried writes what was tried for the rows that fall short. Rows may share a text.
func (r report) tried(b *strings.Builder, page string) {
	var texts []string
	short := map[string][]string{} // rows, by text
	for _, o := range r.of(page) {
		for _, row := range o.rows {
			if middle, _, _ := median(o.pairs[row.key]); row.tried != "" && row.missing(middle) > 0 {
				if short[row.tried] == nil {
					texts = append(texts, row.tried)
				}
				short[row.tried] = append(short[row.tried], row.what)
			}
		}
	}
	for _, text := range texts {
		of := strings.Join(short[text], "; ")
		fmt.Fprintf(b, "\n**%s.**\n%s\n", strings.ToUpper(of[:1])+of[1:], text)
	}
}

// machine describes where the run took place.
func (e *environment) machine() string {
	about := func(file, key string) string {
		text, _ := os.ReadFile(file) // none outside of Linux
		_, rest, _ := strings.Cut(string(text), key)
		value, _, _ := strings.Cut(rest, "\n")
		return strings.Trim(value, "\t :")
	}
	return fmt.Sprintf("- %d cores (%s), %s of memory, %s/%s\n- Go %s\n- %s\n", runtime.NumCPU(),
		about("/proc/cpuinfo", "model name"), about("/proc/meminfo", "MemTotal"),
		runtime.GOOS, runtime.GOARCH, strings.TrimPrefix(runtime.Version(), "go"), strings.Join(e.versions, ", "))
}
