package promotion

import (
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/ledger"
	"github.com/millrace-io/millrace/handlers/promotion/ledger/payouts"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// BenchmarkPoison pays 3,000 payouts with 32 workers at an API of 5 ms. It does so once without
// poison, and once with 1 % of the payouts always answered badly. x is the median of how
// much longer the other 99 % take with poison.
//
//	go test ./handlers/promotion -run '^$' -bench Poison -benchtime 5x
func BenchmarkPoison(b *testing.B) {
	var ratios []float64
	for range b.N {
		without := payWithPoison(b, 0)
		with := payWithPoison(b, 0.01)
		ratios = append(ratios, with.Seconds()/without.Seconds())
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "x")
	b.Logf("%.3f", ratios)
}

// payWithPoison returns how long it takes until all payouts that are not poisoned are paid.
// Poisoned ones are retried when they are due.
func payWithPoison(b *testing.B, rate float64) time.Duration {
	const total, workers = 3000, 32
	api, err := simulator.New(simulator.Config{Faults: simulator.Faults{Latency: 5 * time.Millisecond, PoisonRate: rate, Seed: 1}})
	require.NoError(b, err)
	require.NoError(b, api.Start(b.Context()))
	defer func() { require.NoError(b, api.Stop(b.Context())) }()
	config := DefaultConfig()
	config.MoneyAPI.URL = api.URL()
	config.Ledger.DSN = setting.NewSecret("sqlite:" + filepath.Join(b.TempDir(), "ledger.db"))
	l, err := ledger.Open(b.Context(), config.Ledger, ledger.Options{Instance: "bench", Lease: 8 * time.Second}, nil)
	require.NoError(b, err)
	defer func() { require.NoError(b, l.Close()) }()
	require.NoError(b, l.Migrate(b.Context()))
	client, err := money.New(config.MoneyAPI.Config, nil)
	require.NoError(b, err)
	defer func() { require.NoError(b, client.Close()) }()
	proc := &payout.Processor{Type: pointType(), Ledger: func() *ledger.Ledger { return l }, MoneyAPI: func() money.API { return client },
		Metrics: payout.NewMetrics(), Progress: new(payout.Progress), Log: slog.New(slog.DiscardHandler)}

	p := payouts.Promotion{Type: "POINT", ID: 1}
	queue := make(chan payouts.Record, total)
	for target := range int64(total) {
		payload, err := proc.Type.Encode(p.ID, 9, 1+target, "500")
		require.NoError(b, err)
		rec := payouts.Record{Key: payouts.Key{Type: p.Type, Promotion: p.ID, Target: 1 + target}, SummaryID: 9, Payload: payload}
		require.NoError(b, l.Accept(b.Context(), []payouts.Record{rec}, ledger.AcceptOptions{})[0].Err)
		queue <- rec
	}
	began := time.Now()
	end := make(chan struct{})
	var all, retries sync.WaitGroup
	for range workers {
		all.Go(func() {
			for {
				select {
				case <-end:
					return
				case rec := <-queue:
					if delay, again := pipeline.RetryDelay(proc.Pay(b.Context(), rec)); again {
						retries.Go(func() {
							select {
							case <-end:
							case <-time.After(delay):
								queue <- rec // which has room for all
							}
						})
					}
				}
			}
		})
	}
	want := total
	if rate > 0 {
		want = 0
		for target := range int64(total) {
			if !api.Poisons(proc.Type.IdempotencyKey(p.ID, 1+target)) {
				want++
			}
		}
	}
	require.Eventually(b, func() bool { return api.Summary().Executed >= want }, 5*time.Minute, time.Millisecond)
	took := time.Since(began)
	require.Zero(b, clientGauge(b, client, "breaker_state"), "closed")
	require.Zero(b, clientGauge(b, client, "throttled_seconds"))
	close(end)
	all.Wait()
	retries.Wait()
	return took
}
