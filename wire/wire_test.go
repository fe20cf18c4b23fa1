package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/handlers/promotion"
	"github.com/millrace-io/millrace/handlers/webhook"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/wire"
)

// plugins returns the plugins of the service with the settings that have no default.
func plugins() []pipeline.Plugin {
	all := wire.New().Plugins()
	for _, p := range all {
		if payouts, ok := p.(*promotion.Plugin); ok {
			settings := payouts.Settings().(*promotion.Config)
			settings.Ledger.DSN = setting.NewSecret("sqlite:ledger.db")
			settings.MoneyAPI.URL = "http://127.0.0.1:8089"
			settings.Stream.Enabled = true
		}
		if hooks, ok := p.(*webhook.Plugin); ok {
			settings := hooks.Settings().(*webhook.Config)
			settings.URL, settings.Secret = "https://shop.example/hooks", setting.NewSecret("a secret")
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
		require.NotEqual(t, pipeline.Drop, r.Policy.DeadLetter, "route %s loses what can't be handled", r.Name)
	}
	for _, want := range []string{
		"promotion.point.stream", "promotion.point.retry", "promotion.point.accept",
		"promotion.voucher.stream", "promotion.voucher.retry", "promotion.voucher.accept",
		"promotion.started",
		"webhook", "webhook.retry",
	} {
		require.Contains(t, names, want)
	}
}

// Every profile consists of the plugins' keys. Values that come from the environment may be
// missing.
func TestEveryProfileFitsThePlugins(t *testing.T) {
	for _, profile := range configs.Profiles(wire.Profiles()) {
		t.Run(profile, func(t *testing.T) {
			for _, name := range []string{"KAFKA_USER", "KAFKA_PASSWORD", "REDIS_USERNAME", "REDIS_PASSWORD", "LEDGER_DSN", "MONEY_API_TOKEN"} {
				t.Setenv(name, "postgres://set-by-the-test")
			}
			doc, err := configs.Load(configs.Options{Profiles: wire.Profiles(), Profile: profile})
			require.NoError(t, err)
			sections := app.Sections("millrace", plugins()...)
			for path, target := range sections {
				require.NoError(t, doc.Decode(path, target), path)
			}
			require.NoError(t, doc.Unclaimed())
			// On shared brokers a topic with a typing error must not be created.
			shared := profile == "staging" || profile == "production"
			require.Equal(t, !shared, sections["plugins.kafka"].(*kafka.Config).CreateTopics)
		})
	}
}

func TestARedisOfTheStreamsOwnHasDefaults(t *testing.T) {
	all := plugins()
	doc, err := configs.Load(configs.Options{Overrides: map[string]any{"plugins.promotion.stream.redis.addrs": []string{"127.0.0.1:7000"}}})
	require.NoError(t, err)
	sections := app.Sections("millrace", all...)
	require.NoError(t, doc.Decode("plugins.promotion", sections["plugins.promotion"]))
	own := sections["plugins.promotion"].(*promotion.Config).Stream.Redis
	require.NotNil(t, own)
	require.Equal(t, []string{"127.0.0.1:7000"}, own.Addrs)
	require.NoError(t, own.Validate())
}
