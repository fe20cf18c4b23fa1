package wire_test

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/console/graph"
	"github.com/millrace-io/millrace/wire"
)

// witness is a plugin that keeps the registry.
type witness struct{ registry *pipeline.Registry }

func (*witness) Name() string { return "witness" }

func (w *witness) Register(r *pipeline.Registry) error {
	w.registry = r
	return nil
}

// withAllRoutes enables the plugins with routes that are off by default.
const withAllRoutes = `
plugins:
  redis:
    domains: [{prefix: "scan:events", shards: 8, group: eventrouter, fields: true, exclusive: true}]
  eventrouter: {enabled: true, domains: ["scan:events"]}
  webhook: {enabled: true, url: https://example.com/hook, secret: of-at-least-thirty-two-characters-1}
`

// registered returns the registry of the service in the profile embedded with these settings.
func registered(t *testing.T, settings string, environ ...string) *pipeline.Registry {
	t.Helper()
	var w witness
	file := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(file, []byte(settings), 0o600))
	var errs bytes.Buffer
	require.Zero(t, app.Main(t.Context(), app.Options{
		Name: "millrace", Plugins: append(wire.New().Plugins(), &w), Environments: wire.Environments(), Profiles: wire.Profiles(),
		DefaultProfile: "embedded", Args: []string{"topology", "--config", file, "--profile", "embedded"}, Environ: append([]string{}, environ...), Stdout: io.Discard, Stderr: &errs,
	}), errs.String())
	return w.registry
}

// The drawings of the business plugins in the profile embedded have every route and place, and stay as they
// are until UPDATE_GOLDEN=1 writes them again.
func TestTheGraphsOfTheService(t *testing.T) {
	t.Parallel()
	registry := registered(t, withAllRoutes)
	all := graph.Of(app.NewTopology(registry))
	has := func(g graph.Graph, id string) bool {
		return slices.ContainsFunc(g.Boxes, func(b graph.Box) bool { return b.ID == id })
	}
	for _, r := range registry.Routes() {
		part := all.Part(r.Plugin())
		require.True(t, has(part, graph.RouteID(r.Name)), r.Name)
		require.True(t, has(part, graph.PlaceID(r.From.Describe())), r.Name)
		require.True(t, has(part, graph.PlaceID(r.Policy.DeadLetter.Describe())), r.Name)
		for _, o := range r.AllOutputs() {
			require.True(t, has(part, graph.PlaceID(o.Describe())), r.Name)
		}
		for _, at := range r.Calls {
			require.True(t, has(part, graph.PlaceID(at)), r.Name)
		}
		if r.Policy.Retry.To != nil {
			require.True(t, has(part, graph.PlaceID(r.Policy.Retry.To.Describe())), r.Name)
		}
	}
	for _, plugin := range []string{"eventrouter", "webhook"} { // promotions get types, and with them boxes
		g, name := all.Part(plugin), "graph_"+plugin+".svg"
		require.NotEmpty(t, g.Boxes, plugin)
		svg, err := g.SVG()
		require.NoError(t, err)
		golden := filepath.Join("testdata", name)
		if os.Getenv("UPDATE_GOLDEN") != "" {
			require.NoError(t, os.WriteFile(golden, []byte(svg), 0o600))
		}
		want, err := os.ReadFile(golden)
		require.NoError(t, err, "UPDATE_GOLDEN=1 go test writes it")
		require.Equal(t, string(want), string(svg))
	}
}
