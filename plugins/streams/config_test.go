package streams

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestConsumersByTheDefaultTiers(t *testing.T) {
	for _, c := range []struct {
		total int64
		want  int
	}{
		{0, 1}, {1, 1}, {100, 1}, {101, 2}, {1_000, 2}, {1_001, 4}, {10_000, 4}, {10_001, 8},
		{100_000, 8}, {100_001, 16}, {500_000, 16}, {500_001, 32}, {1 << 40, 32}, {-5, 1},
	} {
		require.Equal(t, c.want, Consumers(DefaultTiers(), c.total, 1, 32), "total %d", c.total)
	}
	require.Equal(t, 8, Consumers(DefaultTiers(), 0, 8, 32), "an unknown total gets the least")
	require.Equal(t, 8, Consumers(DefaultTiers(), 100, 8, 32), "raised to the least")
	require.Equal(t, 4, Consumers(DefaultTiers(), 1_000_000, 1, 4), "lowered to the most")
}

// The tiers of the older systems, as configuration.
func TestConsumersByTheOlderTiers(t *testing.T) {
	older := []Tier{{1_000, 1}, {10_000, 2}, {100_000, 4}, {500_000, 8}, {1_000_000, 16}, {0, 32}}
	for i, c := range []struct {
		total int64
		most  int
		want  int
	}{
		{0, 32, 1}, {1_000, 32, 1}, {1_001, 32, 2}, {10_001, 32, 4}, {100_001, 32, 8},
		{500_001, 32, 16}, {1_000_001, 32, 32}, {1_000_001, 8, 8}, {100_001, 4, 4},
	} {
		require.Equal(t, c.want, Consumers(older, c.total, 1, c.most), "case %d", i+1)
	}
}

func TestConsumersWithoutAnOpenLastTier(t *testing.T) {
	require.Equal(t, 2, Consumers([]Tier{{10, 1}, {20, 2}}, 1_000, 1, 32), "the last tier is taken")
}

func TestValidate(t *testing.T) {
	require.NoError(t, DefaultConfig().Validate())
	for name, c := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"min above max":       {func(c *Config) { c.MinConsumers = 33 }, "min_consumers_per_instance: must be <= max_consumers_per_instance (32), got 33"},
		"no length":           {func(c *Config) { c.MaxLen = -1 }, "max_len: must be > 0, got -1"},
		"no poll":             {func(c *Config) { c.PollInterval = 0 }, "poll_interval: must be > 0, got 0s"},
		"first above poll":    {func(c *Config) { c.InitialPollInterval = time.Second }, "initial_poll_interval: must be <= poll_interval (100ms), got 1s"},
		"no batch":            {func(c *Config) { c.BatchSize = 0 }, "batch_size: must be > 0, got 0"},
		"no idle":             {func(c *Config) { c.IdleTimeout = 0 }, "idle_timeout: must be > 0, got 0s"},
		"no stop":             {func(c *Config) { c.StopTimeout = -1 }, "stop_timeout: must be > 0, got -1ns"},
		"slow reconciliation": {func(c *Config) { c.ReconcileInterval = time.Minute }, "reconcile_interval: must be <= idle_timeout (30s), got 1m0s"},
		"no tiers":            {func(c *Config) { c.Tiers = nil }, "tiers: must have at least one tier"},
		"tiers out of order":  {func(c *Config) { c.Tiers = []Tier{{10, 1}, {10, 2}} }, "tiers[1].up_to: must be > 10, got 10"},
		"open tier inside":    {func(c *Config) { c.Tiers = []Tier{{0, 1}, {10, 2}} }, "tiers[0].up_to: only the last tier may be without a bound"},
		"empty tier":          {func(c *Config) { c.Tiers = []Tier{{10, 0}} }, "tiers[0].consumers: must be > 0, got 0"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := DefaultConfig()
			c.change(&cfg)
			require.ErrorContains(t, cfg.Validate(), c.want)
		})
	}
	require.ErrorContains(t, Config{}.Validate(), "max_len", "the zero value is refused")
}

func TestKind(t *testing.T) {
	k := Kind{Type: "VOUCHER", StreamPrefix: "campaign-promotion-stream:VOUCHER:", GroupPrefix: "campaign-promotion-group:VOUCHER:"}
	require.Equal(t, "campaign-promotion-stream:VOUCHER:12345", k.Stream("12345"))
	require.Equal(t, "campaign-promotion-group:VOUCHER:12345", k.Group("12345"))
	require.Equal(t, "campaign-promotion-stream", k.domain())
	id, ok := k.id("campaign-promotion-stream:VOUCHER:12345")
	require.True(t, ok)
	require.Equal(t, "12345", id)
	for _, id := range []string{"0", "007", "-1", "customer-9", "a%3Ab", strings.Repeat("x", 300)} {
		got, ok := k.id(k.Stream(id))
		require.True(t, ok, id)
		require.Equal(t, id, got)
	}
	for _, not := range []string{
		k.StreamPrefix, "campaign-promotion-stream:POINT:1", k.WakeKey(), MetaKey(k.Stream("12345")), k.Stream("12345") + ":meta",
		k.Stream("a{b"), k.Stream("a}b"), k.Stream("a b"), k.Stream("a\n"), k.Stream("é"), k.Stream(strings.Repeat("x", 301)),
	} {
		_, ok := k.id(not)
		require.False(t, ok, not)
	}
}

// No id reaches a key that is not a stream of its own.
func TestAnIDThatNamesAnotherKeyIsRefused(t *testing.T) {
	m := NewManager(Options{Kind: Kind{Type: "POINT", StreamPrefix: "s:", GroupPrefix: "g:"}, Activations: newActiveSet()}) // no client: it is not used
	for _, id := range []string{"", ":wake", "1:meta", "a{b}"} {
		_, _, err := m.EnqueueBatch(t.Context(), id, entries(0, 1))
		require.ErrorContains(t, err, "can't be the id of a stream")
		require.ErrorContains(t, m.Ensure(t.Context(), id), "can't be the id of a stream")
	}
}

func TestMetaKeyHashesWithItsStream(t *testing.T) {
	require.Equal(t, "{campaign-promotion-stream:POINT:1}:meta", MetaKey("campaign-promotion-stream:POINT:1"))
	require.Equal(t, "x{tag}y:meta", MetaKey("x{tag}y"))
	require.Equal(t, "{x{}y}:meta", MetaKey("x{}y"), "an empty tag is none")
}
