package promotion

import (
	"context"
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/plugins/kafka"
)

// shelf is the three books of a promotion, as a test wants them.
type shelf struct {
	charges []charge
	rows    []ledger.Entry
	offers  []string // payloads; nil: Kafka is not read

	noCharges bool // the Money API's book is not read
	removed   bool // Kafka's retention has removed the first records
	foreign   bool // plugins.promotion.accept_unannounced
	young     int  // so many of the last offers were published just before the reconciliation
}

func chargeOf(target, amount int64, executions int) charge {
	return charge{target: target, value: amount, what: whatOf(amount, ""), executions: executions}
}

func offerOf(promotion, target, amount int64) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"amount":%d}`, promotion, target, amount)
}

func rowOf(target, amount int64, s ledger.State) ledger.Entry {
	return ledger.Entry{Row: ledger.Row{Key: ledger.Key{Type: "POINT", Promotion: 1, Target: target}, State: s}, Request: []byte(offerOf(1, target, amount)), Origin: "kafka t/0@7"}
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

// compare reconciles the shelf, and returns the buckets of every target.
func (s shelf) compare(t *testing.T, asOf time.Time) (Reconciliation, map[int64][]bucket) {
	t.Helper()
	in := map[int64][]bucket{}
	c := comparison{strategy: pointStrategy(), promotion: 1, asOf: asOf, lag: 10 * time.Second, each: func(j joined, b []bucket) error { in[j.target] = b; return nil }}
	c.result.unannounced = s.foreign
	var offers scanner
	if s.offers != nil {
		offers = func(_ context.Context, _ string, each func(kafka.Scanned) error) (kafka.Scan, error) {
			for i, o := range s.offers {
				at := asOf.Add(-time.Minute)
				if i >= len(s.offers)-s.young {
					at = asOf.Add(-time.Second)
				}
				if err := each(kafka.Scanned{Partition: 3, Offset: int64(i), Time: at, Value: []byte(o)}); err != nil {
					return kafka.Scan{}, err
				}
			}
			return kafka.Scan{Partitions: 1, Records: int64(len(s.offers)), Beginning: !s.removed}, nil
		}
	}
	charges := sequence(s.charges)
	if s.noCharges {
		charges = nil
	}
	require.NoError(t, c.run(t.Context(), offers, charges, func(fn func(ledger.Entry) error) error {
		for _, r := range s.rows {
			if err := fn(r); err != nil {
				return err
			}
		}
		return nil
	}))
	return c.result, in
}

// Each way in which the books can differ must be seen: a verdict that is always good proves nothing.
func TestBooksThatDoNotBalance(t *testing.T) {
	t.Parallel()
	good := []charge{chargeOf(1, 500, 1)}
	for _, tt := range []struct {
		name    string
		state   ledger.State
		charges []charge
		balance bool
		in      []bucket
	}{
		{"paid and charged once", ledger.Success, good, true, []bucket{bucketMatched}},
		{"failed and not charged", ledger.Failed, nil, true, []bucket{bucketDead}},
		{"cancelled and not charged", ledger.Cancelled, nil, true, []bucket{bucketMatched}},
		{"paid and not in the book", ledger.Success, nil, false, []bucket{bucketMissing}},
		{"charged twice", ledger.Success, []charge{chargeOf(1, 500, 2)}, false, []bucket{bucketTwice}},
		{"charged twice, under two keys", ledger.Success, append(good, good...), false, []bucket{bucketTwice}},
		{"another amount", ledger.Success, []charge{chargeOf(1, 501, 1)}, false, []bucket{bucketAmount}},
		{"another amount the second time", ledger.Success, []charge{chargeOf(1, 500, 1), chargeOf(1, 501, 1)}, false, []bucket{bucketAmount, bucketTwice}},
		{"charged and failed", ledger.Failed, good, false, []bucket{bucketDead, bucketDenied}},
		{"charged and cancelled", ledger.Cancelled, good, false, []bucket{bucketDenied}},
		{"charged and not settled", ledger.Sending, good, false, []bucket{bucketPending, bucketUnbooked}},
		{"charged and unknown", ledger.Unknown, good, false, []bucket{bucketUnknown, bucketUnbooked}},
		{"not settled", ledger.Pending, nil, false, []bucket{bucketPending}},
		{"unknown", ledger.Unknown, nil, false, []bucket{bucketUnknown}},
		{"a charge that nobody accepted", ledger.Success, append([]charge{chargeOf(2, 5, 1)}, good...), false, []bucket{bucketMatched}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r, in := shelf{charges: tt.charges, rows: []ledger.Entry{rowOf(1, 500, tt.state)}}.compare(t, time.Time{})
			require.Equal(t, tt.balance, r.Balance(), "%+v", r.Books)
			require.Equal(t, tt.balance, r.settledWell() == nil)
			require.Equal(t, tt.in, in[1])
			if len(in) > 1 {
				require.Equal(t, []bucket{bucketUnexplained}, in[2])
				require.EqualValues(t, 1, r.Unexplained)
			}
		})
	}
}
