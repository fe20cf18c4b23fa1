// Package sqldb is what plugins with tables of their own share: which database a DSN names, how it is opened,
// migrations that several instances may start at once, times and texts that both dialects store, and what an error means.
//
// A DSN is postgres://… or postgresql://… for PostgreSQL (pgx), or sqlite:/path/of/a/file.
package sqldb
