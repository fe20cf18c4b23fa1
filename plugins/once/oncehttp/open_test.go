package oncehttp_test

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// A plugin makes its client before its settings are decoded, and opens it when its services start.
func TestAClientIsMadeBeforeItsSettings(t *testing.T) {
	t.Parallel()
	far := newFarSide(t)
	var cfg oncehttp.Config
	client := oncehttp.New(&cfg, billing())
	require.Equal(t, oncehttp.DefaultConfig(), cfg, "what the settings are decoded over")

	require.False(t, client.Ready())
	a := post(t.Context(), client, "k")
	require.Equal(t, once.NotSent, a.Class)
	require.True(t, a.General, "no effect ends by it")
	require.Contains(t, a.Text, "call Client.Open")
	require.Equal(t, once.NotSent, find(t.Context(), client, "k").Class)
	_, err := client.Slot(t.Context())
	require.ErrorContains(t, err, "call Client.Open")
	client.Drain()
	require.NoError(t, client.Close())
	require.Equal(t, 2.0, metric(t, client, "millrace_once_http_calls_total"), "metrics are there before")
	require.Zero(t, metric(t, client, "millrace_once_http_in_flight_limit"))

	require.ErrorContains(t, client.Open(nil), "url: must be set")
	cfg.URL = far.URL
	require.NoError(t, client.Open(nil))
	require.ErrorContains(t, client.Open(nil), "open already")
	require.True(t, client.Ready())
	require.Equal(t, once.Done, post(t.Context(), client, "k").Class)
	require.NoError(t, client.Close())
	require.NoError(t, client.Close())
	require.Equal(t, once.NotSent, post(t.Context(), client, "k").Class)
	require.ErrorContains(t, client.Open(nil), "was closed")

	mine := oncehttp.Config{URL: far.URL}
	oncehttp.New(&mine, billing())
	require.Equal(t, oncehttp.Config{URL: far.URL}, mine, "settings are not changed")
}

// Two clients have the same metrics and differ by a label, so a process has both.
func TestTwoClientsShareTheirMetrics(t *testing.T) {
	t.Parallel()
	far := newFarSide(t)
	reg := prometheus.NewPedanticRegistry()
	for _, name := range []string{"billing", "mail"} {
		cfg, m := oncehttp.DefaultConfig(), billing()
		cfg.URL, m.Name = far.URL, name
		client := oncehttp.New(&cfg, m)
		require.NoError(t, client.Open(nil))
		t.Cleanup(func() { require.NoError(t, client.Close()) })
		for _, c := range client.Collectors() {
			require.NoError(t, reg.Register(c))
		}
		require.Equal(t, once.Done, post(t.Context(), client, "k").Class)
		require.Equal(t, once.Done, oncehttp.Post(t.Context(), client, "/v1/invoices", once.Attempt[int]{Idempotency: "k"}).Class)
		require.Equal(t, once.Done, find(t.Context(), client, "k").Class)
	}
	families, err := reg.Gather()
	require.NoError(t, err)
	counted := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labels := map[string]string{}
			for _, l := range m.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			require.NotEmpty(t, labels["client"], f.GetName())
			if f.GetName() == "millrace_once_http_calls_total" && labels["class"] == "done" {
				counted[labels["client"]+" "+labels["operation"]] = m.GetCounter().GetValue()
			}
		}
	}
	require.Equal(t, map[string]float64{
		"billing invoice": 1, "billing send": 1, "billing lookup": 1, "mail invoice": 1, "mail send": 1, "mail lookup": 1,
	}, counted)
}
