// Package sorted sorts lists for people and batches, where the size of the binary matters more than the time.
package sorted

import (
	"iter"
	"slices"
)

// By sorts as slices.SortStableFunc does. Each type of elements gets a copy of that function, of 10 to 20 KB, and of this
// one, of less than 1 KB.
func By[T any](all []T, compare func(a, b T) int) {
	order := make([]int, len(all))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return compare(all[i], all[j]) })
	before := slices.Clone(all)
	for i, from := range order {
		all[i] = before[from]
	}
}

// Of returns what all yields, sorted as By does.
func Of[T any](all iter.Seq[T], compare func(a, b T) int) []T {
	list := slices.Collect(all)
	By(list, compare)
	return list
}
