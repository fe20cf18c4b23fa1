package deadletter

import (
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/deadletter/store"
	"github.com/millrace-io/millrace/pipeline/app"
)

// age makes each dead letter two hours old.
func (o *office) age() {
	o.t.Helper()
	o.exec(`UPDATE dead_letters SET changed_at = $1`, time.Now().Add(-2*time.Hour))
}

func TestPruneCommand(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, o *office) {
		o.put(order(1), order(2), order(3))
		o.report(0, "replay", order(1).ID, "--why", "fixed")
		o.report(0, "discard", order(2).ID, "--why", "a test's")
		prune := func(want string, args ...string) {
			t.Helper()
			out, code := o.run(append([]string{"prune", "--older-than", "1h", "--why", "old"}, args...)...)
			require.Zero(t, code, out)
			require.Equal(t, want, out)
		}
		prune("0 dead letters deleted.\n")
		o.age()
		prune("2 dead letters would be deleted.\n", "--dry-run")
		prune("{\n  \"deleted\": 1\n}\n", "--state", "discarded", "--json")
		prune("0 dead letters deleted.\n", "--class", "undecodable", "--state", "discarded")
		prune("1 dead letter deleted.\n")
		prune("0 dead letters deleted.\n")
		require.Equal(t, store.Open, o.state(order(3).ID))

		for _, args := range [][]string{
			{"prune", "--older-than", "1h", "--state", "", "--dry-run"}, {"prune", "--why", "old"}, {"prune", "--older-than", "59m", "--why", "old"}, {"prune", "--older-than", "1h"},
			{"prune", "--older-than", "1h", "--why", "old", "--state", "open"}, {"prune", "--older-than", "1h", "--why", "old", order(3).ID},
		} {
			out, code := o.run(args...)
			require.Equal(t, app.ExitUsage, code, "%v: %s", args, out)
		}
	})
}
