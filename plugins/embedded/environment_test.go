package embedded_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

// shop is a plugin with effects and a page.
type shop struct{}

func (shop) Name() string                      { return "shop" }
func (shop) Needs() []string                   { return []string{"once", "web"} }
func (shop) Register(*pipeline.Registry) error { return nil }

// What only the environment sets is set for `validate`, too, which opens and creates nothing.
func TestValidateKnowsTheSettingsOfTheEnvironment(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data")
	topics := kafka.New()
	dead, tokens, streams := deadletter.New(topics), token.New(), sse.New()
	var out pipelinetest.Buffer
	validate := func(environ ...string) int {
		return app.Main(t.Context(), app.Options{
			Name: "mill", Args: []string{"validate"}, Stdout: &out, Stderr: &out, Environ: append([]string{"MILL__DATA_DIR=" + dir}, environ...),
			Plugins: []pipeline.Plugin{topics, dead, once.NewPlugin(topics, dead), tokens, streams, web.New(tokens, streams), shop{}},
			Environments: map[string]app.Environment{"embedded": embedded.Environment(map[string]string{
				"plugins.once.ledger.dsn": "sqlite:{dir}/once.db",
			})},
		})
	}
	require.Zero(t, validate("MILL__ENVIRONMENT=embedded", "MILL__PLUGINS__WEB__LISTEN=127.0.0.1:0"), out.String())
	require.NoDirExists(t, dir)
	require.Equal(t, app.ExitUsage, validate())
	require.Contains(t, out.String(), "plugins.once.ledger.dsn: must be set, because effects of the plugin shop are stored there")
}
