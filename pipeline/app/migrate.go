package app

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/migration"
)

type migrated struct {
	DryRun bool           `json:"dry_run"`
	Stores []schemaReport `json:"stores"`
}

type schemaReport struct {
	Plugin string `json:"plugin"`
	migration.Migration
}

func (h *Host) migrateCommand() *cobra.Command {
	var dryRun bool
	cmd := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   "migrate",
		Short: "Bring the tables of all configured stores up to date",
		Long: "Bring the tables of all configured stores up to date.\n\n" +
			"Instances of an older version go on working meanwhile and afterwards. A store that is newer than\n" +
			"this binary stays unchanged. --dry-run needs read rights only.",
		Example: h.examples("migrate --config settings.yaml --dry-run", "migrate --config settings.yaml"),
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return h.migrate(cmd, dryRun) },
	}))
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show what would be done and change nothing")
	return cmd
}

func (h *Host) migrate(cmd *cobra.Command, dryRun bool) error {
	return h.open(cmd.Context(), cmd, nil, nil, false, func(l *Loaded, tracer trace.TracerProvider) error {
		answer := migrated{DryRun: dryRun, Stores: []schemaReport{}}
		err := h.migrateAll(cmd.Context(), l, h.env(l, tracer, migration.MigrateSchemas), dryRun, func(plugin string, m migration.Migration) error {
			if m.Steps == nil {
				m.Steps = []migration.Step{}
			}
			report := schemaReport{plugin, m}
			answer.Stores = append(answer.Stores, report)
			if h.JSON(cmd) {
				return nil
			}
			_, err := io.WriteString(h.opts.Stdout, report.text(dryRun))
			return err
		})
		switch {
		case h.JSON(cmd):
			if wrong := h.WriteJSON(answer); wrong != nil {
				return wrong
			}
		case err == nil && len(answer.Stores) == 0:
			_, err = fmt.Fprintln(h.opts.Stdout, "No store is configured; there is nothing to migrate.")
		}
		return err
	})
}

// migrateAll migrates the stores of all plugins in order, or makes the plan. It calls show for
// each, also for one that failed after its first migrations.
func (h *Host) migrateAll(ctx context.Context, l *Loaded, env pipeline.Env, dryRun bool, show func(plugin string, m migration.Migration) error) error {
	for _, p := range l.Plugins {
		keeps, ok := p.(pipeline.Migratable)
		if !ok {
			continue
		}
		for _, s := range keeps.Schemas(env) {
			// The plan waits for the database. A migration may take longer than any start.
			var m migration.Migration
			err := startWithin(ctx, l, func(ctx context.Context) (err error) {
				m, err = s.Plan(ctx)
				return err
			})
			if err != nil {
				return err
			}
			if !dryRun && len(m.Steps) > 0 {
				if m, err = s.Migrate(ctx); err != nil && len(m.Steps) == 0 {
					return err
				}
			}
			if wrong := show(p.Name(), m); wrong != nil {
				return wrong
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// text is what was done, or would be done.
func (r schemaReport) text(dryRun bool) string {
	switch {
	case r.Newer():
		return fmt.Sprintf("%s: version %d is newer than this binary, which knows versions up to %d; nothing was changed\n", r, r.Before, r.Known)
	case len(r.Steps) == 0:
		// Another process has migrated since the plan.
		return fmt.Sprintf("%s: version %d, up to date\n", r, r.After)
	case dryRun:
		text := fmt.Sprintf("%s: version %d, would become %d\n", r, r.Before, r.After)
		for _, s := range r.Steps {
			text += fmt.Sprintf("  %s\n", s.Name)
		}
		return text
	}
	text := fmt.Sprintf("%s: version %d, now %d\n", r, r.Before, r.After)
	for _, s := range r.Steps {
		text += fmt.Sprintf("  %s  %s\n", s.Name, time.Duration(s.Seconds*float64(time.Second)).Round(time.Millisecond))
	}
	return text
}
