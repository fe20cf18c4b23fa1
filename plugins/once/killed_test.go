package once_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/sqldbtest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/loop"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once"
	"github.com/millrace-io/millrace/plugins/once/ledger/rules"
	"github.com/millrace-io/millrace/plugins/once/oncetest"
)

// The environment of a worker in a process of its own.
const (
	workerDSN    = "ONCE_TEST_DSN"
	workerAPI    = "ONCE_TEST_API"
	workerRepeat = "ONCE_TEST_REPEAT"
	// workerCrowded is the concurrency of a worker with a limit over all instances; empty: without one.
	workerCrowded = "ONCE_TEST_CROWDED"
)

func TestMain(m *testing.M) {
	if os.Getenv(workerDSN) == "" {
		os.Exit(m.Run())
	}
	run := work
	if until, err := strconv.ParseInt(os.Getenv(replayUntil), 10, 64); err == nil {
		run = func() error { return replayAndStand(until) }
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// work calls for effects until it is killed, or its parent has ended.
func work() error {
	o := once.NewPlugin(nil, nil)
	o.Settings().(*once.Config).Ledger.DSN = setting.NewSecret(os.Getenv(workerDSN))
	var r once.Repeat
	for _, r = range []once.Repeat{once.ByKey, once.ByLookup, once.Never} {
		if r.String() == os.Getenv(workerRepeat) {
			break
		}
	}
	change := remote(os.Getenv(workerAPI))
	if n, err := strconv.Atoi(os.Getenv(workerCrowded)); err == nil {
		change = crowded(os.Getenv(workerAPI), n)
	}
	p := newInvoices(o, r, change)
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: fmt.Sprintf("worker-%d", os.Getpid()), Logger: slog.New(slog.DiscardHandler)}, o, p)
	if err != nil {
		return err
	}
	chain := middleware.New(reg, middleware.Options{})
	if err := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap}).Start(context.Background()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin) // ends with the parent
	return err
}

// remote returns a change of the kind, which then calls the API at url. The leases are short, so that those of
// killed workers end soon.
func remote(url string) func(*once.Kind[invoice], *once.KindConfig) {
	call := func(ctx context.Context, method, key string) once.Answer {
		req, err := http.NewRequestWithContext(ctx, method, url+"/"+key, nil)
		if err != nil {
			return once.Answer{Class: once.NotSent, Err: err}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return once.Answer{Err: err} // perhaps it was sent
		}
		defer func() { _ = resp.Body.Close() }()
		switch resp.StatusCode {
		case http.StatusOK:
			return once.IsDone("invoice of " + key)
		case http.StatusNotFound:
			return once.Answer{Class: once.NotDone, Status: resp.StatusCode}
		}
		return once.Answer{Status: resp.StatusCode}
	}
	return func(k *once.Kind[invoice], c *once.KindConfig) {
		k.Call = func(ctx context.Context, a once.Attempt[invoice]) once.Answer {
			return call(ctx, http.MethodPost, a.Idempotency)
		}
		if k.Lookup != nil {
			k.Lookup = func(ctx context.Context, l once.Lookup) once.Answer { return call(ctx, http.MethodGet, l.Idempotency) }
		}
		c.CallTimeout, c.LeaseMargin, c.UnderWay, c.MaxRetries = 400*millisecond, 600*millisecond, 500*millisecond, 50
		c.Retry = pipeline.Backoff{First: 20 * millisecond, Max: 200 * millisecond}
	}
}

// book is the far side: it executes, is slow, and loses answers.
type book struct {
	knowsKeys bool

	mu       sync.Mutex
	executed map[string]int
}

func (b *book) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	key := strings.TrimPrefix(r.URL.Path, "/")
	loop.Sleep(r.Context(), time.Duration(rand.IntN(30))*time.Millisecond) // it arrives, also if its worker is killed
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case r.Method == http.MethodPost && (!b.knowsKeys || b.executed[key] == 0):
		b.executed[key]++
	case r.Method == http.MethodGet && b.executed[key] == 0:
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if rand.IntN(10) == 0 {
		panic(http.ErrAbortHandler) // the answer is lost
	}
}

// Workers in processes of their own are killed while they call. The far side's own book says what happened.
func TestKilledWorkersRepeatNothing(t *testing.T) {
	for _, r := range []once.Repeat{once.ByKey, once.ByLookup, once.Never} {
		t.Run(r.String(), func(t *testing.T) {
			tier.Default(t)
			t.Parallel()
			far := &book{knowsKeys: r == once.ByKey, executed: map[string]int{}}
			api := httptest.NewServer(far)
			t.Cleanup(api.Close)
			dsn := sqldbtest.Schema(t)
			const effects = 150
			w := oncetest.On(t, dsn)
			p := newInvoices(w.Once, r, remote(api.URL))
			w.Start(p) // it is a worker, too, and has made the tables
			var all []invoice
			for i := range effects {
				all = append(all, invoice{Customer: fmt.Sprintf("customer-%d", i%20), Number: fmt.Sprint(i)})
			}
			kill := workersOf(t, dsn, api.URL, r, 3)
			for i, one := range all {
				_, err := p.effects.Enqueue(t.Context(), one)
				require.NoError(t, err)
				if i%12 == 0 {
					kill(i / 12 % 3)
				}
			}
			unknown := 0
			for _, one := range all {
				s := oncetest.Settled(t, p.effects, one.key())
				far.mu.Lock()
				times := far.executed[one.idempotency()]
				far.mu.Unlock()
				require.LessOrEqual(t, times, 1, "%s: %+v", one.key(), s)
				switch s.State {
				case rules.Success:
					require.Equal(t, 1, times, "%s is done in the ledger, and not at the far side", one.key())
				case rules.Unknown:
					unknown++
					require.Equal(t, once.Never, r, "%s: %+v", one.key(), s)
				default:
					require.Fail(t, "no effect ends like that", "%s: %+v", one.key(), s)
				}
			}
			t.Logf("%d effects, %d of them unknown", effects, unknown)
			if r == once.Never {
				require.Positive(t, unknown, "answers are lost, so some outcomes are not known")
			}
		})
	}
}

// workersOf starts n workers. The returned function kills one and starts another in its place.
func workersOf(t *testing.T, dsn, api string, r once.Repeat, n int) (kill func(i int)) {
	t.Helper()
	running := make([]*exec.Cmd, n)
	start := func(i int) {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(os.Environ(), workerDSN+"="+dsn, workerAPI+"="+api, workerRepeat+"="+r.String())
		cmd.Stderr = t.Output()
		_, err := cmd.StdinPipe() // closed when this process ends
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		running[i] = cmd
	}
	stop := func(i int) {
		_ = running[i].Process.Kill() // SIGKILL
		_ = running[i].Wait()
	}
	for i := range n {
		start(i)
	}
	t.Cleanup(func() {
		for i := range n {
			stop(i)
		}
	})
	return func(i int) { stop(i); start(i) }
}
