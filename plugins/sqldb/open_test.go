package sqldb

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Another process opens the file, or opens, changes and closes it, during a read without a lock.
// The read is repeated.
func TestAFileThatIsOpenedMeanwhileIsReadAgain(t *testing.T) {
	t.Parallel()
	for name, closed := range map[string]bool{"it stays open": false, "it is closed again": true} {
		for title, exists := range map[string]bool{"a new file": false, "a file": true} {
			t.Run(title+", "+name, func(t *testing.T) {
				t.Parallel()
				file := File{Path: filepath.Join(t.TempDir(), "a.db")}
				change := func(statement string) func() error {
					db, err := file.Open(t.Context(), nil)
					require.NoError(t, err)
					_, err = db.ExecContext(t.Context(), statement)
					require.NoError(t, err)
					return db.Close
				}
				if exists {
					require.NoError(t, change("CREATE TABLE first (n int)")())
				}
				looks, end := 0, func() error { return nil }
				require.NoError(t, file.undisturbed(func() error {
					if looks++; looks == 1 {
						end = change("CREATE TABLE second (n int)")
						if closed {
							require.NoError(t, end())
							require.NoFileExists(t, file.Path+"-wal")
						}
						return errors.New("file is not a database")
					}
					return nil
				}))
				require.Equal(t, 2, looks)
				if !closed {
					require.NoError(t, end())
				}
			})
		}
	}
	file := File{Path: filepath.Join(t.TempDir(), "a.db")}
	require.NoError(t, os.WriteFile(file.Path, []byte("no database"), 0o600))
	looks := 0
	require.Error(t, file.undisturbed(func() error { looks++; return errors.New("no") }))
	require.Equal(t, 1, looks, "an error of a file that is left alone is the answer")
}
