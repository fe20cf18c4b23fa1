package configs

import (
	"slices"
	"strconv"

	"github.com/agext/levenshtein"
)

// didYouMean returns `; did you mean "x"?` for the nearest candidate, or "" without one.
func didYouMean(word string, candidates []string) string {
	if best := Nearest(word, candidates); best != "" {
		return "; did you mean " + strconv.Quote(best) + "?"
	}
	return ""
}

// Nearest returns the candidate that is most like word, or "" if more than a third of the
// characters differ in all of them.
func Nearest(word string, candidates []string) string {
	const longestWord = 100 // the distance costs word × candidate
	if len(word) > longestWord {
		return ""
	}
	best, distance := "", min(max(1, (len(word)+1)/3), len(word)-1)+1 // at most a third, never all
	for _, c := range slices.Sorted(slices.Values(candidates)) {
		if d := levenshtein.Distance(word, c, nil); d < distance {
			best, distance = c, d
		}
	}
	return best
}

func quoteShort(text string) string {
	if r := []rune(text); len(r) > 40 {
		text = string(r[:40]) + "…"
	}
	return strconv.Quote(text)
}
