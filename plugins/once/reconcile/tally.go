package reconcile

import (
	"fmt"
	"strings"

	"github.com/millrace-io/millrace/pipeline/app"
)

// Bucket is a way in which sources can agree or differ about one thing.
type Bucket string

// Description is a bucket with its meaning.
type Description struct {
	Bucket
	Text string
	// Remedy is what to do about a thing in a bucket that breaks the books, or that is left to do. Empty: the
	// bucket is in order. Its author chooses the words that Cause replaces.
	Remedy string
}

// maxExamples is how many things of a bucket are named.
const maxExamples = 5

// Tally counts things per bucket, and keeps the first ones of each as examples.
type Tally[E any] struct {
	Buckets  map[Bucket]int64 `json:"buckets"`
	Examples map[Bucket][]E   `json:"examples"`
}

// NewTally returns a tally that has counted nothing in all of the buckets.
func NewTally[E any](all []Description) Tally[E] {
	t := Tally[E]{map[Bucket]int64{}, map[Bucket][]E{}}
	for _, b := range all {
		t.Buckets[b.Bucket] = 0
	}
	return t
}

// Count counts one thing. Those of a bucket that needs no examples, because all is well, are counted only.
func (t Tally[E]) Count(b Bucket, one E, isExample bool) {
	t.Buckets[b]++
	if isExample && len(t.Examples[b]) < maxExamples {
		t.Examples[b] = append(t.Examples[b], one)
	}
}

// List names the examples of a bucket with n things, and shows that there are more.
func (t Tally[E]) List(b Bucket, n int64) string {
	var all []string
	for _, e := range t.Examples[b] {
		all = append(all, fmt.Sprint(e))
	}
	if len(all) > 0 && int64(len(all)) < n {
		all = append(all, "…")
	}
	return strings.Join(all, " ")
}

// Example returns the first example, or other.
func (t Tally[E]) Example(b Bucket, other string) string {
	if len(t.Examples[b]) == 0 {
		return other
	}
	return fmt.Sprint(t.Examples[b][0])
}

// Named names the n things of a bucket, such as "targets 1 2 … (7 in all)". noun is one of them.
func (t Tally[E]) Named(b Bucket, n int64, noun string) string {
	if n > 1 {
		noun += "s"
	}
	named := strings.TrimSpace(noun + " " + t.List(b, n))
	if int64(len(t.Examples[b])) < n {
		named += fmt.Sprintf(" (%s in all)", app.Thousands(n))
	}
	return named
}
