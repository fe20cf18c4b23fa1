package promotion

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/kafka"
)

func TestReconcileWithKafka(t *testing.T) {
	t.Parallel()
	s := shelf{
		offers: []string{offerOf(1, 1, 500), offerOf(1, 3, 500), offerOf(1, 3, 500), offerOf(1, 4, 700), offerOf(1, 4, 500), offerOf(1, 5, 500),
			offerOf(2, 6, 500), "no JSON", offerOf(1, 9, 500), offerOf(1, 0, 5)},
		rows:    []ledger.Entry{rowOf(1, 500, ledger.Success), rowOf(2, 500, ledger.Success), rowOf(3, 500, ledger.Success), rowOf(4, 500, ledger.Success)},
		charges: []charge{chargeOf(4, 500, 1), chargeOf(1, 500, 1), chargeOf(2, 500, 1), chargeOf(3, 500, 1), chargeOf(9, 500, 1)},
	}
	r, in := s.compare(t, time.Time{})
	require.Equal(t, map[int64][]bucket{1: {bucketMatched}, 2: {bucketNotOffered}, 3: {bucketMatched}, 4: {bucketConflict},
		5: {bucketNotAccepted}, 9: {bucketUnexplained, bucketNotAccepted}}, in)
	require.Equal(t, &Offered{Topic: "campaign-promotion-point-publish", Read: 10, Records: 7, Undecodable: 2, Complete: true}, r.Kafka)
	require.EqualValues(t, 6, r.Targets)
	require.Equal(t, []int64{5, 9}, r.Examples[bucketNotAccepted])
	require.False(t, r.Balanced)

	s.charges = s.charges[:4]
	r, _ = s.compare(t, time.Time{})
	require.False(t, r.Balanced)
	require.Contains(t, shown(t, r), "\n\nPayouts are in the ledger that no record of campaign-promotion-point-publish announced: 1. The books DON'T balance.\n")
	s.removed = true
	r, _ = s.compare(t, time.Time{})
	require.True(t, r.Balanced, "the two books about money balance")
	require.NotContains(t, shown(t, r), "nothing lost")
	require.ErrorContains(t, r.settledWell(), "targets that Kafka offers are not in the ledger: 2")
	require.Contains(t, shown(t, r), "\n\nThe two books about money balance, but targets that Kafka offers are not in the ledger: 2.\n")
	require.Contains(t, shown(t, r), "2 records of that topic can't be read, and may belong to any promotion: they should be dead letters (millrace dead list).")
	s.offers = slices.DeleteFunc(s.offers, func(o string) bool { return o == offerOf(1, 5, 500) || o == offerOf(1, 9, 500) })
	r, _ = s.compare(t, time.Time{})
	require.NoError(t, r.settledWell())
	require.Contains(t, shown(t, r), "\n\nThe books balance: nothing that Kafka still holds is lost, nothing paid twice.\n")

	s.offers, s.removed = append(s.offers, offerOf(1, 2, 500)), false
	r, _ = s.compare(t, time.Time{})
	require.NoError(t, r.settledWell())
	require.Contains(t, shown(t, r), "\n\nThe books balance: nothing lost, nothing paid twice.\n")

	s.offers = nil
	r, _ = s.compare(t, time.Time{})
	require.NoError(t, r.settledWell())
	require.Contains(t, shown(t, r), "\n\nThe two books about money balance; what Kafka offers was not read.\n")
	s.charges = nil
	r, _ = s.compare(t, time.Time{})
	require.Contains(t, shown(t, r), "\n\nThe books DON'T balance.\n")
}

// A payout without a record is explained by Kafka's retention, a replayed dead letter, or the setting, and by nothing else.
func TestAPayoutThatNoRecordAnnounced(t *testing.T) {
	t.Parallel()
	replayed := rowOf(1, 500, ledger.Success)
	replayed.Origin = "replayed dead letter 0123456789abcdef from campaign-promotion-stream:POINT:1@1-0"
	for name, tt := range map[string]struct {
		row              ledger.Entry
		removed, foreign bool
		in               bucket
		balanced         bool
	}{
		"complete topic": {row: rowOf(1, 500, ledger.Success), in: bucketNotOffered},
		"retention":      {row: rowOf(1, 500, ledger.Success), removed: true, in: bucketNotOffered, balanced: true},
		"setting":        {row: rowOf(1, 500, ledger.Success), foreign: true, in: bucketNotOffered, balanced: true},
		"replay":         {row: replayed, in: bucketReplayed, balanced: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := shelf{offers: []string{}, rows: []ledger.Entry{tt.row}, charges: []charge{chargeOf(1, 500, 1)}, removed: tt.removed, foreign: tt.foreign}
			r, in := s.compare(t, time.Time{})
			require.Equal(t, map[int64][]bucket{1: {tt.in}}, in)
			require.Equal(t, tt.balanced, r.Balanced)
			require.Equal(t, tt.balanced, r.settledWell() == nil)
		})
	}
}

// What was published just before a reconciliation, or during it, may be on its way into the ledger: it is pending, not lost.
func TestAYoungRecordIsNotLost(t *testing.T) {
	t.Parallel()
	asOf := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := shelf{offers: []string{offerOf(1, 1, 500), offerOf(1, 2, 500), offerOf(1, 3, 500), offerOf(1, 1, 500), offerOf(1, 2, 500), offerOf(1, 4, 500)}, young: 3,
		rows: []ledger.Entry{rowOf(2, 500, ledger.Success)}, charges: []charge{chargeOf(2, 500, 1)}}
	_, in := s.compare(t, asOf)
	require.Equal(t, map[int64][]bucket{1: {bucketNotAccepted}, 2: {bucketMatched}, 3: {bucketNotAccepted}, 4: {bucketPending}}, in)
	s.offers = []string{offerOf(1, 2, 500), offerOf(1, 4, 500)}
	s.young = 1
	r, _ := s.compare(t, asOf)
	require.EqualError(t, r.settledWell(), "payouts are not settled, or UNKNOWN: 1")
	require.Equal(t, "3@7", placeText(placeOf(3, 7, true)))
}

// Without the Money API's book nothing is said to balance, and nobody is called unpaid.
func TestReconcileWithoutTheMoneyAPI(t *testing.T) {
	t.Parallel()
	s := shelf{offers: []string{offerOf(1, 1, 500), offerOf(1, 2, 500)}, rows: []ledger.Entry{rowOf(1, 500, ledger.Success), rowOf(2, 500, ledger.Failed)}, noCharges: true}
	r, in := s.compare(t, time.Time{})
	require.Equal(t, map[int64][]bucket{1: {bucketMatched}, 2: {bucketDead}}, in)
	require.False(t, r.Balanced)
	require.Zero(t, r.Missing)
	require.NoError(t, r.settledWell())
	var out strings.Builder
	require.NoError(t, writeReconciliation(&out, r))
	require.NotContains(t, out.String(), "balance")
	require.NotContains(t, out.String(), "charged  ")
	require.Contains(t, out.String(), "\n\nAll that Kafka offers is in the ledger and settled; the Money API's book was not read.\n")

	s.rows[1] = rowOf(2, 500, ledger.Unknown)
	r, _ = s.compare(t, time.Time{})
	require.ErrorContains(t, r.settledWell(), "not settled, or UNKNOWN: 1")
	s.rows = s.rows[:1]
	r, _ = s.compare(t, time.Time{})
	require.EqualError(t, r.settledWell(), "targets that Kafka offers are not in the ledger: 1")
}

// shown is what people see of a reconciliation.
func shown(t *testing.T, r Reconciliation) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, writeReconciliation(&out, r))
	require.Equal(t, 1, strings.Count(strings.ToLower(out.String()), " balance"), "one verdict")
	return out.String()
}

// An offer is compared as the ledger compares it: as the request that is made of it.
func TestOffersAreComparedAsRequests(t *testing.T) {
	t.Parallel()
	s := shelf{noCharges: true}
	want := map[int64][]bucket{}
	for i, tt := range []struct {
		offer string
		in    bucket
	}{
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":1,"amount":500}`, bucketMatched},
		{`{ "amount": 500, "targetId": 2, "promotionId": 1, "promotionSummaryId": 9, "retryCount": 3 }`, bucketMatched},
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":3,"amount":500,"voucherId":"V-1"}`, bucketMatched},
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":4,"amount":500,"voucherId":7,"note":"x"}`, bucketMatched},
		{`{"promotionId":1,"promotionSummaryId":10,"targetId":5,"amount":500}`, bucketConflict},
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":6,"amount":501}`, bucketConflict},
	} {
		s.offers, s.rows = append(s.offers, tt.offer), append(s.rows, rowOf(int64(i+1), 500, ledger.Success))
		want[int64(i+1)] = []bucket{tt.in}
	}
	r, in := s.compare(t, time.Time{})
	require.Equal(t, want, in)
	require.Zero(t, r.Kafka.Undecodable)
}

// What was settled or accepted after the other books were read is in none of them.
func TestReconcileIsOfOneMoment(t *testing.T) {
	t.Parallel()
	asOf := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	before, after := rowOf(1, 5, ledger.Success), rowOf(2, 5, ledger.Success)
	before.AcceptedAt, before.SettledAt = asOf.Add(-time.Minute), asOf
	after.AcceptedAt, after.SettledAt = asOf.Add(time.Microsecond), asOf.Add(time.Second)
	r, in := shelf{rows: []ledger.Entry{before, after}, offers: []string{}}.compare(t, asOf)
	require.Equal(t, map[int64][]bucket{1: {bucketMissing, bucketNotOffered}, 2: {bucketPending}}, in)
	require.EqualValues(t, 1, r.Pending)
	require.EqualValues(t, 1, r.Missing)
}

func TestVouchersAreComparedToo(t *testing.T) {
	t.Parallel()
	row := ledger.Entry{Row: ledger.Row{State: ledger.Success}, Request: []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":1,"voucherId":"V-1"}`)}
	a, err := readAsked(row.Request)
	require.NoError(t, err)
	for voucher, differs := range map[string]bool{"V-1": false, "V-2": true} {
		j := joined{target: 1, row: &row, asked: a, charge: &entry{statement: statement{target: 1, times: 1, what: whatOf(0, voucher)}}}
		require.Equal(t, differs, j.amountDiffers(), voucher)
	}
}

func TestTableOfAReconciliation(t *testing.T) {
	t.Parallel()
	s := shelf{offers: []string{offerOf(1, 1, 500), offerOf(1, 2, 500)}, charges: []charge{chargeOf(1, 500, 1), chargeOf(2, 501, 1)},
		rows: []ledger.Entry{rowOf(1, 500, ledger.Success), rowOf(2, 500, ledger.Success)}}
	for _, all := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "differing.csv")
		table, err := newTable(reconcileFlags{csv: path, all: all}, ledger.Promotion{Type: "POINT", ID: 1})
		require.NoError(t, err)
		_, in := s.compare(t, time.Time{})
		for i, target := range []int64{1, 2} {
			j := joined{target: target, row: &s.rows[i], asked: asked{Amount: 500}, offer: &entry{statement: statement{times: 1, value: 500, place: placeOf(3, int64(i), false)}},
				charge: &entry{statement: statement{times: 1, value: 500 + int64(i)}}}
			require.NoError(t, table.write(j, in[target]))
		}
		require.NoError(t, table.close())
		f, err := os.Open(path)
		require.NoError(t, err)
		lines, err := csv.NewReader(f).ReadAll()
		require.NoError(t, err)
		require.NoError(t, f.Close())
		want := [][]string{tableColumns(), {"POINT", "1", "2", "amount_differs", "SUCCESS", "0", "", "", "1", "500", "500", "1", "501", "3@1", "kafka t/0@7"}}
		if all {
			want = slices.Insert(want, 1, []string{"POINT", "1", "1", "matched", "SUCCESS", "0", "", "", "1", "500", "500", "1", "500", "3@0", "kafka t/0@7"})
		}
		require.Equal(t, want, lines)
	}
}

// TestSorterIsASort: with any number of runs, whatever was added comes out in order, and nothing else.
func TestSorterIsASort(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := sorter{most: rapid.IntRange(1, 40).Draw(t, "most")}
		want := map[int64]entry{}
		for i, target := range rapid.SliceOfN(rapid.Int64Range(1, 30), 0, 200).Draw(t, "targets") {
			l := statement{target: target, times: 1, value: target, what: uint64(rapid.IntRange(0, 1).Draw(t, "what")), place: int64(i)}
			require.NoError(t, s.add(l))
			e, known := want[target]
			if !known {
				e = entry{statement: l}
				e.times = 0
			}
			e.times++
			e.mixed = e.mixed || e.what != l.what
			want[target] = e
		}
		b, err := s.sorted()
		require.NoError(t, err)
		last := int64(0)
		for {
			target, ok := b.peek()
			if !ok {
				break
			}
			require.Greater(t, target, last)
			last = target
			none, err := b.take(target - 1)
			require.NoError(t, err)
			require.Nil(t, none)
			e, err := b.take(target)
			require.NoError(t, err)
			require.Equal(t, want[target], *e)
			delete(want, target)
		}
		require.Empty(t, want)
		name := ""
		if s.file != nil {
			name = s.file.Name()
		}
		require.NoError(t, s.close())
		if name != "" {
			_, err := os.Stat(name)
			require.ErrorIs(t, err, os.ErrNotExist, "nothing is left behind")
		}
	})
}

// TestReconcileHoldsLittleMemory: a million targets in three books, under a ceiling that a few words a target would break.
func TestReconcileHoldsLittleMemory(t *testing.T) { //nolint:paralleltest // it measures the heap, so nothing else may run
	n, ceiling := int64(1_000_000), int64(12<<20)
	if testing.Short() {
		n = 100_000 // the race detector takes its time
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most, steps := heap(), int64(0), 0
	look := func() {
		if steps++; steps%50_000 == 0 {
			most = max(most, heap()-before)
		}
	}
	order := func(i int64) int64 { return (i*7919)%n + 1 } // every target once, out of order
	offers := func(_ context.Context, _ string, each func(kafka.Scanned) error) (kafka.Scan, error) {
		for i := range n {
			look()
			if err := each(kafka.Scanned{Offset: i, Value: []byte(offerOf(1, order(i), 500))}); err != nil {
				return kafka.Scan{}, err
			}
		}
		return kafka.Scan{Records: n, Beginning: true}, nil
	}
	charges := func(yield func(charge, error) bool) {
		for i := range n {
			if look(); !yield(chargeOf(order(i+13), 500, 1), nil) {
				return
			}
		}
	}
	rows := func(fn func(ledger.Entry) error) error {
		for target := range n {
			look()
			if err := fn(rowOf(target+1, 500, ledger.Success)); err != nil {
				return err
			}
		}
		return nil
	}
	c := comparison{strategy: pointStrategy(), promotion: 1, asOf: time.Now()}
	require.NoError(t, c.run(t.Context(), offers, charges, rows))
	require.Equal(t, n, c.result.Buckets[bucketMatched])
	require.True(t, c.result.Balanced)
	require.Less(t, most, ceiling, "bytes of heap")
	t.Logf("%d KB of heap at most", most>>10)
}

func TestReconcileLeavesNoFileBehindAfterAnError(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	broken := errors.New("the book ends in mid-page")
	charges := func(yield func(charge, error) bool) {
		for range 2*sortedLines + 1 {
			if !yield(chargeOf(rand.Int64N(1000)+1, 5, 1), nil) {
				return
			}
		}
		yield(charge{}, broken)
	}
	c := comparison{strategy: pointStrategy(), promotion: 1}
	require.ErrorIs(t, c.run(t.Context(), nil, charges, nil), broken)
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left, fmt.Sprint(left))
}
