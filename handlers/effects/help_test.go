package effects_test

import (
	"bytes"
	"database/sql"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/effects"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
	"github.com/millrace-io/millrace/plugins/sse"
	"github.com/millrace-io/millrace/plugins/token"
	"github.com/millrace-io/millrace/plugins/web"
)

const patience = 2 * time.Minute

// world is the plugin with the settings of a file, a ledger, topics in memory and a public server.
type world struct {
	*oncetest.World
	web     *web.Plugin
	plugins []pipeline.Plugin // after once
}

func newWorld(t testing.TB, dsn string) *world {
	t.Helper()
	tokens, streams := token.New(), sse.New()
	w := &world{World: oncetest.On(t, dsn), web: web.New(tokens, streams)}
	w.plugins = []pipeline.Plugin{tokens, streams, w.web, effects.New(w.Once, w.web), newParcels(w.Once)}
	return w
}

// validate reads a settings file into the plugins, and returns what the command validate prints.
func (w *world) validate(t testing.TB, settings string) (code int, printed string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "mill.yaml")
	require.NoError(t, os.WriteFile(file, []byte(settings), 0o600))
	var out bytes.Buffer
	code = app.Main(t.Context(), app.Options{
		Name: "mill", Plugins: w.all(),
		Args: []string{"validate", "--config", file}, Environ: []string{}, Stdout: &out, Stderr: &out,
	})
	return code, strings.ReplaceAll(out.String(), file, "mill.yaml")
}

func (w *world) all() []pipeline.Plugin { return append([]pipeline.Plugin{w.Once}, w.plugins...) }

// start runs the plugins with a settings file in which DSN and API stand for the ledger and a far side. The
// file is read by other plugins, because validate registers those that it reads it into.
func (w *world) start(t testing.TB, settings, dsn string, api *far) {
	t.Helper()
	read := newWorld(t, dsn)
	code, printed := read.validate(t, strings.NewReplacer("DSN", fmt.Sprintf("%q", dsn), "API", api.URL).Replace(settings))
	require.Zero(t, code, printed)
	from := read.all()
	for i, p := range w.all() {
		if c, ok := p.(pipeline.Configurable); ok {
			reflect.ValueOf(c.Settings()).Elem().Set(reflect.ValueOf(from[i].(pipeline.Configurable).Settings()).Elem())
		}
	}
	w.Start(w.plugins...)
}

// state is what is known of the effect of a payload.
func (w *world) state(t testing.TB, kind, payload string) once.State {
	t.Helper()
	asked, err := w.Once.Ask(t.Context(), kind, once.Ask{Payload: []byte(payload)})
	require.NoError(t, err)
	require.Equal(t, once.Known, asked.Accepted, "it was accepted before")
	return asked.State
}

// send sends records to a topic, and waits until each was accepted or is a dead letter.
func (w *world) send(t testing.TB, topic string, payloads ...string) {
	t.Helper()
	feed := w.Topics.Feed(topic)
	feed.SendPayloads(payloads...)
	for range payloads {
		select {
		case <-feed.Settled():
		case <-time.After(patience):
			require.FailNow(t, "the records were not handled")
		}
	}
}

// settled turns the clock until the effect of a payload is settled.
func (w *world) settled(t testing.TB, kind, payload string) (s once.State) {
	t.Helper()
	require.Eventually(t, func() bool {
		asked, err := w.Once.Ask(t.Context(), kind, once.Ask{Payload: []byte(payload)})
		require.NotEqual(t, once.Fresh, asked.Accepted, "it was not accepted before")
		s = asked.State
		w.TurnTo(s)
		return err == nil && s.State.Settled()
	}, patience, 5*time.Millisecond, "%s %s is not settled", kind, payload)
	return s
}

// call is one request that the far side got.
type call struct {
	method, path, key, body string
	header                  http.Header
}

// reply is what the far side does with one request.
type reply struct {
	execute bool // it does the effect, unless it knows the key
	drop    bool // it closes the connection without an answer
	status  int
	body    string
}

// far is the API that is called. Without a reply it executes and answers 201 with a receipt. A GET finds
// what was executed at the path.
type far struct {
	*httptest.Server
	keys bool // it knows idempotency keys

	mu      sync.Mutex
	replies map[string][]reply // by path
	calls   []call
	done    map[string]int // executions by path and key
}

func newFar(t testing.TB, keys bool) *far {
	t.Helper()
	f := &far{keys: keys, replies: map[string][]reply{}, done: map[string]int{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *far) next(path string, all ...reply) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replies[path] = append(f.replies[path], all...)
}

func (f *far) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	c := call{method: r.Method, path: r.URL.Path, key: r.Header.Get("Request-Id"), body: string(body), header: r.Header}
	f.mu.Lock()
	f.calls = append(f.calls, c)
	effect := c.path
	if f.keys {
		effect = c.key
	}
	do := reply{execute: true, status: http.StatusCreated, body: `{"invoice":{"id":71}}`}
	if r.Method == http.MethodGet {
		do = reply{status: http.StatusNotFound}
		if f.done[effect] > 0 {
			do = reply{status: http.StatusOK, body: `{"id":"found"}`}
		}
	}
	if told := f.replies[r.Method+" "+c.path]; len(told) > 0 {
		do, f.replies[r.Method+" "+c.path] = told[0], told[1:]
	}
	if do.execute && !(f.keys && f.done[effect] > 0) {
		f.done[effect]++
	}
	f.mu.Unlock()
	if do.drop {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(do.status)
	_, _ = io.WriteString(w, do.body)
}

func (f *far) executed(effect string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.done[effect]
}

func (f *far) requests(method, path string) (all []call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, c := range f.calls {
		if c.method == method && c.path == path {
			all = append(all, c)
		}
	}
	return all
}

// cancel cancels a group, as the command does.
func (w *world) cancel(t testing.TB, kind, group string) {
	t.Helper()
	for _, a := range w.Once.Operations().Actions {
		if a.Name == "once cancel" {
			_, err := a.Do(t.Context(), nil, operate.Input{"kind": {kind}, "group": {group}}, operate.Use{Who: "ann", Why: "a test"})
			require.NoError(t, err)
			return
		}
	}
	require.Fail(t, "there is no such command")
}

// lock takes the lock of a SQLite ledger, so that it answers nobody else until it is released.
func lock(t testing.TB, dsn string) (release func()) {
	t.Helper()
	db, err := sql.Open("sqlite", strings.TrimPrefix(dsn, "sqlite:"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = db.Close() })
	c, err := db.Conn(t.Context())
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		_, err := c.ExecContext(t.Context(), "BEGIN IMMEDIATE")
		return err == nil
	}, patience, time.Millisecond)
	return func() {
		_, err := c.ExecContext(t.Context(), "ROLLBACK")
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
}

// breakLedger takes the effects away from a ledger, so that it answers nobody.
func breakLedger(t testing.TB, dsn string) {
	t.Helper()
	driver, name := "pgx", dsn
	if file, lite := strings.CutPrefix(dsn, "sqlite:"); lite {
		driver, name = "sqlite", file
	}
	db, err := sql.Open(driver, name)
	require.NoError(t, err)
	defer db.Close()
	require.Eventually(t, func() bool {
		_, err := db.ExecContext(t.Context(), "ALTER TABLE once_effects RENAME TO once_effects_away")
		return err == nil
	}, patience, time.Millisecond)
}
