package deadletter_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
)

// A binary without drivers says what it lacks, wherever it would need a table.
func TestABinaryWithoutDriversStoresNoDeadLetters(t *testing.T) {
	t.Parallel()
	const dsn = "MILLRACE__PLUGINS__DEADLETTER__STORE__DSN=mysql://db"
	run := func(drivers bool, environ []string, args ...string) (code int, said string) {
		k, r := kafka.New(), redis.New()
		d := deadletter.New(k, r)
		if drivers {
			d.StoreIn(sqldb.Databases{})
		}
		var out bytes.Buffer
		code = app.Main(t.Context(), app.Options{
			Name: "millrace", Plugins: []pipeline.Plugin{r, k, d, jobs{stream: "jobs", redis: r, dead: d}}, Args: args,
			Environ: environ, Stdout: &out, Stderr: &out,
		})
		return code, out.String()
	}
	const lacks = "this binary has no drivers for it: its main calls StoreIn(sqldb.Databases{}) on the plugin deadletter to have them"

	code, said := run(false, []string{dsn}, "validate")
	require.Equal(t, app.ExitUsage, code)
	require.Contains(t, said, "plugins.deadletter.store.dsn: must be empty, because "+lacks)
	code, said = run(true, []string{dsn}, "validate")
	require.Equal(t, app.ExitUsage, code)
	require.Contains(t, said, "plugins.deadletter.store.dsn: must begin with postgres://, postgresql:// or sqlite:")
	code, said = run(false, nil, "validate")
	require.Zero(t, code, said)

	code, said = run(false, nil, "deadletter", "list")
	require.Equal(t, app.ExitUsage, code)
	require.Contains(t, said, "the dead letters of the stream jobs-dead need a store to be listed or replayed: "+lacks)

	// Settings that a program made itself were perhaps not validated.
	d := deadletter.New(kafka.New())
	d.Settings().(*deadletter.Config).Store.DSN = setting.NewSecret("sqlite:letters.db")
	_, err := d.About(t.Context(), "payouts", "P:5")
	require.EqualError(t, err, "plugins.deadletter.store.dsn: "+lacks)
}
