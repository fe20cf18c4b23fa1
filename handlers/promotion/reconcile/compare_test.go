package reconcile

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

func TestKafkaIsCompared(t *testing.T) {
	t.Parallel()
	s := sources{
		records: []string{recordOf(1, 1, 500), recordOf(1, 3, 500), recordOf(1, 3, 500), recordOf(1, 4, 700), recordOf(1, 4, 500), recordOf(1, 5, 500),
			recordOf(2, 6, 500), "no JSON", recordOf(1, 9, 500), recordOf(1, 0, 5)},
		rows:    []ledger.Payout{rowOf(1, 500, rules.Success), rowOf(2, 500, rules.Success), rowOf(3, 500, rules.Success), rowOf(4, 500, rules.Success)},
		charges: []Charge{chargeOf(4, 500, 1), chargeOf(1, 500, 1), chargeOf(2, 500, 1), chargeOf(3, 500, 1), chargeOf(9, 500, 1)},
	}
	r, in := s.compare(t, time.Time{})
	require.Equal(t, map[int64][]Bucket{1: {Matched}, 2: {NotAnnounced}, 3: {Matched}, 4: {Conflict},
		5: {NotAccepted}, 9: {ChargedNotAccepted, NotAccepted}}, in)
	require.Equal(t, &Topic{Topic: "campaign-promotion-point-publish", Read: 10, Records: 7, Undecodable: 2, Complete: true}, r.Kafka)
	require.EqualValues(t, 6, r.Targets)
	require.Equal(t, []int64{5, 9}, r.Examples[NotAccepted])
	require.False(t, r.Balanced)

	s.charges = s.charges[:4]
	r, _ = s.compare(t, time.Time{})
	require.False(t, r.Balanced)
	require.Contains(t, shown(t, r), "\n\nPayouts are in the ledger that no record of campaign-promotion-point-publish announced: 1. The books DON'T balance; target 2, not_offered: find who announced it: ")
	s.removed = true
	r, _ = s.compare(t, time.Time{})
	require.True(t, r.Balanced, "ledger and Money API balance")
	require.NotContains(t, shown(t, r), "nothing lost")
	require.ErrorContains(t, r.Problem(), "targets in Kafka are not in the ledger: 2")
	require.Contains(t, shown(t, r), "\n\nLedger and Money API balance, but targets in Kafka are not in the ledger: 2; targets 5 9, offered_not_accepted: ")
	require.Contains(t, shown(t, r), "2 records of that topic can't be decoded. They may belong to any promotion and should be dead letters (millrace deadletter list).")
	s.records = slices.DeleteFunc(s.records, func(o string) bool { return o == recordOf(1, 5, 500) || o == recordOf(1, 9, 500) })
	r, _ = s.compare(t, time.Time{})
	require.NoError(t, r.Problem())
	require.Contains(t, shown(t, r), "\n\nThe books balance: nothing that Kafka still contains is lost, nothing paid twice.\n")

	s.records, s.removed = append(s.records, recordOf(1, 2, 500)), false
	r, _ = s.compare(t, time.Time{})
	require.NoError(t, r.Problem())
	require.Contains(t, shown(t, r), "\n\nThe books balance: nothing lost, nothing paid twice.\n")

	s.records = nil
	r, _ = s.compare(t, time.Time{})
	require.NoError(t, r.Problem())
	require.Contains(t, shown(t, r), "\n\nLedger and Money API balance; Kafka was not read.\n")
	s.charges = nil
	r, _ = s.compare(t, time.Time{})
	require.Contains(t, shown(t, r), "\n\nThe books DON'T balance; targets 1 2 3 4, paid_not_in_book: ")
}

// A payout without a record is explained by Kafka's retention, a replayed dead letter, or the
// setting, and by nothing else.
func TestAPayoutWithoutARecord(t *testing.T) {
	t.Parallel()
	replayed := rowOf(1, 500, rules.Success)
	replayed.Origin = "replayed dead letter 0123456789abcdef from campaign-promotion-stream:POINT:1@1-0"
	for name, tt := range map[string]struct {
		row                  ledger.Payout
		removed, unannounced bool
		in                   Bucket
		balanced             bool
	}{
		"complete topic": {row: rowOf(1, 500, rules.Success), in: NotAnnounced},
		"retention":      {row: rowOf(1, 500, rules.Success), removed: true, in: NotAnnounced, balanced: true},
		"setting":        {row: rowOf(1, 500, rules.Success), unannounced: true, in: NotAnnounced, balanced: true},
		"replay":         {row: replayed, in: AnnouncedByReplay, balanced: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := sources{records: []string{}, rows: []ledger.Payout{tt.row}, charges: []Charge{chargeOf(1, 500, 1)}, removed: tt.removed, unannounced: tt.unannounced}
			r, in := s.compare(t, time.Time{})
			require.Equal(t, map[int64][]Bucket{1: {tt.in}}, in)
			require.Equal(t, tt.balanced, r.Balanced)
			require.Equal(t, tt.balanced, r.Problem() == nil)
		})
	}
}

// A record that was published just before or during the comparison is pending, not lost.
func TestAYoungRecordIsNotLost(t *testing.T) {
	t.Parallel()
	asOf := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	s := sources{records: []string{recordOf(1, 1, 500), recordOf(1, 2, 500), recordOf(1, 3, 500), recordOf(1, 1, 500), recordOf(1, 2, 500), recordOf(1, 4, 500)}, young: 3,
		rows: []ledger.Payout{rowOf(2, 500, rules.Success)}, charges: []Charge{chargeOf(2, 500, 1)}}
	_, in := s.compare(t, asOf)
	require.Equal(t, map[int64][]Bucket{1: {NotAccepted}, 2: {Matched}, 3: {NotAccepted}, 4: {NotSettled}}, in)
	s.records = []string{recordOf(1, 2, 500), recordOf(1, 4, 500)}
	s.young = 1
	r, _ := s.compare(t, asOf)
	require.EqualError(t, r.Problem(), "payouts are not settled, or UNKNOWN: 1; target 4, pending: millrace campaign status POINT 1 says how fast it is paid and what holds it up")
	require.Equal(t, "3@7", (&Entry{place: placeOf(3, 7, true)}).Place())
}

// Without the Money API the report claims no balance, and no payout counts as unpaid.
func TestWithoutTheMoneyAPI(t *testing.T) {
	t.Parallel()
	s := sources{records: []string{recordOf(1, 1, 500), recordOf(1, 2, 500)}, rows: []ledger.Payout{rowOf(1, 500, rules.Success), rowOf(2, 500, rules.Failed)}, noMoneyAPI: true}
	r, in := s.compare(t, time.Time{})
	require.Equal(t, map[int64][]Bucket{1: {Matched}, 2: {Failed}}, in)
	require.False(t, r.Balanced)
	require.Zero(t, r.Missing)
	require.NoError(t, r.Problem())
	var out strings.Builder
	require.NoError(t, r.Write(&out))
	require.NotContains(t, out.String(), "balance")
	require.NotContains(t, out.String(), "charged  ")
	require.Contains(t, out.String(), "\n\nAll that Kafka contains is in the ledger and settled; the Money API was not read.\n")

	s.rows[1] = rowOf(2, 500, rules.Unknown)
	r, _ = s.compare(t, time.Time{})
	require.ErrorContains(t, r.Problem(), "not settled, or UNKNOWN: 1")
	s.rows = s.rows[:1]
	r, _ = s.compare(t, time.Time{})
	require.EqualError(t, r.Problem(), "targets in Kafka are not in the ledger: 1; target 2, offered_not_accepted: millrace routes says whether its record still waits; otherwise look in millrace deadletter list")
}

// shown returns the text of a report.
func shown(t *testing.T, r Report) string {
	t.Helper()
	var out strings.Builder
	require.NoError(t, r.Write(&out))
	require.Equal(t, 1, strings.Count(strings.ToLower(out.String()), " balance"), "one verdict")
	return out.String()
}

// A record is compared as the ledger compares it: as the request that is made of it.
func TestRecordsAreComparedAsRequests(t *testing.T) {
	t.Parallel()
	s := sources{noMoneyAPI: true}
	want := map[int64][]Bucket{}
	for i, tt := range []struct {
		record string
		in     Bucket
	}{
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":1,"amount":500}`, Matched},
		{`{ "amount": 500, "targetId": 2, "promotionId": 1, "promotionSummaryId": 9, "retryCount": 3 }`, Matched},
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":3,"amount":500,"voucherId":"V-1"}`, Matched},
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":4,"amount":500,"voucherId":7,"note":"x"}`, Matched},
		{`{"promotionId":1,"promotionSummaryId":10,"targetId":5,"amount":500}`, Conflict},
		{`{"promotionId":1,"promotionSummaryId":9,"targetId":6,"amount":501}`, Conflict},
	} {
		s.records, s.rows = append(s.records, tt.record), append(s.rows, rowOf(int64(i+1), 500, rules.Success))
		want[int64(i+1)] = []Bucket{tt.in}
	}
	r, in := s.compare(t, time.Time{})
	require.Equal(t, want, in)
	require.Zero(t, r.Kafka.Undecodable)
}

// A payout that was settled or accepted after the comparison started is in no other source.
func TestAReportIsASnapshot(t *testing.T) {
	t.Parallel()
	asOf := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	before, after := rowOf(1, 5, rules.Success), rowOf(2, 5, rules.Success)
	before.AcceptedAt, before.SettledAt = asOf.Add(-time.Minute), asOf
	after.AcceptedAt, after.SettledAt = asOf.Add(time.Microsecond), asOf.Add(time.Second)
	r, in := sources{rows: []ledger.Payout{before, after}, records: []string{}}.compare(t, asOf)
	require.Equal(t, map[int64][]Bucket{1: {PaidNotCharged, NotAnnounced}, 2: {NotSettled}}, in)
	require.EqualValues(t, 1, r.Pending)
	require.EqualValues(t, 1, r.Missing)
}

func TestAValueIsComparedThroughItsType(t *testing.T) {
	t.Parallel()
	for _, kind := range promotiontype.All() {
		request, err := kind.Encode(1, 9, 1, kind.Sample(1))
		require.NoError(t, err)
		row := ledger.Payout{Row: payouts.Row{Key: payouts.Key{Target: 1}, Row: rules.Row{State: rules.Success}}, Request: request}
		for charged, want := range map[string]Bucket{kind.Sample(1): Matched, kind.Sample(2): AmountDiffers} {
			in := sources{rows: []ledger.Payout{row}, charges: []Charge{{Target: 1, Value: charged, Executions: 1}}}.input(time.Time{},
				func(_ Target, in []Bucket) error {
					require.Equal(t, []Bucket{want}, in, "%s of %s", charged, kind.Name)
					return nil
				})
			in.Type = kind
			r, err := Compare(t.Context(), in)
			require.NoError(t, err)
			require.EqualValues(t, 1, r.Targets)
		}
	}
}

// TestMemoryStaysSmall: a million targets in three sources, under a ceiling that a few words per
// target would exceed.
func TestMemoryStaysSmall(t *testing.T) { //nolint:paralleltest // it measures the heap, so nothing else may run
	n, ceiling := int64(1_000_000), int64(12<<20)
	if testing.Short() {
		n = 100_000 // the race detector is slow
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, most, steps := heap(), int64(0), 0
	measure := func() {
		if steps++; steps%50_000 == 0 {
			most = max(most, heap()-before)
		}
	}
	order := func(i int64) int64 { return (i*7919)%n + 1 } // every target once, out of order
	records := func(_ context.Context, _ string, each func(kafka.Scanned) error) (kafka.Scan, error) {
		for i := range n {
			measure()
			if err := each(kafka.Scanned{Offset: i, Value: []byte(recordOf(1, order(i), 500))}); err != nil {
				return kafka.Scan{}, err
			}
		}
		return kafka.Scan{Records: n, Beginning: true}, nil
	}
	charges := func(yield func(Charge, error) bool) {
		for i := range n {
			if measure(); !yield(chargeOf(order(i+13), 500, 1), nil) {
				return
			}
		}
	}
	rows := func(fn func(ledger.Payout) error) error {
		for target := range n {
			measure()
			if err := fn(rowOf(target+1, 500, rules.Success)); err != nil {
				return err
			}
		}
		return nil
	}
	in := sources{}.input(time.Now(), nil)
	in.Records, in.Charges, in.Rows = records, charges, rows
	r, err := Compare(t.Context(), in)
	require.NoError(t, err)
	require.Equal(t, n, r.Buckets[Matched])
	require.True(t, r.Balanced)
	require.Less(t, most, ceiling, "bytes of heap")
	t.Logf("%d KB of heap at most", most>>10)
}

func TestAnErrorLeavesNoFile(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	broken := errors.New("the page ends early")
	charges := func(yield func(Charge, error) bool) {
		for range 1<<16 + 1 { // more than a sorter holds
			if !yield(chargeOf(rand.Int64N(1000)+1, 5, 1), nil) {
				return
			}
		}
		yield(Charge{}, broken)
	}
	in := sources{}.input(time.Time{}, nil)
	in.Charges = charges
	_, err := Compare(t.Context(), in)
	require.ErrorIs(t, err, broken)
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left, fmt.Sprint(left))
}

// The last line names the targets that break the books, and what to do about each kind.
func TestTheLastLineNamesTheTargets(t *testing.T) {
	t.Parallel()
	r := Report{
		Type: "POINT", Promotion: 77, MoneyAPI: true, Totals: Totals{Unknown: 1, Pending: 7},
		Tally: reconcile.Tally[int64]{
			Buckets:  map[Bucket]int64{Matched: 90, Unknown: 1, NotSettled: 7, ChargedTwice: 1, Failed: 3, Conflict: 1, NotAnnounced: 2},
			Examples: map[Bucket][]int64{Unknown: {6}, NotSettled: {1, 2, 3, 4, 5}, ChargedTwice: {9}, Failed: {10}},
		},
	}
	var out strings.Builder
	require.NoError(t, r.Write(&out))
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	last := lines[len(lines)-1]
	require.Equal(t, "The books DON'T balance; targets 1 2 3 4 5 … (7 in all), pending: millrace campaign status POINT 77 says how fast it is paid and what holds it up; "+
		"target 6, unknown: find out whether it was charged, then millrace unknown resolve POINT 77 6; "+
		"target 9, charged_twice: tell who runs the Money API: it did not honour its idempotency key.", last)
	require.NotContains(t, last, "10", "a payout that failed and was not charged breaks nothing")

	r.Kafka = &Topic{Topic: "t", Complete: true}
	require.ErrorContains(t, r.Problem(), "The books DON'T balance; targets")
	require.ErrorContains(t, r.Problem(), "(2 in all), not_offered: find who announced it")
	require.NoError(t, (&Report{MoneyAPI: true, Balanced: true, Tally: reconcile.Tally[int64]{Buckets: map[Bucket]int64{Matched: 1, Failed: 1}}}).Problem())
}
