package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

// write prints the sums per package, then each name with its user.
func (l *list) write(out io.Writer) error {
	sums := map[string]*[kinds]int{}
	total := [kinds]int{}
	for _, n := range l.names {
		if sums[n.pack] == nil {
			sums[n.pack] = &[kinds]int{}
		}
		sums[n.pack][n.user.kind]++
		total[n.user.kind]++
	}
	text := bufio.NewWriter(out)
	fmt.Fprintf(text, "# What the main module exports, and a user of each name outside of its package. `make api` writes this\n"+
		"# file. The user is an Example, else a file of e2e, else another package, else the test of one,\n"+
		"# else the interface or the declaration that needs the name. A name with - has none: unexport it.\n"+
		"# `make drift` compares the names and which of them have none; the rest is as of the last `make api`.\n#\n")
	var rows strings.Builder
	table := tabwriter.NewWriter(&rows, 0, 0, 1, ' ', tabwriter.AlignRight)
	row := func(title string, counts *[kinds]int) {
		all := 0
		for _, count := range counts {
			all += count
		}
		fmt.Fprintf(table, "%d\t", all)
		for _, count := range counts {
			fmt.Fprintf(table, "%d\t", count)
		}
		fmt.Fprintf(table, " %s\n", title)
	}
	fmt.Fprint(table, "names\t")
	for k := range kinds {
		fmt.Fprintf(table, "%v\t", k)
	}
	fmt.Fprintln(table, " package")
	row(fmt.Sprintf("all %d packages", len(sums)), &total)
	for _, pack := range slices.Sorted(maps.Keys(sums)) {
		row(pack, sums[pack])
	}
	if err := table.Flush(); err != nil {
		return err
	}
	for line := range strings.Lines(rows.String()) {
		fmt.Fprintf(text, "#%s", line)
	}
	fmt.Fprintln(text)
	for _, key := range slices.Sorted(maps.Keys(l.names)) {
		fmt.Fprintf(text, "%s %s\n", key, l.names[key].user.name)
	}
	return text.Flush()
}
