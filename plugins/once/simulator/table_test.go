package simulator

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/sqldb"
)

// victim runs a server on the journal at path until it is killed, and prints its URL.
func victim(path string) int {
	s, err := New(invoices(), Config{JournalPath: path})
	if err == nil {
		err = s.Start(context.Background())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	fmt.Println(s.URL())
	<-s.Failed()
	return 1
}

func TestKilledServerHasLostNothingThatItAnswered(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	answered := map[string]string{} // key → answer
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "MILLRACE_SIMULATOR_TEST_VICTIM="+path)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		cmd.Stderr = os.Stderr
		require.NoError(t, cmd.Start())
		url, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		c := caller{strings.TrimSpace(url), 5 * time.Second}

		var mu sync.Mutex
		var wg sync.WaitGroup
		var n atomic.Int64
		for range 4 {
			wg.Go(func() {
				for {
					target := round*100_000 + int(n.Add(1))
					a := c.ask(1, target, 5)
					if a.err != nil || a.status != 200 {
						return // killed
					}
					mu.Lock()
					answered[fmt.Sprintf("invoice:1:%d", target)] = a.body
					enough := len(answered) >= (round+1)*200
					mu.Unlock()
					if enough {
						cmd.Process.Kill() // of our own child
					}
				}
			})
		}
		wg.Wait()
		require.Error(t, cmd.Wait())
	}
	require.GreaterOrEqual(t, len(answered), 600)

	s := start(t, Config{JournalPath: path})
	require.GreaterOrEqual(t, s.Summary().Executed, len(answered))
	require.Zero(t, s.Summary().Doubled)
	executed := map[string]string{}
	for e, err := range ReadJournal(t.Context(), noKeepAlive(t), s.URL(), Query{Limit: 100}) {
		require.NoError(t, err)
		executed[e.Key] = fmt.Sprintf(`{"id":"%s"}`, e.Receipt)
	}
	for key, body := range answered {
		require.Equal(t, body, executed[key])
	}
	var target int
	for key := range answered {
		fmt.Sscanf(key, "invoice:1:%d", &target)
		break
	}
	a := call(s).ask(1, target, 5)
	require.Equal(t, "true", a.header.Get("Idempotent-Replayed"), "the key is still known")
}

// opened returns a journal on the file at path.
func opened(t *testing.T, path string, syncAlways bool) *journal {
	t.Helper()
	b := newJournal(Config{}, false)
	require.NoError(t, b.open(t.Context(), path, syncAlways))
	return b
}

// executeIn executes a request with the key in a journal.
func executeIn(b *journal, key string) error {
	body := []byte(key)
	b.claim(key, hashOf(body), time.Now(), false)
	_, err := b.execute(execution{key: key, path: "/v1/invoices", body: key, hash: hashOf(body), subject: key, sum: 5}, time.Now())
	b.release(key)
	return err
}

func TestDamagedJournals(t *testing.T) {
	t.Parallel()
	run := func(statements string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			db, err := sqldb.File{Path: path}.Open(t.Context(), nil)
			require.NoError(t, err)
			_, err = db.ExecContext(t.Context(), statements)
			require.NoError(t, err)
			require.NoError(t, db.Close())
		}
	}
	overwrite := func(offset int64, text string) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			require.NoError(t, err)
			_, err = f.WriteAt([]byte(text), offset)
			require.NoError(t, err)
			require.NoError(t, f.Close())
		}
	}
	for name, c := range map[string]struct {
		damage func(t *testing.T, path string)
		want   string
	}{
		"no database":        {overwrite(0, "hello"), "not a database"},
		"a damaged page":     {overwrite(2*4096, strings.Repeat("hello", 700)), "damaged"},
		"a file that is cut": {func(t *testing.T, path string) { require.NoError(t, os.Truncate(path, 4096)) }, "malformed"},
		"another program's":  {run("PRAGMA application_id = 7"), "another program"},
		"a later version":    {run("PRAGMA user_version = 2"), "version 2 of the journal"},
		"a damaged body":     {run("UPDATE executions SET body = X'00' WHERE number = 3"), "the body of execution 3 has another hash"},
		"no key":             {run("PRAGMA ignore_check_constraints = 1; UPDATE executions SET key = '' WHERE number = 3"), "damaged: CHECK constraint failed"},
		"no table":           {run("DROP TABLE executions"), "no such table"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "journal")
			b := opened(t, path, false)
			for n := range 100 {
				require.NoError(t, executeIn(b, fmt.Sprintf("invoice:1:%d", n)))
			}
			require.NoError(t, b.close())
			c.damage(t, path)
			s, err := New(invoices(), Config{JournalPath: path})
			require.NoError(t, err)
			err = s.Start(t.Context())
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "open journal "+path)
		})
	}
	t.Run("the database of another program", func(t *testing.T) {
		t.Parallel()
		path := filepath.Join(t.TempDir(), "journal")
		run("CREATE TABLE a (b)")(t, path)
		require.ErrorContains(t, newJournal(Config{}, false).open(t.Context(), path, false), "another program")
	})
}

// A journal is read by others while it is written.
func TestTheTableIsReadMeanwhile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	s := start(t, Config{JournalPath: path})
	require.Equal(t, 200, call(s).ask(1, 2, 5).status)
	db, err := sqldb.File{Path: path}.Open(t.Context(), nil)
	require.NoError(t, err)
	defer db.Close()
	var key, body string
	require.NoError(t, db.QueryRowContext(t.Context(), "SELECT key, body FROM executions").Scan(&key, &body))
	require.Equal(t, []string{"invoice:1:2", invoiceBody(1, 2, 5)}, []string{key, body})
}

func TestJournalInUse(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	s := start(t, Config{JournalPath: path})
	other, err := New(invoices(), Config{JournalPath: path})
	require.NoError(t, err)
	require.ErrorIs(t, other.Start(t.Context()), ErrJournalInUse)
	require.NoError(t, s.Stop(t.Context()))
	start(t, Config{JournalPath: path})
}

// A process that starts has copies of all open files for a moment. A closed journal must be free.
func TestClosedJournalIsFreeWhileProcessesAreStarted(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				// Without the variable the binary runs no test at all.
				if err := exec.Command(os.Args[0], "-test.run=^$").Run(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	defer wg.Wait()
	defer close(stop)
	for range 200 {
		require.NoError(t, opened(t, path, false).close())
	}
}

func TestJournalThatCanNotBeOpened(t *testing.T) {
	t.Parallel()
	s, err := New(invoices(), Config{JournalPath: filepath.Join(t.TempDir(), "no", "such", "folder")})
	require.NoError(t, err)
	require.ErrorContains(t, s.Start(t.Context()), "open journal")
	require.NoError(t, s.Stop(t.Context()))
}

func TestConcurrentExecutionsAreAllInTheTable(t *testing.T) {
	t.Parallel()
	for _, always := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "journal")
		b := opened(t, path, always)
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for i := range 50 {
					if err := executeIn(b, fmt.Sprintf("invoice:%d:%d", w, i)); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, b.close())
		b = opened(t, path, always)
		require.Equal(t, 800, b.summary().Executed)
		require.Zero(t, b.summary().Doubled)
		require.NoError(t, b.close())
	}
}

// A journal that can't be written executes nothing, and ends the process with an error.
func TestABrokenJournalExecutesNothing(t *testing.T) {
	t.Parallel()
	// Otherwise the sync of every second may be the first to find that the file is closed.
	s, err := New(invoices(), Config{JournalPath: filepath.Join(t.TempDir(), "journal"), SyncAlways: true})
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	require.Equal(t, 200, call(s).ask(1, 1, 5).status)
	require.NoError(t, s.journal.table.conn.Close())
	a := call(s).ask(1, 2, 5)
	require.Equal(t, 500, a.status)
	require.Contains(t, a.body, "broken_journal")
	require.ErrorContains(t, <-s.Failed(), "write journal")
	require.Equal(t, 500, call(s).ask(1, 3, 5).status)
	require.Equal(t, 1, s.Summary().Executed)
	require.Equal(t, 200, call(s).ask(1, 1, 5).status, "what was charged is still known")
	require.ErrorContains(t, s.Stop(t.Context()), "journal")
}
