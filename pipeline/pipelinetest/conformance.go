package pipelinetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// Conformance checks the rules for every plugin, without a server. fresh makes a new plugin per
// call, after the plugins it depends on: downstream first, the plugin itself last. A transport also
// calls Transport, with a server.
func Conformance(t *testing.T, fresh func() []pipeline.Plugin) {
	t.Helper()
	last := func() pipeline.Plugin { p := fresh(); return p[len(p)-1] }

	t.Run("name is stable", func(t *testing.T) {
		require.NotEmpty(t, last().Name())
		require.Equal(t, last().Name(), last().Name())
	})
	t.Run("default settings are valid", func(t *testing.T) {
		c, ok := last().(pipeline.Configurable)
		if !ok {
			return
		}
		settings := c.Settings()
		require.NotNil(t, settings)
		require.Same(t, settings, c.Settings(), "Settings must return the plugin's own struct, not a copy")
		if v, ok := settings.(interface{ Validate() error }); ok {
			require.NoError(t, v.Validate())
		}
	})
	t.Run("registers offline and at once", func(t *testing.T) {
		var reg *pipeline.Registry
		took := time.Hour
		for tries := 3; tries > 0 && took >= 5*time.Second; tries-- { // the machine may stand still in one of them
			begin := time.Now()
			reg = register(t, fresh())
			took = min(took, time.Since(begin))
		}
		require.Less(t, took, 5*time.Second, "Register must not wait for anything")
		for _, r := range reg.Routes() {
			require.NotEmpty(t, r.From.Describe().Kind, "route %s: From.Describe", r.Name)
			require.NotEmpty(t, r.From.Describe().Name, "route %s: From.Describe", r.Name)
			sinks := []pipeline.Sink{r.Policy.DeadLetter, r.Policy.Retry.To}
			for _, o := range r.AllOutputs() {
				sinks = append(sinks, o.Sink)
			}
			for _, s := range sinks {
				if s != nil {
					require.NotEmpty(t, s.Describe().Name, "route %s: Sink.Describe", r.Name)
				}
			}
		}
	})
	t.Run("stops before it was started, twice", func(t *testing.T) {
		reg := register(t, fresh())
		for _, s := range reg.Services() {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			require.NoError(t, s.Stop(ctx), "service %s: Stop before Start", s.Name)
			require.NoError(t, s.Stop(ctx), "service %s: Stop again", s.Name)
			cancel()
		}
	})
	t.Run("delays its retry topics, or is refused for them", func(t *testing.T) {
		plugins := fresh()
		topics, ok := plugins[len(plugins)-1].(pipeline.Topics)
		if !ok {
			return
		}
		_, err := pipeline.NewRegistry(pipeline.Env{Instance: "conformance", Logger: Logger(t)}, append(plugins, &retrying{topics: topics, topic: "conformance"})...)
		for _, end := range []any{topics.Sink("conformance-retry"), topics.Source("conformance-retry", "conformance")} {
			if d, ok := end.(pipeline.Delayer); !ok || d.Delays() != nil {
				require.ErrorContains(t, err, "route "+retryingName+": its retry topic")
				require.ErrorContains(t, err, topics.Sink("conformance-retry").Describe().Kind)
				return
			}
		}
		require.NoError(t, err)
	})
	t.Run("registers its metrics once", func(t *testing.T) {
		reg := register(t, fresh())
		require.NoError(t, reg.CheckCollectors())
	})
}

func register(t *testing.T, plugins []pipeline.Plugin) *pipeline.Registry {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "conformance", Logger: Logger(t)}, plugins...)
	require.NoError(t, err)
	return reg
}
