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
)

// victim runs a server on the journal at path until it is killed, and prints its URL.
func victim(path string) int {
	s, err := New(Config{JournalPath: path})
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
	answered := map[string]string{} // key → transaction key
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "MONEYSIM_TEST_VICTIM="+path)
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
					a := c.point(1, target, 5)
					if a.err != nil || a.status != 200 {
						return // killed
					}
					mu.Lock()
					answered[fmt.Sprintf("POINT:1:%d", target)] = a.body
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
	require.GreaterOrEqual(t, s.Summary().Charged, len(answered))
	require.Zero(t, s.Summary().DoubleCharged)
	charged := map[string]string{}
	for e, err := range ReadJournal(t.Context(), noKeepAlive(t), s.URL(), Query{Limit: 100}) {
		require.NoError(t, err)
		charged[e.Key] = fmt.Sprintf(`{"transactionKey":"%s","idempotencyKey":"%s"}`, e.TransactionKey, e.Key)
	}
	for key, body := range answered {
		require.Equal(t, body, charged[key])
	}
	var target int
	for key := range answered {
		fmt.Sscanf(key, "POINT:1:%d", &target)
		break
	}
	a := call(s).point(1, target, 5)
	require.Equal(t, "true", a.header.Get("Idempotent-Replayed"), "the key is still known")
}

// write puts text into a new file.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "journal")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestDamagedJournals(t *testing.T) {
	t.Parallel()
	const head = `{"format":"millrace-money-book","version":1,"id":"ab"}` + "\n"
	const first = `{"n":1,"key":"POINT:1:1","type":"POINT","promotionId":1,"promotionSummaryId":1,"targetId":1,"amount":5,"bodyHash":"00112233445566778899aabbccddeeff","at":5}` + "\n"
	t.Run("a torn last line is cut off", func(t *testing.T) {
		t.Parallel()
		for _, torn := range []string{"", "{", first[:len(first)-1], strings.Repeat("\x00", 4096)} {
			path := write(t, head+first+torn)
			b, err := openJournal(path, false, 0)
			require.NoError(t, err)
			require.Equal(t, 1, b.summary().Charged)
			b.claim("POINT:1:2", bodyHash{1}, time.Now(), false)
			number, err := b.execute("POINT:1:2", order{Type: typePoint, Promotion: 1, Target: 2, Value: "7", Hash: bodyHash{1}}, time.Now())
			require.NoError(t, err)
			require.EqualValues(t, 2, number)
			require.NoError(t, b.close())
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, 3, strings.Count(string(text), "\n"))
			require.True(t, strings.HasSuffix(string(text), "}\n"), "nothing is left of what was torn")
			b, err = openJournal(path, false, 0)
			require.NoError(t, err)
			require.Equal(t, 2, b.summary().Charged)
			require.EqualValues(t, 12, b.summary().Amount)
			require.NoError(t, b.close())
		}
	})
	t.Run("a torn first line is begun again", func(t *testing.T) {
		t.Parallel()
		path := write(t, head[:20])
		b, err := openJournal(path, false, 0)
		require.NoError(t, err)
		require.NoError(t, b.close())
		b, err = openJournal(path, false, 0)
		require.NoError(t, err)
		require.NoError(t, b.close())
	})
	for name, c := range map[string]struct{ text, want string }{
		"not a journal":      {"hello\n", "line 1: this is not a journal"},
		"another's JSON":     {"{}\n", "line 1: this is not a journal"},
		"a later version":    {strings.Replace(head, ":1,", ":2,", 1), "line 1: version 2"},
		"a damaged middle":   {head + first + "{\n" + first, "line 3"},
		"no amount":          {head + strings.Replace(first, `"amount"`, `"amounts"`, 1), "line 2: no key, number"},
		"no hash":            {head + strings.Replace(first, `"bodyHash"`, `"bodyHush"`, 1), "line 2: no key, number"},
		"an unknown field":   {head + strings.Replace(first, `"n"`, `"m"`, 1), "line 2"},
		"an unknown type":    {head + strings.Replace(first, `"type":"POINT"`, `"type":"CASH"`, 1), `line 2: unknown type "CASH"`},
		"a damaged hash":     {head + strings.Replace(first, "0011", "zz11", 1), "line 2: bodyHash"},
		"no key":             {head + strings.Replace(first, `"POINT:1:1"`, `""`, 1), "line 2: no key"},
		"a hash that is cut": {head + strings.Replace(first, "0011", "", 1), "line 2: bodyHash"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := write(t, c.text)
			s, err := New(Config{JournalPath: path})
			require.NoError(t, err)
			require.ErrorContains(t, s.Start(t.Context()), c.want)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, c.text, string(text), "it is left as it was")
		})
	}
}

func TestJournalInUse(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "journal")
	s := start(t, Config{JournalPath: path})
	other, err := New(Config{JournalPath: path})
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
	for range 2000 {
		b, err := openJournal(path, false, 0)
		require.NoError(t, err)
		require.NoError(t, b.close())
	}
}

func TestJournalThatCanNotBeOpened(t *testing.T) {
	t.Parallel()
	s, err := New(Config{JournalPath: filepath.Join(t.TempDir(), "no", "such", "folder")})
	require.NoError(t, err)
	require.ErrorContains(t, s.Start(t.Context()), "open journal")
	require.NoError(t, s.Stop(t.Context()))
}

func TestConcurrentAppendsAreWholeLines(t *testing.T) {
	t.Parallel()
	for _, always := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "journal")
		b, err := openJournal(path, always, 0)
		require.NoError(t, err)
		var wg sync.WaitGroup
		for w := range 16 {
			wg.Go(func() {
				for i := range 50 {
					target := w*1000 + i + 1
					key := fmt.Sprintf("POINT:1:%d", target)
					b.claim(key, bodyHash{1}, time.Now(), false)
					if _, err := b.execute(key, order{Type: typePoint, Promotion: 1, Target: int64(target), Value: "1", Hash: bodyHash{1}}, time.Now()); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		require.NoError(t, b.close())
		b, err = openJournal(path, always, 0)
		require.NoError(t, err)
		require.Equal(t, 800, b.summary().Charged)
		require.Zero(t, b.summary().DoubleCharged)
		require.NoError(t, b.close())
	}
}

// A journal that can't be written charges no target, and ends the process with an error.
func TestBrokenJournalChargesNoTarget(t *testing.T) {
	t.Parallel()
	// Otherwise the sync of every second may be the first to find that the file is closed.
	s, err := New(Config{JournalPath: filepath.Join(t.TempDir(), "journal"), SyncAlways: true})
	require.NoError(t, err)
	require.NoError(t, s.Start(t.Context()))
	require.Equal(t, 200, call(s).point(1, 1, 5).status)
	require.NoError(t, s.journal.file.file.Close())
	a := call(s).point(1, 2, 5)
	require.Equal(t, 500, a.status)
	require.Contains(t, a.body, "broken_journal")
	require.ErrorContains(t, <-s.Failed(), "write journal")
	require.Equal(t, 500, call(s).point(1, 3, 5).status)
	require.Equal(t, 1, s.Summary().Charged)
	require.Equal(t, 200, call(s).point(1, 1, 5).status, "what was charged is still known")
	require.ErrorContains(t, s.Stop(t.Context()), "journal")
}
