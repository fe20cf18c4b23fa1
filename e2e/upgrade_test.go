package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money/simulator"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// before is the version that upgrades start from.
const before = "f355acc5e772c9f7052e69bbfb490b857e2050da"

// binaryBefore builds that version from the history.
func binaryBefore(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	archive := exec.Command("git", "archive", "--format=tar", "--output", filepath.Join(dir, "source.tar"), before)
	archive.Dir = ".."
	if out, err := archive.CombinedOutput(); err != nil {
		// A source archive has no history; a clone, which CI has, must.
		if os.Getenv("CI") == "true" {
			require.NoError(t, err, "version %s is built from the history, which a shallow clone lacks (git fetch --unshallow): %s", before, out)
		}
		t.Skipf("version %s can't be had: %s", before, out)
	}
	source := filepath.Join(dir, "source")
	require.NoError(t, os.Mkdir(source, 0o755))
	out, err := exec.Command("tar", "-xf", filepath.Join(dir, "source.tar"), "-C", source).CombinedOutput()
	require.NoError(t, err, "%s", out)
	path := filepath.Join(dir, "millrace-before")
	build := exec.Command("go", "build", "-o", path, "./cmd/millrace")
	build.Dir = source
	out, err = build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return path
}

// Versions N and N+1 run together on one ledger and one Redis. Three instances of N, on a schema of
// N, are replaced one by one under load, and then rolled back one by one. No payout in flight is
// attempted twice.
func TestUpgradeUnderLoad(t *testing.T) {
	t.Parallel()
	tier.Rest(t, tier.Promotion)
	old := binaryBefore(t)
	w := onServers(t, "redis", simulator.Faults{Latency: 300 * time.Millisecond}).patient()
	w.withoutSchema()
	delete(w.settings, "command_wait") // the old version does not know it
	charged := func(n int) {
		t.Helper()
		require.Eventually(t, func() bool { return w.api.Summary().Executed >= n }, 5*time.Minute, 20*time.Millisecond, "%d charges", n)
	}

	fleet := []*instance{w.startOf(old), w.startOf(old), w.startOf(old)}
	n := targets(t, 12_000)
	w.publish("POINT", n)
	charged(n / 20)
	// The replacements of a slow machine take minutes, and the campaign must last longer.
	require.NoError(t, w.api.SetFaults(simulator.Faults{Latency: time.Second}))
	more := func() {
		t.Helper()
		charged(min(n, w.api.Summary().Executed+n/60))
	}
	for i := range fleet { // forward
		fleet[i].terminate()
		fleet[i] = w.start()
		more()
	}
	for i := range fleet { // and back
		fleet[i].terminate()
		fleet[i] = w.startOf(old)
		more()
	}
	require.Less(t, w.counts("POINT").Paid, int64(n), "the campaign was over before the last instance was replaced: nothing was proved")
	require.NoError(t, w.api.SetFaults(simulator.Faults{Latency: 20 * time.Millisecond}))
	w.awaitSettled("POINT", n, 10*time.Minute)
	w.assertBalanced("POINT", n)
	w.attemptedOnce("POINT")
}

// withoutSchema takes back the migration of the deployment, so that the first instance makes its
// own.
func (w *deployment) withoutSchema() {
	w.t.Helper()
	ctx := w.t.Context()
	conn, err := pgx.Connect(ctx, w.settings["plugins.promotion.ledger.dsn"].(string))
	require.NoError(w.t, err)
	defer func() { _ = conn.Close(ctx) }()
	var schema string
	require.NoError(w.t, conn.QueryRow(ctx, "SELECT current_schema()").Scan(&schema))
	quoted := pgx.Identifier{schema}.Sanitize()
	_, err = conn.Exec(ctx, "DROP SCHEMA "+quoted+" CASCADE; CREATE SCHEMA "+quoted)
	require.NoError(w.t, err)
}
