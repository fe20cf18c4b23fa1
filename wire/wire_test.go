package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/wire"
)

// plugins returns the plugins of the service with the settings that have no default.
func plugins() []pipeline.Plugin {
	all := wire.New().Plugins
	for _, p := range all {
		if payouts, ok := p.(*promotion.Plugin); ok {
			settings := payouts.Settings().(*promotion.Config)
			settings.Ledger.DSN = pipeline.NewSecret("sqlite:ledger.db")
			settings.MoneyAPI.URL = "http://127.0.0.1:8089"
			settings.Stream.Enabled = true
		}
	}
	return all
}

func TestEveryPluginConforms(t *testing.T) {
	for i, p := range plugins() {
		t.Run(p.Name(), func(t *testing.T) {
			pipelinetest.Conformance(t, func() []pipeline.Plugin { return plugins()[:i+1] })
		})
	}
}

func TestTheRoutesOfTheService(t *testing.T) {
	reg, err := pipeline.NewRegistry(pipeline.Env{}, plugins()...)
	require.NoError(t, err)
	var names []string
	for _, r := range reg.Routes() {
		names = append(names, r.Name)
		require.NotNil(t, r.Policy.DeadLetter, "route %s loses what can't be handled", r.Name)
	}
	require.Equal(t, []string{
		"promotion.point.stream", "promotion.point.retry", "promotion.point.accept",
		"promotion.voucher.stream", "promotion.voucher.retry", "promotion.voucher.accept",
		"promotion.started",
	}, names)
}
