package sqldb

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// File is a SQLite database.
type File struct {
	Path        string
	synchronous string
}

// ParseFile reads sqlite:/path and sqlite:///path, with the parameter synchronous (default normal).
func ParseFile(dsn string) (File, error) {
	path, query, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(dsn, "sqlite:"), "//"), "?")
	params, err := url.ParseQuery(query)
	if err != nil {
		return File{}, fmt.Errorf("dsn: %w", err)
	}
	if path == "" || strings.Contains(path, ":memory:") {
		return File{}, errors.New("dsn: sqlite needs the path of a file")
	}
	f := File{Path: path, synchronous: params.Get("synchronous")}
	if f.synchronous == "" {
		f.synchronous = "normal"
	}
	return f, nil
}

// Open creates the folder and opens the file in WAL mode; more are further options of
// modernc.org/sqlite. A statement waits up to ten seconds for another writer. The caller closes the
// database.
func (f File) Open(ctx context.Context, more url.Values) (*sql.DB, error) {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o750); err != nil {
		return nil, err
	}
	// Rights for the owner only; SQLite would use the umask, and copies them to its other files.
	file, err := os.OpenFile(f.Path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := file.Close(); err != nil {
		return nil, err
	}
	options := url.Values{"_busy_timeout": {"10000"}, "_journal_mode": {"WAL"}, "_synchronous": {f.synchronous}}
	maps.Copy(options, more)
	return openSQLite(ctx, f.Path+"?"+options.Encode())
}

func openSQLite(ctx context.Context, name string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", name)
	if err != nil {
		return nil, err
	}
	// If several processes switch a new file to WAL at once, SQLite refuses some without waiting.
	if err := whileContended(ctx, func() error { return db.PingContext(ctx) }); err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// openToRead opens the file read-only. It needs read rights and changes nothing. A file that does
// not exist reads as an empty one. The caller closes the database.
func (f File) openToRead(ctx context.Context) (*sql.DB, error) {
	name := ":memory:"
	switch _, err := os.Stat(f.Path); {
	case err == nil:
		options := url.Values{"_busy_timeout": {"10000"}, "mode": {"ro"}}
		// Without a -wal file no process has the database open, and SQLite would create it.
		if _, err := os.Stat(f.Path + "-wal"); errors.Is(err, fs.ErrNotExist) {
			options.Set("immutable", "1")
		}
		name = "file:" + (&url.URL{Path: f.Path}).EscapedPath() + "?" + options.Encode()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	return openSQLite(ctx, name)
}

// undisturbed runs look, which reads the file by openToRead. It repeats look if another process has
// opened or changed the file meanwhile. openToRead uses no lock while there is no -wal file.
func (f File) undisturbed(look func() error) error {
	for n := 1; ; n++ {
		before := f.state()
		err := look()
		if n == tries || f.state() == before {
			return err
		}
	}
}

// fileState changes when a process opens or changes a database. While it is open, SQLite's locks
// protect a reader, and the other fields do not count.
type fileState struct {
	open bool
	size int64
	at   time.Time
}

func (f File) state() fileState {
	if _, err := os.Stat(f.Path + "-wal"); !errors.Is(err, fs.ErrNotExist) {
		return fileState{open: true}
	}
	info, err := os.Stat(f.Path)
	if err != nil {
		return fileState{size: -1}
	}
	return fileState{size: info.Size(), at: info.ModTime()}
}

// openRetry is the interval of Await.
const openRetry = time.Second

// Await calls open until it succeeds or fails with another error than pipeline.ErrUnavailable. Such
// an error names the setting of the DSN. A server that refuses the user, the password or the
// database ends the wait too, and the error wraps pipeline.ErrUnavailable. So does a file that can't
// be opened for lack of rights or on a read-only file system, because waiting does not change that.
// The log names the database by name.
func Await[T any](ctx context.Context, log *slog.Logger, name, path string, open func() (T, error)) (T, error) {
	for absent := error(nil); ; {
		t, err := open()
		switch {
		case err == nil:
			return t, nil
		case ctx.Err() != nil:
			return t, cmp.Or(absent, err) // this attempt was interrupted
		case refused(err):
			return t, fmt.Errorf("%s: %w: %w", path, pipeline.ErrUnavailable, err)
		case setting.Denied(err):
			return t, fmt.Errorf("%s: %w; name a file that this process may open", path, err)
		case !errors.Is(err, pipeline.ErrUnavailable):
			return t, fmt.Errorf("%s: %w", path, err)
		case absent == nil:
			log.WarnContext(ctx, "waiting for the database", "of", name, logs.Err(err))
		}
		if absent = err; !loop.Sleep(ctx, openRetry) {
			return t, absent
		}
	}
}
