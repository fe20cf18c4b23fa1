package money_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// newClient returns a client of the API at url. Its limits are long, because a machine may be busy.
func newClient(t testing.TB, url string, change func(*money.Config)) *money.Client {
	t.Helper()
	cfg := money.DefaultConfig()
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
