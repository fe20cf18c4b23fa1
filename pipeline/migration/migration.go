// Package migration is what a plugin with tables and the command `migrate` agree on. The plugin names
// its schemas (pipeline.Migratable), and both the command and the service that opens the store bring
// them up to date, so it does not matter which of them comes first:
//
//	plugin --Schemas--> Schema --Plan-----> migrate --dry-run
//	                           --Migrate--> migrate
//	                           --Prepare--> Service.Start, by the Policy of the process
//
// Package plugins/sqldb implements Schema for PostgreSQL and SQLite.
package migration

import (
	"context"
	"fmt"
	"log/slog"
)

// Schema is the tables of one plugin in one database. Plan and Migrate open the database, wait
// until ctx ends while it is unavailable, and close it. An error that wraps pipeline.ErrUnavailable says
// that it was unavailable.
type Schema interface {
	// Plan returns what Migrate would do. It changes nothing, and needs read rights only.
	Plan(ctx context.Context) (Migration, error)
	// Migrate brings the schema up to date. Several processes may call it at once. A schema that is
	// newer than this binary stays unchanged. With an error, Migration holds what was done before
	// it.
	Migrate(ctx context.Context) (Migration, error)
}

// Migration is what was done to a schema, or would be done. Versions are those of the migrations; 0
// is a schema without tables.
type Migration struct {
	Store  string `json:"store"`          // what the tables keep, such as ledger
	Kind   string `json:"kind"`           // of the database: postgres or sqlite
	Schema string `json:"schema"`         // of PostgreSQL, or the path of SQLite's file
	Before int64  `json:"version_before"` // the version that was found
	After  int64  `json:"version_after"`  // of a plan: after all its steps
	Known  int64  `json:"known_version"`  // the newest version of this binary
	Steps  []Step `json:"migrations"`     // in order
}

// Step is one migration that has run, or would run.
type Step struct {
	Version int64   `json:"version"`
	Name    string  `json:"name"`    // its file
	Seconds float64 `json:"seconds"` // 0 in a plan
}

// String names the schema.
func (m Migration) String() string {
	return fmt.Sprintf("%s (%s, %s)", m.Store, m.Kind, m.Schema)
}

// Newer reports whether the schema is newer than this binary.
func (m Migration) Newer() bool { return m.Before > m.Known }

// Policy says what a process does with the schema of a store before it uses the store.
type Policy uint8

// The policies. Migrations only add, so an older binary works on a newer schema. During a rolling
// upgrade instances of two versions run at the same time, and the older one may restart.
const (
	// MigrateSchemas brings an older schema up to date and accepts a newer one: for a process that
	// runs routes.
	MigrateSchemas Policy = iota
	// RequireSchemas refuses an older schema and accepts a newer one: for a process that runs
	// routes without the right to change tables.
	RequireSchemas
	// MatchSchemas refuses an older and a newer schema: for commands.
	MatchSchemas
)

// Prepare does with a schema what the policy says. The error is a *Error when the policy
// refuses the schema.
func (p Policy) Prepare(ctx context.Context, s Schema, log *slog.Logger) error {
	look := s.Plan
	if p == MigrateSchemas {
		look = s.Migrate
	}
	m, err := look(ctx)
	switch {
	case err != nil:
		return err
	case p != MigrateSchemas && len(m.Steps) > 0, p == MatchSchemas && m.Newer():
		return &Error{m}
	case m.Newer():
		log.WarnContext(ctx, "the schema is newer than this binary", "of", m.Store, "schema_version", m.Before, "known_version", m.Known)
	}
	return nil
}

// Error says that a schema does not fit this binary. A newer schema needs a newer binary; an
// older one needs the command `migrate`.
type Error struct {
	// Migration is the plan for the schema.
	Migration
}

// Error names the schema and both versions.
func (e *Error) Error() string {
	if e.Newer() {
		return fmt.Sprintf("%s: this binary knows schema versions up to %d, the database is at %d", e.Migration, e.Known, e.Before)
	}
	return fmt.Sprintf("%s: this binary needs schema version %d, the database is at %d", e.Migration, e.Known, e.Before)
}
