package simulator

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// model is the journal as a list of executions.
type model struct {
	ttl      time.Duration
	forgets  bool
	all      []execution
	inFlight map[string]execution
}

// last returns the latest execution of key.
func (m *model) last(key string) (e execution, ok bool) {
	for _, e := range slices.Backward(m.all) {
		if e.key == key {
			return e, true
		}
	}
	return execution{}, false
}

func (m *model) remembered(key string, now time.Time) (e execution, ok bool) {
	e, ok = m.last(key)
	return e, ok && (m.ttl == 0 || now.Sub(time.UnixMilli(e.at)) < m.ttl)
}

func (m *model) claim(e execution, now time.Time, reject bool) claimState {
	if _, busyNow := m.inFlight[e.key]; busyNow && !m.forgets {
		return busy
	}
	last, ok := m.remembered(e.key, now)
	switch ok = ok && !m.forgets; {
	case ok && last.hash != e.hash:
		return reused
	case ok:
		return replay
	case reject:
		return rejected
	}
	return fresh
}

func (m *model) summary() Summary {
	keys, subjects := map[string]int{}, map[string]int{}
	s := Summary{Executions: len(m.all)}
	for _, e := range m.all {
		keys[e.key]++
		subjects[e.subject]++
		s.Sum += e.sum
	}
	s.Executed = len(keys)
	for _, n := range keys {
		if n > 1 {
			s.DoubleKeys++
		}
	}
	for _, n := range subjects {
		if n > 1 {
			s.DoubleSubjects++
		}
	}
	s.Doubled = max(s.DoubleKeys, s.DoubleSubjects)
	return s
}

// page lists by brute force.
func (m *model) page(after string, match func(string) bool) (keys []string) {
	for _, e := range m.all {
		if last, _ := m.last(e.key); e.key > after && (match == nil || match(last.subject)) {
			keys = append(keys, e.key)
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func TestJournalAgainstModel(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	files := 0
	rapid.Check(t, func(t *rapid.T) {
		files++
		path := filepath.Join(dir, fmt.Sprint(files))
		cfg := Config{KeyTTL: rapid.SampledFrom([]time.Duration{0, 10 * time.Second}).Draw(t, "ttl")}
		m := &model{ttl: cfg.KeyTTL, forgets: rapid.Bool().Draw(t, "forgets"), inFlight: map[string]execution{}}
		open := func() *journal {
			b := newJournal(cfg, m.forgets)
			require.NoError(t, b.open(context.Background(), path, false))
			return b
		}
		b := open()
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

		// Few of everything, so that keys meet; a key may name another subject than its body.
		name := rapid.SampledFrom([]string{"a:1", "a:2", "b:1"})
		request := rapid.Custom(func(t *rapid.T) execution {
			e := execution{
				key: name.Draw(t, "key"), path: rapid.SampledFrom([]string{"/a", "/b"}).Draw(t, "path"), subject: name.Draw(t, "subject"),
				sum: int64(rapid.IntRange(-1, 2).Draw(t, "sum")),
			}
			e.body = fmt.Sprintf("%s \"\n\u2028\x00\xff%d", e.subject, e.sum) // must survive the file
			e.hash = hashOf([]byte(e.body))
			return e
		})
		pickInFlight := func(t *rapid.T) string {
			if len(m.inFlight) == 0 {
				t.Skip("none in flight")
			}
			return rapid.SampledFrom(slices.Sorted(maps.Keys(m.inFlight))).Draw(t, "in flight")
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				e, reject := request.Draw(t, "request"), rapid.IntRange(0, 9).Draw(t, "reject") == 0
				want := m.claim(e, now, reject)
				got := b.claim(e.key, e.hash, now, reject)
				require.Equal(t, want, got.state)
				switch want {
				case fresh:
					m.inFlight[e.key] = e
				case replay:
					last, _ := m.last(e.key)
					require.Equal(t, last.receipt, got.receipt)
				}
			},
			"execute": func(t *rapid.T) {
				e := m.inFlight[pickInFlight(t)]
				receipt, err := b.execute(e, now)
				require.NoError(t, err)
				for _, other := range m.all {
					require.NotEqual(t, other.receipt, receipt, "receipts are unique")
				}
				e.receipt, e.at = receipt, now.UnixMilli()
				m.all = append(m.all, e)
				b.release(e.key)
				delete(m.inFlight, e.key)
			},
			"give up": func(t *rapid.T) {
				k := pickInFlight(t)
				b.release(k)
				delete(m.inFlight, k)
			},
			"lookup": func(t *rapid.T) {
				k := name.Draw(t, "key")
				got := b.lookup(k, now)
				_, busyNow := m.inFlight[k]
				busyNow = busyNow && !m.forgets
				require.Equal(t, busyNow, got.state == busy)
				if busyNow {
					return
				}
				last, ok := m.remembered(k, now)
				require.Equal(t, ok, got.state == replay)
				if ok {
					require.Equal(t, last.receipt, got.receipt)
				}
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 11).Draw(t, "seconds")) * time.Second)
			},
			"restart": func(t *rapid.T) {
				require.NoError(t, b.close())
				b = open()
				clear(m.inFlight) // what was under way is lost
			},
			"": func(t *rapid.T) {
				require.Equal(t, m.summary(), b.summary())
				q := Query{Limit: rapid.IntRange(1, 3).Draw(t, "limit")}
				var match func(string) bool
				if of := rapid.SampledFrom([]string{"", "a:"}).Draw(t, "of"); of != "" {
					match = func(subject string) bool { return strings.HasPrefix(subject, of) }
				}
				want := m.page("", match)
				var got []string
				for {
					p := b.page(q, match)
					require.LessOrEqual(t, len(p.Entries), q.Limit)
					for _, e := range p.Entries {
						last, _ := m.last(e.Key)
						require.Equal(t, []any{last.path, last.body, last.hash.String(), last.subject, last.sum, last.receipt, last.at},
							[]any{e.Path, e.Body, e.BodyHash, e.Subject, e.Sum, e.Receipt, e.At.UnixMilli()})
						got = append(got, e.Key)
					}
					if p.Next == "" {
						break
					}
					q.After = p.Next
				}
				require.Equal(t, want, got)
			},
		})
		require.NoError(t, b.close())
	})
}

func TestSortedKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var s sortedKeys
		var want []string
		for _, batch := range rapid.SliceOf(rapid.SliceOf(rapid.StringN(0, 3, -1))).Draw(t, "batches") {
			for _, k := range batch {
				s.add(k)
				want = append(want, k)
			}
			slices.Sort(want)
			require.Equal(t, strings.Join(want, "|"), strings.Join(s.all(), "|"))
		}
	})
}

func TestPageSizes(t *testing.T) {
	t.Parallel()
	b := newJournal(Config{}, false)
	require.Empty(t, b.page(Query{}, nil).Entries)
	for i := range maxPage + 5 {
		key := fmt.Sprintf("a:%d", i+1)
		b.claim(key, bodyHash{1}, time.Now(), false)
		_, err := b.execute(execution{key: key, subject: key}, time.Now())
		require.NoError(t, err)
	}
	require.Len(t, b.page(Query{}, nil).Entries, defaultPage)
	require.Len(t, b.page(Query{Limit: 10 * maxPage}, nil).Entries, maxPage)
	last := b.page(Query{Limit: maxPage}, nil).Next
	require.Len(t, b.page(Query{Limit: maxPage, After: last}, nil).Entries, 5)
	require.Empty(t, b.page(Query{After: "b"}, nil).Entries)
}
