// Bench compares the built binary with its peers on the same servers, and writes a README with the
// results. Run it from the repository's top folder:
//
//	make bench                      all comparisons; writes README.md, jobs.md and room.md
//	make bench ROWS=jobs            those of the event router; writes e2e/bench/jobs.md
//	make bench ROWS=room            those of the waiting room; writes e2e/bench/room.md
//	make bench ROWS=path,publish    some comparisons; writes no page
//	make bench QUICK=1              small counts, which test the machinery; writes no page
//	bin/bench -list                 the comparisons and their rows
//	bin/bench -rows path -targets 20000 -runs 1
//
// It starts servers of its own on loopback, with their data in .services/bench, and removes both at
// the end. MILLRACE_SERVICES_PORT_OFFSET moves their ports.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// options are the flags of the command.
type options struct {
	rows, dir, pages string
	quick, list      bool
	runs, targets    int
	limit            time.Duration
}

// command runs the benchmark, or the program that the first argument names.
func command(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 2 {
		if program, ok := programs()[args[0]]; ok {
			return program(ctx, args[1], out)
		}
	}
	var o options
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(out)
	flags.StringVar(&o.rows, "rows", "", "comma-separated comparisons or rows; jobs: those of the event router; room: those of the waiting room; default: all")
	flags.BoolVar(&o.quick, "quick", false, "small counts, one run each: tests the machinery only")
	flags.BoolVar(&o.list, "list", false, "list the comparisons and their rows")
	flags.IntVar(&o.runs, "runs", 0, "runs of each comparison; default: its own number")
	flags.IntVar(&o.targets, "targets", 0, "targets of a campaign; default: 100000")
	flags.DurationVar(&o.limit, "limit", 90*time.Minute, "time limit")
	flags.StringVar(&o.dir, "dir", filepath.Join(".services", "bench"), "folder of servers, logs and settings")
	flags.StringVar(&o.pages, "pages", filepath.Join("e2e", "bench"), "folder of README.md, jobs.md and room.md, each of which a complete run of its comparisons writes")
	err := flags.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}
	selected, err := chosen(o.rows)
	if err != nil {
		return err
	}
	if o.list {
		for _, c := range selected {
			fmt.Fprintf(out, "%-10s %s\n", c.name, strings.Join(c.keys(), " "))
		}
		return nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.limit, fmt.Errorf("the time limit of %s is over", o.limit))
	defer cancel()
	return try(func() {
		dir := must(filepath.Abs(o.dir))
		e := &environment{dir: dir, log: out, results: o.pages, self: must(os.Executable()), millrace: filepath.Join(dir, "millrace"), tables: map[string][]*table{}}
		(&trial{environment: e}).part(func(t *trial) { o.run(ctx, t, selected) })
	})
}

// run measures the selected comparisons, prints the table, and writes the pages whose comparisons
// are complete.
func (o options) run(ctx context.Context, t *trial, selected []comparison) {
	offset := must(strconv.Atoi(cmp.Or(os.Getenv("MILLRACE_SERVICES_PORT_OFFSET"), "0")))
	t.startServers(ctx, offset, slices.ContainsFunc(selected, on(mainPage)))
	t.logf("servers: %s", strings.Join(t.versions, ", "))
	text, err := exec.CommandContext(ctx, "go", "build", "-o", t.millrace, "github.com/millrace-io/millrace/cmd/millrace").CombinedOutput()
	if err != nil {
		check(fmt.Errorf("%w: %s", err, text))
	}
	size := full()
	if o.quick {
		size, o.runs = quick(), 1
	}
	size.campaign = cmp.Or(o.targets, size.campaign)
	rep := report{machine: t.machine()}
	began := time.Now()
	for _, c := range selected {
		rep.comparisons = append(rep.comparisons, t.compare(ctx, c, size, cmp.Or(o.runs, c.runs)))
		if ctx.Err() != nil {
			break
		}
	}
	rep.took, rep.tables = time.Since(began), t.tables
	t.logf("\n%s", rep.text())
	failed := rep.failed()
	for _, page := range []string{mainPage, jobsPage, roomPage} {
		if !slices.ContainsFunc(selected, on(page)) {
			continue
		}
		path := filepath.Join(o.pages, page)
		if failed != nil || o.quick || o.targets > 0 || !complete(selected, page) {
			t.logf("%s is not written: only a complete run without a missing figure writes it.", path)
		} else {
			check(rep.write(path, t.plots))
		}
	}
	check(failed)
}

// on reports whether a comparison is on a page.
func on(page string) func(comparison) bool {
	return func(c comparison) bool { return c.page() == page }
}

// complete reports whether the selected comparisons are all of a page.
func complete(selected []comparison, page string) bool {
	missing := func(c comparison) bool {
		return on(page)(c) && !slices.ContainsFunc(selected, func(s comparison) bool { return s.name == c.name })
	}
	return !slices.ContainsFunc(comparisons(), missing)
}

// chosen returns the comparisons that have one of the names or rows, or are on the page of that
// name.
func chosen(names string) ([]comparison, error) {
	all := comparisons()
	if names == "" {
		return all, nil
	}
	picked := map[string]bool{}
	for name := range strings.SplitSeq(names, ",") {
		found := false
		for _, c := range all {
			if c.name == name || slices.Contains(c.keys(), name) || name+".md" == c.page() {
				picked[c.name], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no comparison or row is named %q; -list shows them", name)
		}
	}
	return slices.DeleteFunc(all, func(c comparison) bool { return !picked[c.name] }), nil
}
