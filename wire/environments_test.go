//go:build unix

package wire_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/wire"
)

// These files contain payouts. Only their owner may read them, with any umask, also files of an
// earlier version. The test is not parallel: the umask is the process's.
func TestFilesOfTheEmbeddedEnvironmentAreTheOwnersOnly(t *testing.T) {
	before := syscall.Umask(0)
	defer syscall.Umask(before)
	dir := filepath.Join(t.TempDir(), ".millrace")
	for _, old := range []bool{false, true} {
		syscall.Umask(0)
		if old {
			require.NoError(t, os.Chmod(filepath.Join(dir, "ledger.db"), 0o644))
			require.NoError(t, os.Chmod(filepath.Join(dir, "kafka"), 0o755))
		}
		overrides, stop, err := wire.Environments()["embedded"](t.Context(), dir, pipelinetest.Logger(t))
		require.NoError(t, err)
		ledger, err := sqldb.ParseFile(overrides["plugins.promotion.ledger.dsn"].(string))
		require.NoError(t, err)
		db, err := ledger.Open(t.Context(), nil)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS payouts (id INTEGER)")
		require.NoError(t, err)
		seen := ownersOnly(t, dir)
		require.Subset(t, seen, []string{"ledger.db", "ledger.db-wal", "ledger.db-shm", "lock", "kafka"})
		require.NoError(t, db.Close())
		require.NoError(t, stop(t.Context()))
		require.Greater(t, len(ownersOnly(t, dir)), 4)
	}
}

// ownersOnly checks the rights of everything in dir and returns its names.
func ownersOnly(t *testing.T, dir string) (names []string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := entry.Info()
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, "%s: %s", path, info.Mode())
		name, err := filepath.Rel(dir, path)
		names = append(names, name)
		return err
	}))
	return names
}
