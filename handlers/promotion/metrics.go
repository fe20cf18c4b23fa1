package promotion

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/handlers/promotion/feeder"
	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/handlers/promotion/payout"
)

// metrics are those of the plugin's packages. No label is an id: there may be a million of them.
type metrics struct {
	payout *payout.Metrics
	feeder *feeder.Metrics
	client func() *money.Client // returns nil until there is a client
}

func newMetrics() *metrics {
	return &metrics{payout.NewMetrics(), feeder.NewMetrics(), func() *money.Client { return nil }}
}

func (m *metrics) collectors() []prometheus.Collector {
	return append(append(m.payout.Collectors(), m.feeder.Collectors()...), clientMetrics{m})
}

// clientMetrics collects the metrics of the Money API's client. It describes none of them: the client does
// not exist when collectors are registered.
type clientMetrics struct{ *metrics }

func (clientMetrics) Describe(chan<- *prometheus.Desc) {}

func (c clientMetrics) Collect(out chan<- prometheus.Metric) {
	if client := c.client(); client != nil {
		for _, one := range client.Collectors() {
			one.Collect(out)
		}
	}
}
