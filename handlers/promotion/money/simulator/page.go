package simulator

import (
	"cmp"
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
	Type        string // empty: all types
	PromotionID int64  // 0: all promotions
	After       string // only keys that sort after this one
	Limit       int    // entries of a page; 0: 1000; at most 10000
}

// Page is a part of the journal, in the order of its keys.
type Page struct {
	Entries []Entry `json:"entries"`
	Next    string  `json:"next,omitempty"` // After of the next page; empty: the last page
}

// Summary is the totals of the journal.
type Summary struct {
	Charged       int               `json:"charged"`    // keys
	Executions    int               `json:"executions"` // charges
	Amount        int64             `json:"amount"`     // of all executions
	DoubleKeys    int               `json:"double_keys"`
	DoubleTargets int               `json:"double_targets"` // (type, promotion, target)
	DoubleCharged int               `json:"double_charged"` // the larger of both
	Requests      map[string]uint64 `json:"requests"`       // by kind, since the process started
	// Overlaps is the number of calls (charges and lookups) that began during another call of the
	// same key, since the process started. A call whose caller has closed the connection is over.
	Overlaps int `json:"overlaps"`
	// AfterPaid is the number of calls after the answer "paid" to a call of the same key, since the
	// process started. Such a call is right if the caller has lost that answer, for example because
	// its process was killed before it stored it.
	AfterPaid int `json:"after_paid"`
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

func (j *journal) page(q Query) Page {
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
		if q.Type != "" && r.Type != q.Type || q.PromotionID != 0 && r.Promotion != q.PromotionID {
			continue
		}
		if len(p.Entries) == limit {
			p.Next = p.Entries[limit-1].Key
			break
		}
		p.Entries = append(p.Entries, j.entry(keys[i], r))
	}
	return p
}

func (j *journal) entry(key string, r *record) Entry {
	return Entry{
		Key: key, Type: r.Type, PromotionID: r.Promotion, PromotionSummaryID: r.Summary, TargetID: r.Target,
		Value: r.Value, TransactionKey: j.transaction(r.number),
		BodyHash: r.Hash.String(), Executions: int(r.executions), ChargedAt: time.UnixMilli(r.at).UTC(),
		Overlaps: int(r.overlaps), AfterPaid: int(r.afterPaid),
	}
}

// summary returns the totals without the requests.
func (j *journal) summary() Summary {
	j.mu.Lock()
	defer j.mu.Unlock()
	return Summary{
		Charged: len(j.sorted.sorted) + len(j.sorted.tail), Executions: int(j.executions), Amount: j.amount,
		DoubleKeys: j.doubleKeys, DoubleTargets: j.doubleTargets, DoubleCharged: max(j.doubleKeys, j.doubleTargets),
		Overlaps: j.overlaps, AfterPaid: j.afterPaid,
	}
}
