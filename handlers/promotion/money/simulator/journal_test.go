package simulator

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

const (
	typePoint   = "POINT"
	typeVoucher = "VOUCHER"
)

// model is the journal as a list of charges.
type model struct {
	ttl      time.Duration
	charges  []modelCharge
	inFlight map[string]order
}

type modelCharge struct {
	key    string
	order  order
	at     time.Time
	number uint64
}

// last returns the latest charge of key.
func (m *model) last(key string) (c modelCharge, ok bool) {
	for _, c := range slices.Backward(m.charges) {
		if c.key == key {
			return c, true
		}
	}
	return modelCharge{}, false
}

func (m *model) claim(key string, o order, now time.Time, reject bool) claimState {
	if _, busyNow := m.inFlight[key]; busyNow {
		return busy
	}
	c, ok := m.last(key)
	switch ok = ok && (m.ttl == 0 || now.Sub(c.at) < m.ttl); {
	case ok && c.order.Hash != o.Hash:
		return reused
	case ok:
		return replay
	case reject:
		return rejected
	}
	return fresh
}

func (m *model) summary() (charged, executions, doubleKeys, doubleTargets int, amount int64) {
	keys, targets := map[string]int{}, map[target]int{}
	for _, c := range m.charges {
		keys[c.key]++
		targets[target{c.order.Type, c.order.Promotion, c.order.Target}]++
		if c.order.Type == typePoint {
			n, _ := strconv.ParseInt(c.order.Value, 10, 64)
			amount += n
		}
	}
	for _, n := range keys {
		if n > 1 {
			doubleKeys++
		}
	}
	for _, n := range targets {
		if n > 1 {
			doubleTargets++
		}
	}
	return len(keys), len(m.charges), doubleKeys, doubleTargets, amount
}

// page lists by brute force.
func (m *model) page(q Query) (keys []string) {
	for _, c := range m.charges {
		last, _ := m.last(c.key)
		if c.key > q.After && (q.Type == "" || last.order.Type == q.Type) && (q.PromotionID == 0 || last.order.Promotion == q.PromotionID) {
			keys = append(keys, c.key)
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
		ttl := rapid.SampledFrom([]time.Duration{0, 10 * time.Second}).Draw(t, "ttl")
		b, err := openJournal(path, false, ttl)
		require.NoError(t, err)
		m := &model{ttl: ttl, inFlight: map[string]order{}}
		now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

		// Few of everything, so that keys meet; a key may name another target than its body.
		key := rapid.Custom(func(t *rapid.T) string {
			return fmt.Sprintf("%s:%d:%d", rapid.SampledFrom([]string{typePoint, typeVoucher}).Draw(t, "keyType"), rapid.IntRange(1, 2).Draw(t, "keyPromotion"), rapid.IntRange(1, 3).Draw(t, "keyTarget"))
		})
		body := rapid.Custom(func(t *rapid.T) order {
			o := order{Type: rapid.SampledFrom([]string{typePoint, typeVoucher}).Draw(t, "type"), Promotion: int64(rapid.IntRange(1, 2).Draw(t, "promotion")), Summary: 9, Target: int64(rapid.IntRange(1, 3).Draw(t, "target"))}
			if o.Type == typePoint {
				o.Value = strconv.Itoa(rapid.IntRange(1, 2).Draw(t, "amount"))
			} else {
				o.Value = "V \"\n\u2028" // must survive the file
			}
			copy(o.Hash[:], fmt.Sprintf("%s%d%d%s", o.Type, o.Promotion, o.Target, o.Value))
			return o
		})
		execute := func(key string) {
			o := m.inFlight[key]
			number, err := b.execute(key, o, now)
			require.NoError(t, err)
			for _, c := range m.charges {
				require.NotEqual(t, c.number, number, "transaction keys are unique")
			}
			m.charges = append(m.charges, modelCharge{key, o, now, number})
			b.release(key)
			delete(m.inFlight, key)
		}
		pickInFlight := func(t *rapid.T) string {
			if len(m.inFlight) == 0 {
				t.Skip("none in flight")
			}
			keys := make([]string, 0, len(m.inFlight))
			for k := range m.inFlight {
				keys = append(keys, k)
			}
			slices.Sort(keys)
			return rapid.SampledFrom(keys).Draw(t, "in flight")
		}
		t.Repeat(map[string]func(*rapid.T){
			"claim": func(t *rapid.T) {
				k, o, reject := key.Draw(t, "key"), body.Draw(t, "body"), rapid.IntRange(0, 9).Draw(t, "reject") == 0
				want := m.claim(k, o, now, reject)
				got := b.claim(k, o.Hash, now, reject)
				require.Equal(t, want, got.state)
				switch want {
				case fresh:
					m.inFlight[k] = o
				case replay:
					c, _ := m.last(k)
					require.Equal(t, c.number, got.number)
				}
			},
			"execute": func(t *rapid.T) { execute(pickInFlight(t)) },
			"give up": func(t *rapid.T) {
				k := pickInFlight(t)
				b.release(k)
				delete(m.inFlight, k)
			},
			"lookup": func(t *rapid.T) {
				k := key.Draw(t, "key")
				got := b.lookup(k, now)
				_, busyNow := m.inFlight[k]
				require.Equal(t, busyNow, got.state == busy)
				if busyNow {
					return
				}
				c, ok := m.last(k)
				ok = ok && (ttl == 0 || now.Sub(c.at) < ttl)
				require.Equal(t, ok, got.state == replay)
				if ok {
					require.Equal(t, c.number, got.number)
				}
			},
			"time passes": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 11).Draw(t, "seconds")) * time.Second)
			},
			"restart": func(t *rapid.T) {
				id := b.id
				require.NoError(t, b.close())
				b, err = openJournal(path, false, ttl)
				require.NoError(t, err)
				require.Equal(t, id, b.id)
				clear(m.inFlight) // what was under way is lost
			},
			"": func(t *rapid.T) {
				charged, executions, doubleKeys, doubleTargets, amount := m.summary()
				require.Equal(t, Summary{Charged: charged, Executions: executions, Amount: amount, DoubleKeys: doubleKeys,
					DoubleTargets: doubleTargets, DoubleCharged: max(doubleKeys, doubleTargets)}, b.summary())
				q := Query{Limit: rapid.IntRange(1, 3).Draw(t, "limit"), Type: rapid.SampledFrom([]string{"", typePoint}).Draw(t, "of type"), PromotionID: int64(rapid.IntRange(0, 2).Draw(t, "of promotion"))}
				want := m.page(q)
				var got []string
				for {
					p := b.page(q)
					require.LessOrEqual(t, len(p.Entries), q.Limit)
					for _, e := range p.Entries {
						c, _ := m.last(e.Key)
						require.Equal(t, b.transaction(c.number), e.TransactionKey)
						require.Equal(t, []any{c.order.Type, c.order.Promotion, c.order.Summary, c.order.Target, c.order.Value, c.at},
							[]any{e.Type, e.PromotionID, e.PromotionSummaryID, e.TargetID, e.Value, e.ChargedAt})
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
	b, err := openJournal("", false, 0)
	require.NoError(t, err)
	require.Empty(t, b.page(Query{}).Entries)
	for i := range maxPage + 5 {
		key := fmt.Sprintf("POINT:1:%d", i+1)
		b.claim(key, bodyHash{1}, time.Now(), false)
		_, err := b.execute(key, order{Type: typePoint, Promotion: 1, Target: int64(i + 1), Value: "1", Hash: bodyHash{1}}, time.Now())
		require.NoError(t, err)
	}
	require.Len(t, b.page(Query{}).Entries, defaultPage)
	require.Len(t, b.page(Query{Limit: 10 * maxPage}).Entries, maxPage)
	last := b.page(Query{Limit: maxPage}).Next
	require.Len(t, b.page(Query{Limit: maxPage, After: last}).Entries, 5)
	require.Empty(t, b.page(Query{After: "POINT:9"}).Entries)
}
