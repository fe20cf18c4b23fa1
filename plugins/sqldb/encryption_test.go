package sqldb_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// services is a service file of PostgreSQL.
const services = `
[prod]
host=db.example.com
sslmode=verify-full
[plain]
host=db.example.com
[disabled]
host=db.example.com
sslmode=disable
[here]
host=127.0.0.1
[unset]
host=db.example.com
sslmode=
`

// The check uses the connections of the driver, which also reads the environment and service files.
func TestEncryptionAndPlaceOfDSNs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "services")
	require.NoError(t, os.WriteFile(file, []byte(services), 0o600))
	const (
		sslmode  = "add sslmode=verify-full"
		unread   = "the driver can't read"
		remote   = "postgres://u:p@db.example.com/millrace"
		nowhere  = "postgres:///millrace"
		socket   = "postgres:///millrace?host=/var/run/postgresql"
		loopback = "postgres://u:p@127.0.0.1:5432/millrace"
	)
	type env map[string]string
	for _, tc := range []struct {
		dsn  string
		env  env
		here bool
		want string // empty: it is accepted
	}{
		{dsn: "sqlite:ledger.db", here: true},
		{dsn: loopback, here: true},
		{dsn: "postgres://u:p@localhost/millrace", here: true},
		{dsn: "postgres://u:p@[::1]:5432/millrace", here: true},
		{dsn: "postgres://u:p@[::1]/millrace", here: true},
		{dsn: socket, here: true},
		{dsn: socket, env: env{"PGHOST": "10.0.0.7"}, here: true},
		{dsn: "postgres:///millrace?host=/var/run/postgresql,db-2", want: sslmode},
		{dsn: remote, want: sslmode},
		{dsn: remote + "?sslmode=verify-full"},
		{dsn: remote + "?sslmode=prefer"},
		{dsn: remote + "?sslmode=allow"},
		{dsn: remote + "?sslmode=disable"},
		{dsn: remote + "?sslmode=verify-full&sslmode=", want: sslmode},
		{dsn: remote + "?ssl=true"},
		{dsn: remote + "?sslnegotiation=direct"},
		{dsn: remote + "?sslrootcert=system"},
		{dsn: "postgresql://u:p@10.0.0.7:5432/millrace?application_name=mill", want: sslmode},
		{dsn: "postgres://u:p@127.0.0.1:5432,db-2:5432/millrace", want: sslmode},
		{dsn: "postgres://u:p@127.0.0.1:5432,db-2:5432/millrace?sslmode=require"},
		{dsn: "postgres:///millrace?host=db.example.com", want: sslmode},
		{dsn: "postgres://u:p@127.0.0.1/millrace?host=db.example.com", want: sslmode},

		{dsn: remote, env: env{"PGSSLMODE": "verify-full"}},
		{dsn: remote, env: env{"PGSSLMODE": "disable"}},
		{dsn: remote, env: env{"PGSSLMODE": "prefer"}},
		{dsn: remote + "?sslmode=", env: env{"PGSSLMODE": "verify-full"}, want: sslmode},
		{dsn: nowhere, env: env{"PGHOST": "10.0.0.7"}, want: sslmode},
		{dsn: nowhere, env: env{"PGHOST": "10.0.0.7", "PGSSLMODE": "require"}},
		{dsn: nowhere, env: env{"PGHOST": "127.0.0.1"}, here: true},

		{dsn: nowhere + "?service=prod"},
		{dsn: nowhere, env: env{"PGSERVICE": "prod"}},
		{dsn: nowhere + "?service=plain", want: sslmode},
		{dsn: nowhere, env: env{"PGSERVICE": "plain"}, want: sslmode},
		{dsn: nowhere + "?service=plain&sslmode=verify-full"},
		{dsn: nowhere + "?service=disabled"},
		{dsn: nowhere + "?service=unset", env: env{"PGSSLMODE": "verify-full"}, want: sslmode},
		{dsn: nowhere + "?service=here", here: true},
		{dsn: loopback + "?service=prod", here: true},
		{dsn: nowhere + "?service=absent", want: unread},

		{dsn: "postgres://u:p@127.0.0.1:port/millrace", want: unread},
		{dsn: remote + "?sslmode=whatever", want: unread},
		{dsn: remote + "?sslmode=verify-full&sslrootcert=" + filepath.Join(dir, "absent.pem")},
	} {
		name := tc.dsn
		for key, value := range tc.env {
			name += " " + key + "=" + value
		}
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"PGHOST", "PGSERVICE", "PGSSLMODE", "PGSSLNEGOTIATION", "PGSSLROOTCERT", "PGPORT"} {
				t.Setenv(key, tc.env[key])
			}
			t.Setenv("PGSERVICEFILE", file)
			require.Equal(t, tc.here, sqldb.OnThisMachine(tc.dsn))
			var p setting.Problems
			sqldb.CheckDSN(&p, "dsn", setting.NewSecret(tc.dsn))
			err := p.Err()
			if tc.want == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.NotContains(t, err.Error(), "u:p")
			require.NotContains(t, err.Error(), "millrace")
		})
	}
}
