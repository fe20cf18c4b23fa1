package effects_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
)

// guarded is an API that knows no keys and counts what it does for callers with its token.
type guarded struct {
	header  string // that has the token
	mu      sync.Mutex
	token   string
	refused int
	done    map[string]int // by path
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if strings.TrimPrefix(r.Header.Get(g.header), "Bearer ") != g.token {
		g.refused++
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	g.done[r.URL.Path]++
	w.WriteHeader(http.StatusCreated)
}

func (g *guarded) counts() (done, refused int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.done), g.refused
}

// revoke lets only another token in, from now on.
func (g *guarded) revoke(token string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.token, g.refused = token, 0
}

// The far side refuses the token, or the key in another header, at once, and the file has the new one when nothing is called any more. Calls begin
// again with it, long before the breaker would let one through. What was refused meanwhile is called for once all
// the same, although nothing may be sent again after an unclear answer.
func TestTheTokenOfAFarSideIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	for header, at := range map[string][2]string{
		"Authorization": {"", `, token: "file:%s"`},
		"X-Api-Key":     {`, headers: {x-api-key: "file:%s"}`, ""},
	} {
		t.Run(header, func(t *testing.T) {
			t.Parallel()
			sqldbtest.Each(t, func(t *testing.T, dsn string) { rotateTheToken(t, dsn, header, at) })
		})
	}
}

// rotateTheToken has a far side that wants its token in a header. at are the settings of it, of the request and of the API.
func rotateTheToken(t *testing.T, dsn, header string, at [2]string) {
	file := filepath.Join(t.TempDir(), "token")
	write := func(token string) { require.NoError(t, os.WriteFile(file, []byte(token+"\n"), 0o600)) }
	write("token0")
	g := &guarded{header: header, token: "token0", done: map[string]int{}}
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	named := func(setting string) string { return strings.ReplaceAll(setting, "%s", file) }
	w := newWorld(t, dsn)
	w.start(t, ledger+fmt.Sprintf(`
  effects:
    kinds:
      mail:
        repeat: never
        key: id
        group: to
        request: {path: "/mails/{id}"%s}
        answers: {statuses: {2xx: done, 4xx: failed}}
        api: {url: "API"%s, breaker: {min_calls: 3, failure_ratio: 0.001, open_delay: 10m}}
        effects: {topic: mails, poll_interval: 10ms, max_retries: 1}
`, named(at[0]), named(at[1])), dsn, &far{Server: server})

	mail := func(n int) string { return fmt.Sprintf(`{"id":%d,"to":"customer-%d"}`, n, n%5) }
	n := 0
	load := func() {
		if done, _ := g.counts(); n-done > 100 { // enough waits
			return
		}
		var batch []string
		for range 20 {
			batch = append(batch, mail(n))
			n++
		}
		w.send(t, "mails", batch...)
	}
	reaches := func(what string, ok func(done, refused int) bool) {
		t.Helper()
		require.Eventually(t, func() bool {
			load()
			w.Turn(time.Second) // what was put off is due
			return ok(g.counts())
		}, patience, 5*time.Millisecond, what)
	}
	more := func() {
		t.Helper()
		before, _ := g.counts()
		reaches("mails are sent", func(done, _ int) bool { return done > before+100 })
	}
	for rotation := range 3 {
		more()
		token := fmt.Sprint("token", rotation+1)
		g.revoke(token)
		reaches("nothing is called any more", func(_, refused int) bool { return refused >= 3 })
		write(token)
		more()
	}
	for i := range n {
		require.Equal(t, rules.Success, w.settled(t, "mail", mail(i)).State, i)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Len(t, g.done, n)
	for path, times := range g.done {
		require.Equal(t, 1, times, path)
	}
}

// A client has two names with a file each. Its new token goes into the file that is not in use, while it asks for
// effects. None of them is refused, and a token that was replaced is.
func TestTheTokensOfClientsAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	dsn, dir := sqldbtest.File(t), t.TempDir()
	token := func(n int) string { return fmt.Sprintf("token %d of the shop", n) }
	replace := func(n int) {
		pipelinetest.Replace(t, filepath.Join(dir, fmt.Sprint(n%2)), []byte(token(n)+"\n"))
	}
	replace(0)
	replace(1)
	w := newWorld(t, dsn)
	w.start(t, invoices+fmt.Sprintf(`
    http: {kinds: [parcel], requests_per_minute: 1000000, clients: {shop: {token: "file:%s/0"}, shop-next: {token: "file:%s/1"}}}
  web: {listen: "127.0.0.1:0"}
`, dir, dir), dsn, newFar(t, true))
	var current, sent atomic.Int64
	load := pipelinetest.StartLoad(t, 4, func(int) error {
		body := fmt.Sprintf(`{"key":"%d","payload":{"shop":"de","id":"%[1]d"}}`, sent.Add(1))
		n := int(current.Load())
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+w.web.Addr()+"/once/parcel", strings.NewReader(body))
		if err != nil {
			return err
		}
		r.Header.Set("Authorization", "Bearer "+token(n))
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			return err
		}
		defer answer.Body.Close()
		if answer.StatusCode != http.StatusAccepted {
			return fmt.Errorf("token %d was answered with status %d", n, answer.StatusCode)
		}
		return nil
	})
	for n := 1; n <= 6; n++ {
		replace(n)
		current.Store(int64(n))
		load.More() // nobody has the token before any more
		if n >= 2 {
			require.Equal(t, http.StatusForbidden, w.post(t, "parcel", token(n-2), `{}`).status)
		}
	}
	load.Stop()
	for id := range sent.Load() {
		require.Equal(t, rules.Success, w.settled(t, "parcel", fmt.Sprintf(`{"shop":"de","id":"%d"}`, id+1)).State)
	}
}
