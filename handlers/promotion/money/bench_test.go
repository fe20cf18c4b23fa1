package money_test

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/moneysim"
)

// BenchmarkCharge is client, loopback and simulator together, 64 calls in flight.
func BenchmarkCharge(b *testing.B) {
	for _, home := range []string{"memory", "file"} {
		b.Run(home, func(b *testing.B) {
			cfg := moneysim.Config{}
			if home == "file" {
				cfg.BookPath = b.TempDir() + "/book"
			}
			sim, err := moneysim.New(cfg)
			require.NoError(b, err)
			require.NoError(b, sim.Start(b.Context()))
			defer sim.Stop(b.Context())
			c := newClient(b, sim.URL(), nil)
			var n atomic.Int64
			body := []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":777,"amount":500}`)
			b.ReportAllocs()
			b.SetParallelism(32)
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					a := c.Charge(b.Context(), money.Charge{Operation: money.ChargePoint, Key: fmt.Sprintf("POINT:1:%d", n.Add(1)), Body: body})
					if a.Class != money.Paid || a.Status != http.StatusOK {
						b.Fatalf("unexpected answer %+v", a)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "calls/s")
		})
	}
}
