package app_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/migration"
)

// granary is a plugin with a store in memory. Its schema has the versions 1 to known.
type granary struct {
	toy
	version, known int64
	unavailable    bool
	broken         int64 // a migration to this version fails
	overtaken      bool  // another process migrates between Plan and Migrate
}

func (g *granary) Schemas(pipeline.Env) []migration.Schema { return []migration.Schema{g} }

func (g *granary) Plan(context.Context) (migration.Migration, error) {
	m := migration.Migration{Store: "grain", Kind: "memory", Schema: "mill", Before: g.version, After: max(g.version, g.known), Known: g.known}
	for v := g.version + 1; v <= g.known; v++ {
		m.Steps = append(m.Steps, migration.Step{Version: v, Name: fmt.Sprintf("%05d.sql", v)})
	}
	if g.unavailable {
		return migration.Migration{}, fmt.Errorf("grain: %w", pipeline.ErrUnavailable)
	}
	return m, nil
}

func (g *granary) Migrate(ctx context.Context) (migration.Migration, error) {
	m, err := g.Plan(ctx)
	if err != nil {
		return m, err
	}
	if g.overtaken {
		m.Steps, g.version = nil, m.After
	}
	for i := range m.Steps {
		if m.Steps[i].Version == g.broken {
			m.Steps, m.After = m.Steps[:i], g.version
			return m, errors.New("grain: no right to make tables")
		}
		m.Steps[i].Seconds = 1.5
		g.version = m.Steps[i].Version
	}
	return m, nil
}

func (g *granary) Register(r *pipeline.Registry) error {
	g.start = func(ctx context.Context) error { return r.Env().Schemas.Prepare(ctx, g, r.Env().Logger) }
	return g.toy.Register(r)
}

func newGranary(version, known int64) *granary {
	return &granary{toy: *newToy(), version: version, known: known}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	const name = "grain (memory, mill): "
	broken, down, overtaken := newGranary(0, 3), newGranary(0, 3), newGranary(0, 3)
	broken.broken, down.unavailable, overtaken.overtaken = 2, true, true
	for title, tc := range map[string]struct {
		plugin  pipeline.Plugin
		args    []string
		want    result
		version int64 // afterwards
	}{
		"old":           {newGranary(1, 3), nil, result{0, name + "version 1, now 3\n  00002.sql  1.5s\n  00003.sql  1.5s\n", ""}, 3},
		"dry run":       {newGranary(1, 3), []string{"--dry-run"}, result{0, name + "version 1, would become 3\n  00002.sql\n  00003.sql\n", ""}, 1},
		"up to date":    {newGranary(3, 3), nil, result{0, name + "version 3, up to date\n", ""}, 3},
		"two at once":   {overtaken, nil, result{0, name + "version 3, up to date\n", ""}, 3},
		"newer":         {newGranary(4, 3), nil, result{0, name + "version 4 is newer than this binary, which knows versions up to 3; nothing was changed\n", ""}, 4},
		"no store":      {newToy(), nil, result{0, "No store is configured; there is nothing to migrate.\n", ""}, 0},
		"ends half-way": {broken, nil, result{1, name + "version 0, now 1\n  00001.sql  1.5s\n", "mill: grain: no right to make tables\n"}, 1},
		"unavailable":   {down, nil, result{3, "", "mill: grain: server unavailable\n" + examine("mill doctor")}, 0},
	} {
		t.Run(title, func(t *testing.T) {
			t.Parallel()
			got := run(t.Context(), options(tc.plugin, append([]string{"migrate"}, tc.args...)...))
			require.Equal(t, tc.want, got)
			if g, ok := tc.plugin.(*granary); ok {
				require.Equal(t, tc.version, g.version)
			}
		})
	}
}

func TestMigrateForScripts(t *testing.T) {
	t.Parallel()
	r := run(t.Context(), options(newGranary(1, 2), "migrate", "--json"))
	require.Zero(t, r.code, r.stderr)
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.stdout), &got))
	require.Equal(t, map[string]any{
		"dry_run": false,
		"stores": []any{map[string]any{
			"plugin": "toy", "store": "grain", "kind": "memory", "schema": "mill",
			"version_before": 1.0, "version_after": 2.0, "known_version": 2.0,
			"migrations": []any{map[string]any{"version": 2.0, "name": "00002.sql", "seconds": 1.5}},
		}},
	}, got)
}

// Only `run` migrates, and only if the settings let it. Commands need exactly their schema.
func TestOnlyRunMigrates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		command        string
		version, known int64
		allowed        bool
		after          int64
	}{
		"run migrates":                      {"run-once", 1, 3, true, 3},
		"run on a newer schema":             {"run-once", 4, 3, true, 4},
		"run without the right":             {"serve-once", 1, 3, false, 1},
		"run without the right to a newer":  {"serve-once", 4, 3, true, 4},
		"run without the right, up to date": {"serve-once", 3, 3, true, 3},
		"a command":                         {"look", 3, 3, true, 3},
		"a command on an older schema":      {"look", 1, 3, false, 1},
		"a command on a newer schema":       {"look", 4, 3, false, 4},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGranary(tc.version, tc.known)
			nothing := func(context.Context, *app.Running) error { return nil }
			g.commands = func(h *app.Host) []*cobra.Command {
				command := func(use string, do func(cmd *cobra.Command) error) *cobra.Command {
					return h.ServiceFlags(&cobra.Command{Use: use, RunE: func(cmd *cobra.Command, _ []string) error { return do(cmd) }})
				}
				only := app.RunOptions{Overrides: map[string]any{"migrate": false}, Ready: nothing}
				return []*cobra.Command{
					command("run-once", func(cmd *cobra.Command) error { return h.Run(cmd.Context(), cmd, app.RunOptions{Ready: nothing}) }),
					command("serve-once", func(cmd *cobra.Command) error { return h.Run(cmd.Context(), cmd, only) }),
					command("look", func(cmd *cobra.Command) error {
						return h.Services(cmd.Context(), cmd, app.ServicesOptions{Plugins: []string{"toy"}}, nothing)
					}),
				}
			}
			r := run(t.Context(), options(g, tc.command))
			require.Equal(t, tc.after, g.version)
			if tc.allowed {
				require.Zero(t, r.code, r.stderr)
				return
			}
			require.Equal(t, app.ExitUsage, r.code, r.stderr)
			require.Contains(t, r.stderr, map[bool]string{true: "Run 'mill migrate'", false: "Use a newer mill."}[tc.version < tc.known])
		})
	}
}

var _ pipeline.Migratable = (*granary)(nil)
