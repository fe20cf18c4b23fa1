package promotion_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline/app"
)

// fewPlaces has place for n promotions, and keeps drained streams for so long that no test could
// wait for them.
func fewPlaces(n int) func(*promotion.Config) {
	return func(c *promotion.Config) {
		c.Stream.MaxActive, c.Stream.IdleTimeout, c.Stream.ReconcileInterval = n, time.Hour, 50*time.Millisecond
		c.Feeder.Interval, c.Feeder.GracePeriod = 50*time.Millisecond, time.Hour
	}
}

func pointOf(promotion, target int) string {
	return fmt.Sprintf(`{"promotionId":%d,"promotionSummaryId":9,"targetId":%d,"amount":10}`, promotion, target)
}

// active returns how many streams of points are active.
func (sys *system) active() int {
	a, err := sys.ledger.Active(sys.t.Context(), "POINT")
	require.NoError(sys.t, err)
	return len(a)
}

// Promotions that wait for a place are paid in the order in which they were accepted, one after the
// other, and `campaign status` names them.
func TestWaitingPromotionsArePaidInOrder(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		var mu sync.Mutex
		var paid []string
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			key := r.Header.Get("Idempotency-Key")
			paid = append(paid, strings.Split(key, ":")[1])
			_, _ = io.WriteString(w, `{"transactionKey":"t-`+key+`"}`)
		}))
		t.Cleanup(api.Close)
		sys := newSystem(t, simulator.Faults{}, func(c *promotion.Config) {
			fewPlaces(1)(c)
			c.MoneyAPI.URL = api.URL
		})
		one, err := ledger.Open(t.Context(), sys.payouts.Settings().(*promotion.Config).Ledger, ledger.Options{Instance: "one", Lease: time.Minute, MaxActive: 1}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, one.Close()) })
		var want []string
		for _, id := range []int{7, 3, 9, 1, 8, 2} {
			for target := range 2 {
				rec := pointRecord(int64(target + 1))
				rec.Promotion, rec.Payload = int64(id), []byte(pointOf(id, target+1))
				require.NoError(t, one.Accept(t.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
				require.NoError(t, one.NotEnqueued(t.Context(), []payouts.Key{rec.Key})[0])
				want = append(want, fmt.Sprint(id))
			}
			_, err := one.Admit(t.Context(), payouts.Promotion{Type: "POINT", ID: int64(id)})
			require.NoError(t, err)
		}
		var all struct{ Promotions []campaign.Status }
		sys.json(&all, "campaign", "status")
		waits := func(s campaign.Status) bool { return s.WaitsForPlace > 0 }
		require.Len(t, slices.DeleteFunc(slices.Clone(all.Promotions), waits), 1, "7 has the place")
		require.Contains(t, sys.says(app.ExitOK, "campaign", "status", "POINT", "3"), "max_active_promotions")
		require.NotContains(t, sys.says(app.ExitOK, "campaign", "status", "POINT", "7"), "max_active_promotions")
		sys.start()
		require.Eventually(t, func() bool {
			work, err := sys.ledger.Unfinished(t.Context())
			return err == nil && len(work) == 0
		}, 2*time.Minute, 20*time.Millisecond)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(t, want, paid)
	})
}

// Far more promotions than there are places are all paid. Neither one whose key Redis refuses nor a
// paused one keeps a place.
func TestAFloodOfPromotionsIsDrained(t *testing.T) {
	t.Run("embedded", func(t *testing.T) {
		const flood, limit = 24, 4
		sys := newSystem(t, simulator.Faults{}, fewPlaces(limit))
		for id := range limit { // as many as there are places, which they all take
			require.NoError(t, sys.redis.Set(t.Context(), fmt.Sprint("campaign-promotion-stream:POINT:", 101+id), "x", 0).Err())
			require.NoError(t, sys.ledger.Pause(t.Context(), payouts.Promotion{Type: "POINT", ID: int64(201 + id)}, ledger.Steering{Who: "ann", Why: "x", Future: true}))
			require.NoError(t, sys.ledger.Activate(t.Context(), payouts.Promotion{Type: "POINT", ID: int64(101 + id)}, 0))
			require.NoError(t, sys.ledger.Activate(t.Context(), payouts.Promotion{Type: "POINT", ID: int64(201 + id)}, 0))
		}
		sys.start()
		for id := range limit {
			sys.send(publish, pointOf(101+id, 1), pointOf(201+id, 1))
		}
		var records []string
		for id := range flood {
			started, err := json.Marshal(promotiontype.Started{PromotionID: int64(id + 1), PromotionType: "POINT", TotalCount: 1})
			require.NoError(t, err)
			if id%3 == 0 {
				sys.send("campaign-promotion-started", string(started))
			}
			records = append(records, pointOf(id+1, 1))
		}
		sys.send(publish, records...)
		most := 0
		require.Eventually(t, func() bool {
			most = max(most, sys.active())
			return sys.api.Summary().Executed == flood
		}, 2*time.Minute, 20*time.Millisecond)
		require.LessOrEqual(t, most, 2*limit, "the paused ones are on the set, too")
		require.Eventually(t, func() bool {
			work, err := sys.ledger.Unfinished(t.Context())
			return err == nil && len(work) == limit
		}, 2*time.Minute, 5*time.Millisecond, "the refused ones remain")
		for id := range limit {
			require.NoError(t, sys.redis.Del(t.Context(), fmt.Sprint("campaign-promotion-stream:POINT:", 101+id)).Err())
			require.NoError(t, sys.ledger.Resume(t.Context(), payouts.Promotion{Type: "POINT", ID: int64(201 + id)}, ledger.Steering{Who: "ann"}))
		}
		require.Eventually(t, func() bool { return sys.api.Summary().Executed == flood+2*limit }, 2*time.Minute, 20*time.Millisecond)
		require.Zero(t, sys.api.Summary().Doubled)
	})
}

// A promotion whose stream can't be used keeps no place while others wait, whether or not it has
// payouts.
func TestABlockedStreamKeepsNoPlace(t *testing.T) {
	const limit, flood = 2, 6
	for name, c := range map[string]struct{ foreign, payouts bool }{
		"redis refuses the key":                  {false, true},
		"another deployment owns it":             {true, true},
		"redis refuses the key, no payouts":      {false, false},
		"another deployment owns it, no payouts": {true, false},
	} {
		t.Run("embedded, "+name, func(t *testing.T) {
			sys := newSystem(t, simulator.Faults{}, fewPlaces(limit))
			for id := range limit { // they take all places
				stream := fmt.Sprint("campaign-promotion-stream:POINT:", 101+id)
				if c.foreign {
					require.NoError(t, sys.redis.XGroupCreateMkStream(t.Context(), stream, fmt.Sprint("campaign-promotion-group:POINT:", 101+id), "0").Err())
					require.NoError(t, sys.redis.HSet(t.Context(), "{"+stream+"}:meta", "incarnation", "i", "owner", "production").Err())
				} else {
					require.NoError(t, sys.redis.Set(t.Context(), stream, "x", 0).Err())
				}
				require.NoError(t, sys.ledger.Started(t.Context(), payouts.Promotion{Type: "POINT", ID: int64(101 + id)}, 1))
			}
			require.Equal(t, limit, sys.active())
			sys.start()
			if c.payouts {
				sys.send(publish, pointOf(101, 1), pointOf(102, 1))
			}
			for id := range flood {
				sys.send(publish, pointOf(id+1, 1))
			}
			require.Eventually(t, func() bool { return sys.api.Summary().Executed == flood }, 2*time.Minute, 20*time.Millisecond)
		})
	}
}
