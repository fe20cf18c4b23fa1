package pipelinetest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
)

// Start runs the plugins with the real chain and runtime until the test ends, and returns the
// registry. The instance has a name that no other has, so several can share a server. Stopping is part
// of the test: a plugin that doesn't stop fails it.
func Start(t testing.TB, plugins ...pipeline.Plugin) *pipeline.Registry {
	t.Helper()
	reg, stop := run(t, middleware.Options{}, plugins...)
	t.Cleanup(func() { require.NoError(t, stop(), "stop") })
	return reg
}

// StartUntil is Start with the stop in the caller's hand, for tests of draining.
func StartUntil(t testing.TB, opts middleware.Options, plugins ...pipeline.Plugin) (stop func() error) {
	t.Helper()
	_, stop = run(t, opts, plugins...)
	return stop
}

func run(t testing.TB, opts middleware.Options, plugins ...pipeline.Plugin) (*pipeline.Registry, func() error) {
	t.Helper()
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "test-" + watermill.NewULID(), Logger: Logger(t)}, plugins...)
	require.NoError(t, err, "register")
	chain := middleware.New(reg, opts)
	rt := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}, StopTimeout: time.Minute})
	require.NoError(t, rt.Start(t.Context()), "start")
	return reg, func() error { return rt.Stop(context.Background()) }
}

// Logger returns a logger that writes to the test's own log, warnings and worse.
func Logger(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn}))
}
