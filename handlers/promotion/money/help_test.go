package money_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// newClient returns a client of the API at url. Its limits are long, because a machine may be busy.
func newClient(t testing.TB, url string, change func(*oncehttp.Config)) *money.Client {
	t.Helper()
	cfg := oncehttp.DefaultConfig()
	cfg.URL = url
	cfg.CallTimeout, cfg.ConnectTimeout = time.Minute, time.Minute
	if change != nil {
		change(&cfg)
	}
	c, err := money.New(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

// newSim returns a running simulator that is stopped at the end of the test.
func newSim(t testing.TB, cfg simulator.Config) *simulator.Server {
	t.Helper()
	s, err := simulator.New(cfg)
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	t.Cleanup(func() { require.NoError(t, s.Stop(t.Context())) })
	return s
}

func charge(key string) money.Charge {
	return money.Charge{Operation: chargePoint, Key: key, Body: []byte(`{"promotionId":1,"promotionSummaryId":9,"targetId":2,"amount":500}`)}
}
