package simulator

import (
	"encoding/hex"
	"slices"
	"time"
)

// The numbers of entries of one page of the book.
const (
	defaultPage = 1000
	maxPage     = 10000
)

// Query chooses entries of the book.
type Query struct {
	Type        string // empty: all types
	PromotionID int64  // 0: all promotions
	After       string // only keys that sort after this one
	Limit       int    // entries of a page; 0: 1000; at most 10000
}

// Page is a part of the book, in the order of its keys.
type Page struct {
	Entries []Entry `json:"entries"`
	Next    string  `json:"next,omitempty"` // After of the next page; empty: that was all
}

// Summary is the book in numbers.
type Summary struct {
	Charged       int   `json:"charged"`    // keys
	Executions    int   `json:"executions"` // charges; more than Charged when a key was charged again
	Amount        int64 `json:"amount"`     // of all executions
	DoubleKeys    int   `json:"double_keys"`
	DoubleTargets int   `json:"double_targets"` // (type, promotion, target) charged more than once
	// DoubleCharged is the larger of the two; anything but 0 means that money was lost.
	DoubleCharged int               `json:"double_charged"`
	Requests      map[string]uint64 `json:"requests"` // by kind, since the process started
}

// sortedKeys hands out keys in order. New ones wait in a tail until somebody asks.
type sortedKeys struct {
	sorted, tail []string
}

func (s *sortedKeys) add(key string) { s.tail = append(s.tail, key) }

// all returns the keys in order; valid until the next add.
func (s *sortedKeys) all() []string {
	if len(s.tail) == 0 {
		return s.sorted
	}
	slices.Sort(s.tail)
	// Merge from the back, in place.
	i, j := len(s.sorted)-1, len(s.tail)-1
	s.sorted = append(s.sorted, s.tail...)
	for k := len(s.sorted) - 1; j >= 0; k-- {
		if i >= 0 && s.sorted[i] > s.tail[j] {
			s.sorted[k] = s.sorted[i]
			i--
		} else {
			s.sorted[k] = s.tail[j]
			j--
		}
	}
	s.tail = s.tail[:0]
	return s.sorted
}

// page returns the entries that q asks for.
func (b *book) page(q Query) Page {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultPage
	}
	limit = min(limit, maxPage)
	b.mu.Lock()
	defer b.mu.Unlock()
	keys := b.sorted.all()
	i, found := slices.BinarySearch(keys, q.After)
	if found {
		i++
	}
	p := Page{Entries: make([]Entry, 0, min(limit, len(keys)-i))}
	for ; i < len(keys); i++ {
		r := b.keys[keys[i]]
		if q.Type != "" && r.typ != q.Type || q.PromotionID != 0 && r.promotion != q.PromotionID {
			continue
		}
		if len(p.Entries) == limit {
			p.Next = p.Entries[limit-1].Key
			break
		}
		p.Entries = append(p.Entries, b.entry(keys[i], r))
	}
	return p
}

func (b *book) entry(key string, r *record) Entry {
	return Entry{
		Key: key, Type: r.typ, PromotionID: r.promotion, PromotionSummaryID: r.summary, TargetID: r.target,
		Value: r.value, TransactionKey: b.transaction(r.number),
		BodyHash: hex.EncodeToString(r.hash[:]), Executions: int(r.executions), ChargedAt: time.UnixMilli(r.at).UTC(),
	}
}

// summary returns the book in numbers, without the requests.
func (b *book) summary() Summary {
	b.mu.Lock()
	defer b.mu.Unlock()
	return Summary{
		Charged: len(b.sorted.sorted) + len(b.sorted.tail), Executions: int(b.executions), Amount: b.amount,
		DoubleKeys: b.doubleKeys, DoubleTargets: b.doubleTargets, DoubleCharged: max(b.doubleKeys, b.doubleTargets),
	}
}
