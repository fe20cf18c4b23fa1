package packaging_test

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// production are the settings that the documentation of the image begins with.
const production = `profile: production
plugins:
  kafka:
    brokers: [kafka:9093]
    sasl: {user: millrace}
  redis:
    addrs: [redis:6380]
  promotion:
    money_api: {url: https://money.example.com}
`

func TestTheContainerValidatesMountedSettings(t *testing.T) {
	t.Parallel()
	c, data := newContainer(t), writable(t)
	require.NoError(t, os.WriteFile(filepath.Join(data, "millrace.yaml"), []byte(production), 0o600))
	require.NoError(t, os.Chown(filepath.Join(data, "millrace.yaml"), 65532, 65532))
	secrets := []string{"KAFKA_PASSWORD=a", "REDIS_PASSWORD=b", "LEDGER_DSN=postgres://millrace@db/millrace?sslmode=verify-full", "MONEY_API_TOKEN=c"}
	p := c.start(t, volumes{data: data}, secrets, "validate", "--config", "/data/millrace.yaml")
	require.Zero(t, p.wait(), "%s", p.output)
	require.Contains(t, p.output.String(), "The settings are valid")

	p = c.start(t, volumes{data: data}, nil, "validate", "--config", "/data/millrace.yaml")
	require.Equal(t, 2, p.wait(), "%s", p.output)
	require.Contains(t, p.output.String(), "KAFKA_PASSWORD")
}

func TestTheContainerPaysADemo(t *testing.T) {
	t.Parallel()
	p := newContainer(t).start(t, volumes{temporary: true}, nil, "demo", "--targets", "50")
	require.Zero(t, p.wait(), "%s", p.output)
	require.Contains(t, p.output.String(), "The books balance")
}

func TestTheContainerRunsAndStops(t *testing.T) {
	t.Parallel()
	c, data := newContainer(t), writable(t)
	p := c.start(t, volumes{data: data}, []string{
		"MILLRACE__PROFILE=embedded", "MILLRACE__DATA_DIR=/data/millrace", "MILLRACE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0", "TZ=Asia/Tokyo",
	})
	p.ready()
	require.NotZero(t, p.inside())
	status, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.inside()), "status"))
	require.NoError(t, err)
	require.Contains(t, string(status), "\nUid:\t65532\t65532\t65532\t65532\n")
	require.Contains(t, string(status), "\nGid:\t65532\t65532\t65532\t65532\n")
	require.Contains(t, string(status), "\nCapEff:\t0000000000000000\n")
	require.Error(t, os.WriteFile(filepath.Join("/proc", strconv.Itoa(p.inside()), "root/file"), nil, 0o600), "its root is read-only, also for root")
	require.Contains(t, p.output.String(), "+09:00\"", "the log has the time zone")

	p.stops()
	require.Contains(t, p.output.String(), `"msg":"stopped"`)
	require.FileExists(t, filepath.Join(data, "millrace/ledger.db"))
	require.NoFileExists(t, filepath.Join(data, "millrace/running.json"), "it ended in order")
}

func TestTheContainerNamesTheFolderThatItCanNotWrite(t *testing.T) {
	t.Parallel()
	c := newContainer(t)
	for name, tc := range map[string]struct {
		env  []string
		args []string
		want string
	}{
		"no data folder": {
			[]string{"MILLRACE__PROFILE=embedded"}, []string{"run"},
			`data folder: mkdir /\.millrace: read-only file system; set data_dir \(MILLRACE__DATA_DIR\) to a folder that this process can write\n`,
		},
		"data in memory, and no folder for the ledger": {
			[]string{"MILLRACE__PROFILE=embedded", "MILLRACE__DATA_DIR=", "MILLRACE__START_TIMEOUT=24h"}, []string{"run"},
			`plugins\.[a-z_.]+\.dsn: .*mkdir \.millrace: read-only file system; name a file that this process may open\n`,
		},
		"no folder for temporary files": {nil, []string{"demo", "--targets", "1"}, `/tmp/millrace-demo-\d+: read-only file system\n`},
		"no settings":                   {nil, nil, `no settings: give --config FILE or --profile NAME`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := c.start(t, volumes{}, tc.env, tc.args...)
			require.Equal(t, 2, p.wait(), "%s", p.output)
			require.Regexp(t, tc.want, p.output.String())
		})
	}
}
