package reconcile

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// sources are the three sources of a promotion in a test.
type sources struct {
	charges []Charge
	rows    []ledger.Payout
	records []string // payloads; nil: Kafka is not read

	noMoneyAPI  bool // the Money API is not read
	removed     bool // Kafka's retention has removed the first records
	unannounced bool // plugins.promotion.accept_unannounced
	young       int  // number of the last records that were published just before the comparison
}

func chargeOf(target, amount int64, executions int) Charge {
	return Charge{Target: target, Value: strconv.FormatInt(amount, 10), Executions: executions}
}

func recordOf(promotion, target, amount int64) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"amount":%d}`, promotion, target, amount)
}

func rowOf(target, amount int64, s rules.State) ledger.Payout {
	return ledger.Payout{Row: payouts.Row{Key: payouts.Key{Type: "POINT", Promotion: 1, Target: target}, Row: rules.Row{State: s}}, Request: []byte(recordOf(1, target, amount)), Origin: "kafka t/0@7"}
}

func sequence[T any](all []T) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for _, v := range all {
			if !yield(v, nil) {
				return
			}
		}
	}
}

// compare compares the sources, and returns the buckets of each target.
func (s sources) compare(t *testing.T, asOf time.Time) (Report, map[int64][]Bucket) {
	t.Helper()
	in := map[int64][]Bucket{}
	each := func(target Target, b []Bucket) error { in[target.ID] = b; return nil }
	r, err := Compare(t.Context(), s.input(asOf, each))
	require.NoError(t, err)
	return r, in
}

func (s sources) input(asOf time.Time, each func(Target, []Bucket) error) Input {
	point, _ := promotiontype.ByName("POINT")
	in := Input{Type: point, Promotion: 1, AsOf: asOf, Lag: 10 * time.Second, Unannounced: s.unannounced, Each: each}
	if s.records != nil {
		in.Records = func(_ context.Context, _ string, each func(kafka.Scanned) error) (kafka.Scan, error) {
			for i, record := range s.records {
				at := asOf.Add(-time.Minute)
				if i >= len(s.records)-s.young {
					at = asOf.Add(-time.Second)
				}
				if err := each(kafka.Scanned{Partition: 3, Offset: int64(i), Time: at, Value: []byte(record)}); err != nil {
					return kafka.Scan{}, err
				}
			}
			return kafka.Scan{Partitions: 1, Records: int64(len(s.records)), Beginning: !s.removed}, nil
		}
	}
	if !s.noMoneyAPI {
		in.Charges = sequence(s.charges)
	}
	in.Rows = func(fn func(ledger.Payout) error) error {
		for _, r := range s.rows {
			if err := fn(r); err != nil {
				return err
			}
		}
		return nil
	}
	return in
}

// Each difference between the sources must be found: a verdict that is always good proves nothing.
func TestDifferencesAreFound(t *testing.T) {
	t.Parallel()
	good := []Charge{chargeOf(1, 500, 1)}
	for _, tt := range []struct {
		name    string
		state   rules.State
		charges []Charge
		balance bool
		in      []Bucket
	}{
		{"paid and charged once", rules.Success, good, true, []Bucket{Matched}},
		{"failed and not charged", rules.Failed, nil, true, []Bucket{Failed}},
		{"cancelled and not charged", rules.Cancelled, nil, true, []Bucket{Matched}},
		{"paid and not charged", rules.Success, nil, false, []Bucket{PaidNotCharged}},
		{"charged twice", rules.Success, []Charge{chargeOf(1, 500, 2)}, false, []Bucket{ChargedTwice}},
		{"charged twice, under two keys", rules.Success, append(good, good...), false, []Bucket{ChargedTwice}},
		{"another amount", rules.Success, []Charge{chargeOf(1, 501, 1)}, false, []Bucket{AmountDiffers}},
		{"another amount the second time", rules.Success, []Charge{chargeOf(1, 500, 1), chargeOf(1, 501, 1)}, false, []Bucket{AmountDiffers, ChargedTwice}},
		{"charged and failed", rules.Failed, good, false, []Bucket{Failed, ChargedButDenied}},
		{"charged and cancelled", rules.Cancelled, good, false, []Bucket{ChargedButDenied}},
		{"charged and not settled", rules.Sending, good, false, []Bucket{NotSettled, ChargedNotSettled}},
		{"charged and unknown", rules.Unknown, good, false, []Bucket{Unknown, ChargedNotSettled}},
		{"not settled", rules.Pending, nil, false, []Bucket{NotSettled}},
		{"unknown", rules.Unknown, nil, false, []Bucket{Unknown}},
		{"a charge that was not accepted", rules.Success, append([]Charge{chargeOf(2, 5, 1)}, good...), false, []Bucket{Matched}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, in := sources{charges: tt.charges, rows: []ledger.Payout{rowOf(1, 500, tt.state)}}.compare(t, time.Time{})
			require.Equal(t, tt.balance, r.Balance(), "%+v", r.Totals)
			require.Equal(t, tt.balance, r.Problem() == nil)
			require.Equal(t, tt.in, in[1])
			if len(in) > 1 {
				require.Equal(t, []Bucket{ChargedNotAccepted}, in[2])
				require.EqualValues(t, 1, r.Unexplained)
			}
		})
	}
}
