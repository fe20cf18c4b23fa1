package promotion

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/payout"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// A lease that is longer than what may take a message from its worker is refused, with the setting
// and both times. So is an active set without a place.
func TestALeaseMustFit(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		change func(*Config)
		path   string // of the one mistake; empty: none
	}{
		"defaults":                    {func(*Config) {}, ""},
		"a slow API":                  {func(c *Config) { c.MoneyAPI.CallTimeout = 14 * time.Second }, ""},
		"min_idle":                    {func(c *Config) { c.Stream.MinIdle = 8 * time.Second }, "stream.min_idle"},
		"longest_hold":                {func(c *Config) { c.Stream.LongestHold = 8 * time.Second }, "stream.longest_hold"},
		"no longest_hold":             {func(c *Config) { c.Stream.LongestHold = 0 }, ""},
		"idempotency_ttl":             {func(c *Config) { c.Ledger.IdempotencyTTL = 8 * time.Second }, "ledger.idempotency_ttl"},
		"drain_timeout":               {func(c *Config) { c.MoneyAPI.CallTimeout = 15 * time.Second }, "money_api.call_timeout"},
		"no place":                    {func(c *Config) { c.Stream.MaxActive = 0 }, "stream.max_active_promotions"},
		"drain_timeout by the margin": {func(c *Config) { c.MoneyAPI.LeaseMargin = time.Minute }, "money_api.call_timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := DefaultConfig()
			c.Ledger.DSN, c.MoneyAPI.URL = setting.NewSecret("sqlite:/x"), "http://127.0.0.1"
			c.drainTimeout = func() time.Duration { return 20 * time.Second }
			require.Equal(t, 8*time.Second, c.MoneyAPI.lease())
			tt.change(&c)
			err := c.Validate()
			if tt.path == "" {
				require.NoError(t, err)
				return
			}
			var field *setting.FieldError
			require.ErrorAs(t, err, &field)
			require.Equal(t, tt.path, field.Path)
		})
	}
}

// The longest hold follows the lease, so that slow calls don't count as stuck.
func TestTheLongestHoldFollowsTheLease(t *testing.T) {
	t.Parallel()
	c := DefaultConfig()
	require.Equal(t, 2*time.Minute, c.longestHold())
	c.MoneyAPI.CallTimeout = 5 * time.Minute
	require.Greater(t, c.longestHold(), c.MoneyAPI.lease()+handlerTimeout+payout.SettleTimeout)
}
