package reconcile

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// A comparison may take minutes, so a file that can't be written is found before.
func TestCheckOfATable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	fresh, older := filepath.Join(dir, "fresh.csv"), filepath.Join(dir, "older.csv")
	require.NoError(t, os.WriteFile(older, []byte("of yesterday\n"), 0o600))
	for _, path := range []string{"", fresh, older} {
		require.NoError(t, (&Table{Path: path}).Check())
	}
	require.NoFileExists(t, fresh, "there is nothing to write yet")
	text, err := os.ReadFile(older)
	require.NoError(t, err)
	require.Equal(t, "of yesterday\n", string(text))

	require.Error(t, (&Table{Path: dir}).Check())
	require.ErrorIs(t, (&Table{Path: filepath.Join(dir, "none", "x.csv")}).Check(), os.ErrNotExist)
}
