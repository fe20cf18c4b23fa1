package faults

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Result is what became of one case.
type Result struct {
	Case
	Took   time.Duration
	Broken string // the first broken invariant; empty: none
}

// The table stands between these two lines.
const (
	Begin = "<!-- faults:begin -->"
	End   = "<!-- faults:end -->"
)

// Table writes what was tried, how often, and with what result.
func Table(results []Result) string {
	var b strings.Builder
	seeds := map[uint64]bool{}
	var order []uint64
	targets, broken, took := 0, 0, time.Duration(0)
	for _, r := range results {
		if !seeds[r.Seed] {
			seeds[r.Seed] = true
			order = append(order, r.Seed)
		}
		targets += r.Targets
		took += r.Took
		if r.Broken != "" {
			broken++
		}
	}
	slices.Sort(order)
	held := "every invariant held after each"
	if broken > 0 {
		held = fmt.Sprintf("an invariant was broken after %d", broken)
	}
	fmt.Fprintf(&b, "%d cases with %d payouts, seeds %s, in %s: %s.\n\n", len(results), targets,
		strings.Trim(fmt.Sprint(order), "[]"), took.Round(time.Second), held)
	b.WriteString("| what | fault | tried | result |\n|---|---|---|---|\n")
	type line struct{ group, says string }
	tried := map[line][]Result{}
	for _, r := range results {
		l := line{r.Group, r.Says}
		tried[l] = append(tried[l], r)
	}
	for _, f := range Matrix() {
		l := line{f.Group, f.Says}
		rs, ok := tried[l]
		if !ok {
			continue
		}
		delete(tried, l)
		var bad []string
		for _, r := range rs {
			if r.Broken != "" {
				bad = append(bad, fmt.Sprintf("%s (seed %d)", r.Broken, r.Seed))
			}
		}
		result := "held"
		if len(bad) > 0 {
			result = "**broken:** " + strings.Join(bad, ", ")
		}
		fmt.Fprintf(&b, "| %s | %s | %d× | %s |\n", f.Group, f.Says, len(rs), result)
	}
	return b.String()
}

// Replace puts table between the two markers of text.
func Replace(text, table string) (string, error) {
	begin, end := strings.Index(text, Begin), strings.Index(text, End)
	if begin < 0 || end < begin {
		return "", errors.New("faults: no place for the table: " + Begin + " … " + End)
	}
	return text[:begin+len(Begin)] + "\n" + table + text[end:], nil
}
