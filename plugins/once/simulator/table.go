package simulator

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"net/url"
	"os"
	"runtime"
	"sync"

	"github.com/gofrs/flock"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// ErrJournalInUse means that another process has the journal open. Choose another file or stop it.
var ErrJournalInUse = errors.New("the journal is in use by another process")

// The journal is a SQLite file with this application_id ("Mill") and user_version.
const (
	applicationID  = 0x4d696c6c
	journalVersion = 1
)

const schema = `
CREATE TABLE executions (
	number  INTEGER PRIMARY KEY,
	key     TEXT    NOT NULL CHECK (key <> ''),
	path    TEXT    NOT NULL,
	body    BLOB    NOT NULL,
	hash    BLOB    NOT NULL,
	subject TEXT    NOT NULL CHECK (subject <> ''),
	sum     INTEGER NOT NULL,
	receipt TEXT    NOT NULL CHECK (receipt <> ''),
	at      INTEGER NOT NULL CHECK (at > 0)
) STRICT`

// execution is one row of the table.
type execution struct {
	number  uint64
	key     string
	path    string
	body    string
	hash    bodyHash
	subject string // equal to key, or what the body is for
	sum     int64
	receipt string
	at      int64 // Unix milliseconds
}

// bodyHash is the first half of the body's SHA-256.
type bodyHash [16]byte

func (h bodyHash) String() string { return hex.EncodeToString(h[:]) }

func hashOf(body []byte) bodyHash {
	sum := sha256.Sum256(body)
	return bodyHash(sum[:len(bodyHash{})])
}

func newID() string {
	var b [4]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// table is the file of a journal. append is safe for concurrent use.
type table struct {
	lock       *flock.Flock // of a file next to it, so that others may read the table meanwhile
	db         *sql.DB
	conn       *sql.Conn // the only writer
	insert     *sql.Stmt // prepared on conn
	wal        *os.File  // to fsync it
	syncAlways bool

	mu      sync.Mutex // guards what waits for a transaction
	waiting []execution
	entered uint64 // executions that ever waited

	writing sync.Mutex // held during a transaction; guards the fields below
	written uint64     // executions that were committed
	synced  uint64
	broken  error // a failed transaction: nothing more is written
}

// openTable opens or creates the file and loads its executions in their order.
func openTable(ctx context.Context, path string, syncAlways bool, load func(execution)) (*table, error) {
	t := &table{lock: flock.New(path + ".lock"), syncAlways: syncAlways}
	locked, err := t.lock.TryLock()
	if err == nil && !locked {
		err = ErrJournalInUse
	}
	if err != nil {
		return nil, fmt.Errorf("open journal %s: %w", path, err)
	}
	if err := t.open(ctx, path, load); err != nil {
		return nil, errors.Join(fmt.Errorf("open journal %s: %w", path, err), t.release())
	}
	return t, nil
}

func (t *table) open(ctx context.Context, path string, load func(execution)) (err error) {
	synchronous := "normal" // the file of the WAL is then fsynced by sync
	if t.syncAlways {
		synchronous = "full"
	}
	file, err := sqldb.ParseFile("sqlite:" + path + "?synchronous=" + synchronous)
	if err != nil {
		return err
	}
	if t.db, err = file.Open(ctx, url.Values{}); err != nil {
		return err
	}
	if t.conn, err = t.db.Conn(ctx); err != nil {
		return err
	}
	if err := t.prepare(ctx); err != nil {
		return err
	}
	if err := t.load(ctx, load); err != nil {
		return err
	}
	if t.insert, err = t.conn.PrepareContext(ctx, "INSERT INTO executions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"); err != nil {
		return err
	}
	t.wal, err = os.OpenFile(path+"-wal", os.O_CREATE|os.O_RDWR, 0o600)
	return err
}

// prepare creates the table in a new file, and refuses a file that has another content, or is damaged.
func (t *table) prepare(ctx context.Context) error {
	var application, version, tables int64
	var found string
	if err := t.conn.QueryRowContext(ctx, "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version), (SELECT count(*) FROM sqlite_master)").
		Scan(&application, &version, &tables); err != nil {
		return err
	}
	switch {
	case tables == 0 && application == 0:
		_, err := t.conn.ExecContext(ctx, fmt.Sprintf("BEGIN; %s; PRAGMA application_id = %d; PRAGMA user_version = %d; COMMIT", schema, applicationID, journalVersion))
		return err
	case application != applicationID:
		return errors.New("this is the database of another program, and no journal")
	case version != journalVersion:
		return fmt.Errorf("version %d of the journal is not known", version)
	}
	if err := t.conn.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&found); err != nil {
		return fmt.Errorf("the file is damaged: %w", err)
	}
	if found != "ok" {
		return fmt.Errorf("the file is damaged: %s", found)
	}
	return nil
}

func (t *table) load(ctx context.Context, load func(execution)) error {
	rows, err := t.conn.QueryContext(ctx, "SELECT number, key, path, body, hash, subject, sum, receipt, at FROM executions ORDER BY number")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var e execution
		var hash []byte
		if err := rows.Scan(&e.number, &e.key, &e.path, &e.body, &hash, &e.subject, &e.sum, &e.receipt, &e.at); err != nil {
			return fmt.Errorf("the file is damaged after execution %d: %w", e.number, err)
		}
		if e.hash = hashOf([]byte(e.body)); string(hash) != string(e.hash[:]) {
			return fmt.Errorf("the file is damaged: the body of execution %d has another hash", e.number)
		}
		load(e)
	}
	return rows.Err()
}

// append returns when e is committed, and with syncAlways when it is on the disk. Calls that come together share a
// transaction.
func (t *table) append(e execution) error {
	t.mu.Lock()
	t.waiting = append(t.waiting, e)
	t.entered++
	mine := t.entered
	t.mu.Unlock()

	t.writing.Lock()
	defer t.writing.Unlock()
	if t.written >= mine {
		return nil
	}
	if t.broken != nil {
		return t.broken
	}
	runtime.Gosched() // others who are about to come then share the transaction: a sixth more per second
	t.mu.Lock()
	batch, upto := t.waiting, t.entered
	t.waiting = nil
	t.mu.Unlock()
	if err := t.commit(batch); err != nil {
		t.broken = fmt.Errorf("write journal: %w", err)
		return t.broken
	}
	t.written = upto
	if t.syncAlways {
		t.synced = upto
	}
	return nil
}

// commit has no context, because callers that hang up stop nothing.
func (t *table) commit(batch []execution) error {
	ctx := context.Background()
	if len(batch) > 1 {
		if _, err := t.conn.ExecContext(ctx, "BEGIN IMMEDIATE"); err != nil {
			return err
		}
	}
	for _, e := range batch {
		if _, err := t.insert.ExecContext(ctx, e.number, e.key, e.path, []byte(e.body), e.hash[:], e.subject, e.sum, e.receipt, e.at); err != nil {
			return err
		}
	}
	if len(batch) > 1 {
		_, err := t.conn.ExecContext(ctx, "COMMIT")
		return err
	}
	return nil
}

// sync has everything that was committed on the disk when it returns.
func (t *table) sync() error {
	t.writing.Lock()
	upto, done := t.written, t.synced
	t.writing.Unlock()
	if upto == done {
		return nil
	}
	// What is no longer in the WAL was fsynced when SQLite moved it. Without the lock, so that executions continue.
	if err := t.wal.Sync(); err != nil {
		return fmt.Errorf("sync journal: %w", err)
	}
	t.writing.Lock()
	t.synced = max(t.synced, upto)
	t.writing.Unlock()
	return nil
}

func (t *table) close() error {
	if err := errors.Join(t.sync(), t.release()); err != nil {
		return fmt.Errorf("close journal: %w", err)
	}
	return nil
}

// release closes what is open. SQLite then moves the WAL into the file.
func (t *table) release() error {
	var errs []error
	if t.wal != nil {
		errs = append(errs, t.wal.Close())
	}
	if t.insert != nil {
		errs = append(errs, t.insert.Close())
	}
	if t.conn != nil {
		errs = append(errs, t.conn.Close())
	}
	if t.db != nil {
		errs = append(errs, t.db.Close())
	}
	return errors.Join(append(errs, t.lock.Unlock())...)
}
