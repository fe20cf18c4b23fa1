package sqldb_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

func TestCheckEncryption(t *testing.T) {
	t.Setenv("PGSSLMODE", "")
	for dsn, ok := range map[string]bool{
		"sqlite:ledger.db":                                              true,
		"postgres://u:p@127.0.0.1:5432/millrace":                        true,
		"postgres://u:p@localhost/millrace":                             true,
		"postgres://u:p@[::1]:5432/millrace":                            true,
		"postgres:///millrace?host=/var/run/postgresql":                 true,
		"postgres://u:p@db.example.com/millrace?sslmode=verify-full":    true,
		"postgres://u:p@db.example.com/millrace?sslmode=disable":        true,
		"postgres://u:p@db.example.com/millrace":                        false,
		"postgresql://u:p@10.0.0.7:5432/millrace?application_name=mill": false,
		"postgres://u:p@127.0.0.1:5432,db-2:5432/millrace":              false,
		"postgres:///millrace?host=db.example.com":                      false,
	} {
		err := sqldb.CheckEncryption(dsn)
		if ok {
			require.NoError(t, err, dsn)
			continue
		}
		require.ErrorContains(t, err, "add sslmode=verify-full", dsn)
		require.NotContains(t, err.Error(), "u:p", dsn)
	}
	t.Setenv("PGSSLMODE", "verify-full")
	require.NoError(t, sqldb.CheckEncryption("postgres://u:p@db.example.com/millrace"))
}
