package sqldb

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/operate"
)

// States into which a test can't bring a server that others share.
func TestChecksOfReadings(t *testing.T) {
	t.Parallel()
	const names = "FIRST 1 (b)"
	for name, tc := range map[string]struct {
		check operate.Check
		level operate.Level
		text  string
	}{
		"an old server":           {versionCheck(120005, "12.5"), operate.Fail, "PostgreSQL 12.5"},
		"the oldest":              {versionCheck(130000, "13.0"), operate.OK, "PostgreSQL 13.0"},
		"no pooler":               {poolerCheck(7, []uint32{7, 7, 7}), operate.OK, "no pooler"},
		"a pooler":                {poolerCheck(7, []uint32{8, 8, 8}), operate.Warn, "PgBouncer"},
		"a pooler of transaction": {poolerCheck(7, []uint32{8, 9, 8}), operate.Fail, "another session"},
		"no fsync":                {durability{"off", "on", names, 1}.check(), operate.Fail, "fsync is off"},
		"no wait for the disk":    {durability{"on", "off", names, 1}.check(), operate.Fail, "synchronous_commit is off"},
		"no standby":              {durability{"on", "on", "", 1}.check(), operate.Warn, "none is synchronous"},
		"no wait for the standby": {durability{"on", "local", names, 1}.check(), operate.Warn, "does not wait"},
		"the standby is away":     {durability{"on", "on", names, 0}.check(), operate.Fail, "commits wait for FIRST 1 (b)"},
		"a standby":               {durability{"on", "on", names, 1}.check(), operate.OK, "commits wait for FIRST 1 (b)"},
		"few connections":         {connectionsCheck(10, 97), operate.OK, "10 of 97"},
		"many connections":        {connectionsCheck(80, 97), operate.Warn, "80 of 97"},
		"nearly all connections":  {connectionsCheck(95, 97), operate.Fail, "95 of 97"},
		"a short transaction":     {transactionsCheck(time.Minute, true), operate.OK, "open for 1m0s (of all users)"},
		"an old transaction":      {transactionsCheck(time.Hour, false), operate.Warn, "pg_read_all_stats"},
		"no tables":               {tablesCheck(nil), operate.OK, "0 tables"},
		"dead rows":               {tablesCheck([]tableSize{{"a", 5 << 20, 9, 9}, {"b", 1 << 20, 100, 2_000_000}}), operate.Warn, "b has 2000000 dead rows"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.level, tc.check.Level, tc.check)
			require.Contains(t, tc.check.Text, tc.text)
			require.Equal(t, tc.level == operate.OK, tc.check.Remedy == "")
		})
	}
}
