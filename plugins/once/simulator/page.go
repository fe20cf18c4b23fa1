package simulator

import (
	"cmp"
	"net/url"
	"slices"
	"time"
)

// The numbers of entries of one page.
const (
	defaultPage = 1000
	maxPage     = 10000
)

// Query selects entries of the journal.
type Query struct {
	Filter url.Values // see API.Filter
	After  string     // only keys that sort after this one
	Limit  int        // entries of a page; 0: 1000; at most 10000
}

// Entry is a key that was executed.
type Entry struct {
	Key        string    `json:"key"`
	Path       string    `json:"path"` // this and the next fields are those of the latest execution
	Body       string    `json:"body"`
	BodyHash   string    `json:"bodyHash"` // first half of the body's SHA-256, hex
	Subject    string    `json:"subject"`  // see Order
	Sum        int64     `json:"sum,omitempty"`
	Receipt    string    `json:"receipt"`
	At         time.Time `json:"at"`
	Executions int       `json:"executions"` // 1, or more after KeyTTL, or without keys
	// Overlaps and AfterDone are those of Summary, for this key.
	Overlaps  int `json:"overlaps,omitempty"`
	AfterDone int `json:"afterDone,omitempty"`
}

// Page is a part of the journal, in the order of its keys.
type Page struct {
	Entries []Entry `json:"entries"`
	Next    string  `json:"next,omitempty"` // After of the next page; empty: the last page
}

// Summary is the totals of the journal.
type Summary struct {
	Executed       int               `json:"executed"` // keys
	Executions     int               `json:"executions"`
	Sum            int64             `json:"sum"` // of all executions
	DoubleKeys     int               `json:"double_keys"`
	DoubleSubjects int               `json:"double_subjects"`
	Doubled        int               `json:"doubled"`  // the larger of both
	Requests       map[string]uint64 `json:"requests"` // by kind, since the process started
	// Overlaps is the number of calls (requests and lookups) that began during another call of the
	// same key, since the process started. A call whose caller has closed the connection is over.
	Overlaps int `json:"overlaps"`
	// AfterDone is the number of calls after the good answer to a call of the same key, since the
	// process started. Such a call is right if the caller has lost that answer, for example because
	// its process was killed before it stored it.
	AfterDone int `json:"after_done"`
}

// sortedKeys returns keys in order. It sorts new ones when they are read.
type sortedKeys struct {
	sorted, tail []string
}

func (s *sortedKeys) add(key string) { s.tail = append(s.tail, key) }

func (s *sortedKeys) all() []string {
	if len(s.tail) == 0 {
		return s.sorted
	}
	slices.Sort(s.tail)
	merged := make([]string, 0, len(s.sorted)+len(s.tail))
	for _, key := range s.tail {
		i, _ := slices.BinarySearch(s.sorted, key)
		merged = append(append(merged, s.sorted[:i]...), key)
		s.sorted = s.sorted[i:]
	}
	s.sorted, s.tail = append(merged, s.sorted...), nil
	return s.sorted
}

func (j *journal) page(q Query, match func(subject string) bool) Page {
	limit := min(cmp.Or(max(0, q.Limit), defaultPage), maxPage)
	j.mu.Lock()
	defer j.mu.Unlock()
	keys := j.sorted.all()
	i, found := slices.BinarySearch(keys, q.After)
	if found {
		i++
	}
	p := Page{Entries: make([]Entry, 0, min(limit, len(keys)-i))}
	for ; i < len(keys); i++ {
		r := j.keys[keys[i]]
		if match != nil && !match(r.subject) {
			continue
		}
		if len(p.Entries) == limit {
			p.Next = p.Entries[limit-1].Key
			break
		}
		p.Entries = append(p.Entries, entryOf(keys[i], r))
	}
	return p
}

func entryOf(key string, r *record) Entry {
	return Entry{
		Key: key, Path: r.path, Body: r.body, BodyHash: r.hash.String(), Subject: r.subject, Sum: r.sum, Receipt: r.receipt,
		At: time.UnixMilli(r.at).UTC(), Executions: int(r.executions), Overlaps: int(r.overlaps), AfterDone: int(r.afterDone),
	}
}

// summary returns the totals without the requests.
func (j *journal) summary() Summary {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Summary{
		Executed: len(j.sorted.sorted) + len(j.sorted.tail), Executions: j.executions, Sum: j.sum,
		DoubleKeys: j.doubleKeys, DoubleSubjects: j.doubleSubjects, Doubled: max(j.doubleKeys, j.doubleSubjects),
		Overlaps: j.overlaps, AfterDone: j.afterDone,
	}
}
