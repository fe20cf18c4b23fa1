package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// States into which a test can't bring a server, or not in a short time.
func TestChecksOfReadings(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		check operate.Check
		level operate.Level
		text  string
	}{
		"an old server":              {versionCheck("redis_version:6.2.14\r\n"), operate.Fail, "Redis 6.2.14"},
		"Valkey says 7.2.4 of Redis": {versionCheck("redis_version:7.2.4\r\nvalkey_version:8.0.1\r\n"), operate.OK, "Valkey 8.0.1"},
		"no version":                 {versionCheck(""), operate.Warn, "not known"},
		"no policy":                  {evictionCheck("maxmemory:0\r\n"), operate.Warn, "not known"},
		"no memory":                  {memoryCheck("maxmemory:0\r\n"), operate.Warn, "no used_memory"},
		"nearly full":                {memoryCheck("used_memory:80\r\nmaxmemory:100\r\n"), operate.Warn, "80 % of maxmemory"},
		"full":                       {memoryCheck("used_memory:95\r\nmaxmemory:100\r\n"), operate.Fail, "95 % of maxmemory"},
		"the machine is full":        {memoryCheck("used_memory:80\r\nmaxmemory:0\r\ntotal_system_memory:100\r\n"), operate.Fail, "80 % of the machine's"},
		"no snapshot":                {persistenceCheck("aof_enabled:0\r\nrdb_last_bgsave_status:err\r\n"), operate.Fail, "the last snapshot failed"},
		"no append": {persistenceCheck("aof_enabled:1\r\nrdb_last_bgsave_status:ok\r\naof_last_write_status:err\r\naof_last_bgrewrite_status:ok\r\n"),
			operate.Fail, "can't be written"},
		"no persistence told": {persistenceCheck(""), operate.Warn, "no aof_enabled"},
		"no replica is good":  {replicasCheck("role:master\r\nconnected_slaves:1\r\nmin_slaves_good_slaves:0\r\n"), operate.Fail, "refuses writes"},
		"no replicas told":    {replicasCheck("role:master\r\n"), operate.Warn, "no connected_slaves"},
		"far away":            {latencyCheck(20 * time.Millisecond), operate.Warn, "a command takes 20ms"},
		"near":                {latencyCheck(300 * time.Microsecond), operate.OK, "a command takes 300µs"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.level, tc.check.Level, tc.check)
			require.Contains(t, tc.check.Text, tc.text)
			require.Equal(t, tc.level == operate.OK, tc.check.Remedy == "")
		})
	}
}
