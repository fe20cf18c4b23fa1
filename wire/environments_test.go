//go:build unix

package wire_test

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/token"
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
		overrides, stop, err := wire.Environments()["embedded"].Start(t.Context(), dir, pipelinetest.Logger(t))
		require.NoError(t, err)
		ledger, err := sqldb.ParseFile(overrides["plugins.promotion.ledger.dsn"].(string))
		require.NoError(t, err)
		db, err := ledger.Open(t.Context(), nil)
		require.NoError(t, err)
		_, err = db.ExecContext(t.Context(), "CREATE TABLE IF NOT EXISTS payouts (id INTEGER)")
		require.NoError(t, err)
		seen := ownersOnly(t, dir)
		require.Subset(t, seen, []string{"ledger.db", "ledger.db-wal", "ledger.db-shm", "lock", "kafka", "token.pem"})
		require.NoError(t, db.Close())
		require.NoError(t, stop(t.Context()))
		require.Greater(t, len(ownersOnly(t, dir)), 4)
	}
}

// A process and the commands that use it have the same key, also after a restart.
func TestTheEmbeddedEnvironmentHasAKeyForTokens(t *testing.T) {
	dir := t.TempDir()
	environment := func() map[string]any {
		overrides, stop, err := wire.Environments()["embedded"].Start(t.Context(), dir, pipelinetest.Logger(t))
		require.NoError(t, err)
		require.NoError(t, stop(context.Background()))
		return overrides
	}
	registered := func(overrides map[string]any) *token.Plugin {
		doc, err := configs.Load(configs.Options{Overrides: overrides})
		require.NoError(t, err)
		p := token.New()
		require.NoError(t, doc.Decode("plugins.token", p.Settings()))
		_, err = pipeline.NewRegistry(pipeline.Env{}, p)
		require.NoError(t, err)
		return p
	}
	first := environment()
	text, err := json.Marshal(first) // running.json
	require.NoError(t, err)
	var command map[string]any
	require.NoError(t, json.Unmarshal(text, &command))
	raw, err := registered(command).Sign(token.Claims{Audience: "a", Expires: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	for _, overrides := range []map[string]any{first, environment()} {
		_, err = registered(overrides).Verify("a", raw)
		require.NoError(t, err)
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
