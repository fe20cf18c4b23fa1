// Package sqldb is shared by plugins with tables of their own. It opens the database of a DSN, runs
// migrations, stores times and texts in both dialects, and classifies errors.
//
// A DSN is postgres://… or postgresql://… for PostgreSQL (pgx), or sqlite:/path/of/a/file.
package sqldb
