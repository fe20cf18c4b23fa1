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

// The places of results. The totals of promotions stand in README.md, and both tables in e2e/README.md, each between
// two lines with the name of the place.
const (
	OfPromotions = "faults"
	OfKinds      = "effect-faults"
)

// Totals is one sentence about all results.
func Totals(results []Result) string {
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
	what := "payouts"
	if len(results) > 0 && results[0].Kind == Effect {
		what = "records, each of which asks for an effect of four kinds"
	}
	held := "every invariant held after each"
	if broken > 0 {
		held = fmt.Sprintf("an invariant was broken after %d", broken)
	}
	return fmt.Sprintf("%d cases with %d %s, seeds %s, in %s: %s.\n", len(results), targets, what,
		strings.Trim(fmt.Sprint(order), "[]"), took.Round(time.Second), held)
}

// Table has one line per fault: what was tried, how often, and with what result.
func Table(results []Result) string {
	var b strings.Builder
	b.WriteString(Totals(results) + "\n")
	b.WriteString("| what | fault | tried | result |\n|---|---|---|---|\n")
	type line struct{ group, says string }
	tried := map[line][]Result{}
	for _, r := range results {
		l := line{r.Group, r.Says}
		tried[l] = append(tried[l], r)
	}
	for _, f := range append(Matrix(), OfEffects()...) {
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

// Replace puts content between the two markers of a place.
func Replace(text, place, content string) (string, error) {
	first, last := "<!-- "+place+":begin -->", "<!-- "+place+":end -->"
	begin, end := strings.Index(text, first), strings.Index(text, last)
	if begin < 0 || end < begin {
		return "", errors.New("faults: no place for the results: " + first + " … " + last)
	}
	return text[:begin+len(first)] + "\n" + content + text[end:], nil
}
