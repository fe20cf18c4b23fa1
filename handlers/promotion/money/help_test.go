package money_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
)

// newClient returns a client of the API at url that is closed at the end of the test.
func newClient(t testing.TB, url string, change func(*money.Config)) *money.Client {
	t.Helper()
	cfg := money.DefaultConfig()
	cfg.URL = url
	if change != nil {
		change(&cfg)
	}
	c, err := money.New(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}
