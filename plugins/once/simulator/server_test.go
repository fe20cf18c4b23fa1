package simulator

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/once/reconcile"
)

// noKeepAlive returns a client without connections to leak.
func noKeepAlive(*testing.T) *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
}

// eventually waits until s has counted n requests of a kind.
func eventually(t *testing.T, s *Server, k kind, n uint64) {
	t.Helper()
	require.Eventually(t, func() bool { return s.counts[k].Load() == n }, 2*time.Minute, time.Millisecond, "%d × %s", n, k)
}

func TestIdempotency(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := call(s)
	first := c.ask(1, 2, 500)
	require.Equal(t, 200, first.status)
	require.Empty(t, first.header.Get("Idempotent-Replayed"))
	again := c.ask(1, 2, 500)
	require.Equal(t, first.body, again.body)
	require.Equal(t, "true", again.header.Get("Idempotent-Replayed"))
	other := c.ask(1, 2, 501)
	require.Equal(t, 422, other.status)
	require.Contains(t, other.body, "key_reused")
	found := c.do(http.MethodGet, "/v1/invoices/invoice:1:2", "", "")
	require.Equal(t, first.body, found.body)
	missing := c.do(http.MethodGet, "/v1/invoices/invoice:1:3", "", "")
	require.Equal(t, 404, missing.status)
	require.Contains(t, missing.body, "not_found")
	sum := s.Summary()
	require.Equal(t, 1, sum.Executions)
	require.EqualValues(t, 500, sum.Sum)
	for kind, n := range map[string]uint64{"executed": 1, "replayed": 1, "key_reused": 1, "lookup_found": 1, "lookup_missing": 1} {
		require.Equal(t, n, sum.Requests[kind], kind)
	}
}

// A key is charged again after its time, and the journal shows it.
func TestDoubleChargesAreVisible(t *testing.T) {
	t.Parallel()
	t.Run("the key was forgotten", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{KeyTTL: time.Millisecond})
		c := call(s)
		first := c.ask(1, 2, 5)
		require.Eventually(t, func() bool { return c.ask(1, 2, 5).body != first.body }, 2*time.Minute, 5*time.Millisecond)
		require.Equal(t, 1, s.Summary().Doubled)
		require.Equal(t, 1, s.Summary().Executed)
		require.Equal(t, 2, page(t, s, Query{}).Entries[0].Executions)
	})
	t.Run("another key for the same subject", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{})
		c := call(s)
		require.Equal(t, 200, c.ask(1, 2, 5).status)
		require.Zero(t, s.Summary().Doubled)
		require.Equal(t, 200, c.do(http.MethodPost, "/v1/invoices", "invoice:1:99", invoiceBody(1, 2, 5)).status)
		require.Equal(t, 1, s.Summary().Doubled)
		require.Equal(t, 1, s.Summary().DoubleSubjects)
		require.Zero(t, s.Summary().DoubleKeys)
	})
}

func TestFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		faults  Faults
		status  int // 0: no answer
		charged int
		kind    kind
	}{
		"fail":         {Faults{FailRate: 1}, 500, 0, kindFailed},
		"timeout":      {Faults{TimeoutRate: 1}, 0, 1, kindTimedOut},
		"reset":        {Faults{ResetRate: 1}, 0, 1, kindReset},
		"reject":       {Faults{RejectRate: 1}, 422, 0, kindRejected},
		"throttle":     {Faults{ThrottleRate: 1, RetryAfter: 1500 * time.Millisecond}, 429, 0, kindThrottled},
		"silence":      {Faults{Silence: true}, 0, 0, kindSilent},
		"unauthorized": {Faults{Unauthorized: true}, 401, 0, kindUnauthorized},
		"none":         {Faults{}, 200, 1, kindExecuted},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Config{Faults: c.faults})
			var a answer
			if c.kind == kindTimedOut || c.kind == kindSilent {
				a = call(s).hangUp(t, 1, 2, 5, func() bool { return s.counts[c.kind].Load() == 1 })
			} else {
				a = call(s).ask(1, 2, 5)
			}
			require.Equal(t, c.status, a.status)
			require.Equal(t, c.status == 0, a.err != nil)
			eventually(t, s, c.kind, 1)
			require.Equal(t, c.charged, s.Summary().Executed)
			if c.status == 429 {
				require.Equal(t, "2", a.header.Get("Retry-After"), "rounded up")
			}
			// Lookups break the same way, and never charge.
			if c.faults.RejectRate == 0 && c.status != 200 {
				ask := call(s)
				if c.status == 0 {
					ask.timeout = 300 * time.Millisecond
				}
				require.Equal(t, c.status, ask.do(http.MethodGet, "/v1/invoices/invoice:1:2", "", "").status)
			}
			require.Equal(t, c.charged, s.Summary().Executions)

			// Afterwards all is well, and nothing is charged twice.
			require.NoError(t, s.SetFaults(Faults{}))
			require.Equal(t, 200, call(s).ask(1, 2, 5).status)
			require.Equal(t, 1, s.Summary().Executions)
		})
	}
}

// A retry draws again, so in the end every key is paid, once, and a rerun breaks the same calls.
func TestRetriesSucceedInTheEndAndRerunsRepeat(t *testing.T) {
	t.Parallel()
	run := func(reverse bool) (outcomes map[string]string) {
		s := start(t, Config{Faults: Faults{FailRate: .3, ResetRate: .2, ThrottleRate: .1, RejectRate: .1, Seed: 42}})
		outcomes = map[string]string{}
		for i := range 60 {
			target := i + 1
			if reverse {
				target = 60 - i
			}
			key := fmt.Sprint(target)
			for attempt := 0; ; attempt++ {
				require.Less(t, attempt, 60)
				a := call(s).ask(1, target, 5)
				outcomes[key] += fmt.Sprint(a.status, " ")
				if a.status == 200 || a.status == 422 {
					break
				}
			}
		}
		require.Zero(t, s.Summary().Doubled)
		require.Equal(t, 60, s.Summary().Executed+int(s.Summary().Requests["rejected"]))
		return outcomes
	}
	require.Equal(t, run(false), run(true))
}

func TestTheSameKeyAtOnce(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Faults: Faults{Latency: 200 * time.Millisecond}})
	var wg sync.WaitGroup
	var mu sync.Mutex
	outcomes := map[string]int{}
	for range 8 {
		wg.Go(func() {
			a := call(s).ask(1, 2, 5)
			mu.Lock()
			outcomes[fmt.Sprint(a.status, a.header.Get("Idempotent-Replayed"))]++
			mu.Unlock()
		})
	}
	wg.Wait()
	require.Equal(t, 1, outcomes["200"], outcomes)
	require.Equal(t, 7, outcomes["409"]+outcomes["200true"], "%v: who comes too late, on a busy machine, finds it charged", outcomes)
	require.Equal(t, 1, s.Summary().Executions)
}

func TestAKeyThatIsWorkedOn(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Faults: Faults{Latency: time.Hour}})
	first := make(chan answer, 1)
	go func() { first <- caller{s.URL(), time.Minute}.ask(1, 1, 5) }()
	require.Eventually(t, func() bool { return inFlight(s) }, 2*time.Minute, time.Millisecond)
	for range 7 {
		require.Equal(t, 409, call(s).ask(1, 1, 5).status)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, s.Stop(ended))
	require.Error(t, (<-first).err)
	require.Zero(t, s.Summary().Executions)
}

// A request whose caller has gone is still under way: late charges must be possible.
func TestCallerThatHangsUpIsChargedAllTheSame(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Faults: Faults{Latency: 300 * time.Millisecond}})
	for n := 1; ; n++ { // on a busy machine it may be answered before we hang up
		a := call(s).hangUp(t, 1, n, 5, func() bool { return s.attempts() == n })
		require.Eventually(t, func() bool { return s.Summary().Executed == n }, 2*time.Minute, time.Millisecond)
		if a.err != nil {
			break
		}
		require.Less(t, n, 20)
	}
}

func TestDownRefusesConnectionsAndComesUpAtTheSameAddress(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	url := s.URL()
	require.Equal(t, 200, call(s).ask(1, 1, 5).status)
	require.NoError(t, s.SetFaults(Faults{Down: true}))
	require.ErrorContains(t, call(s).ask(1, 2, 5).err, "refused")
	require.NoError(t, s.SetFaults(Faults{Down: true, Seed: 1}), "down stays down")
	require.NoError(t, s.SetFaults(Faults{}))
	require.Equal(t, url, s.URL())
	require.Equal(t, 200, call(s).ask(1, 2, 5).status)

	require.NoError(t, s.SetFaults(Faults{Down: true, DownFor: time.Hour, FailRate: 1}))
	require.Error(t, call(s).ask(1, 3, 5).err)
	require.NoError(t, s.SetFaults(Faults{Down: true, DownFor: 50 * time.Millisecond, FailRate: 1}))
	require.Eventually(t, func() bool { return call(s).ask(1, 3, 5).status == 500 }, 2*time.Minute, 5*time.Millisecond)
	require.Equal(t, Faults{FailRate: 1}, s.Faults())
	require.Error(t, s.SetFaults(Faults{FailRate: 2}))
	require.Equal(t, Faults{FailRate: 1}, s.Faults(), "wrong faults change nothing")
}

func TestStartedDown(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Faults: Faults{Down: true}})
	require.Error(t, call(s).ask(1, 1, 5).err)
	require.NoError(t, s.SetFaults(Faults{}))
	require.Equal(t, 200, call(s).ask(1, 1, 5).status)
}

func TestTheTokenRotatesWithItsFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	replace := func(token string) {
		require.NoError(t, os.WriteFile(file+".new", []byte(token), 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	replace("old")
	var token setting.Secret
	require.NoError(t, token.UnmarshalText([]byte("file:"+file)))
	s := start(t, Config{Token: token})
	status := func(token string) int {
		req, err := http.NewRequest(http.MethodGet, s.URL()+"/v1/invoices/invoice:1:1", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", "Bearer "+token)
		resp, err := noKeepAlive(t).Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		return resp.StatusCode
	}
	require.Equal(t, 404, status("old"))
	replace("new")
	require.Equal(t, 401, status("old"))
	require.Equal(t, 404, status("new"))
}

func TestToken(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Token: setting.NewSecret("tok")})
	require.Equal(t, 401, call(s).ask(1, 1, 5).status)
	for token, want := range map[string]int{"Bearer tok": 404, "Bearer tik": 401, "tok": 401, "Basic tok": 401, "Bearer ": 401} {
		req, err := http.NewRequest(http.MethodGet, s.URL()+"/v1/invoices/invoice:1:1", nil)
		require.NoError(t, err)
		req.Header.Set("Authorization", token)
		resp, err := noKeepAlive(t).Do(req)
		require.NoError(t, err)
		resp.Body.Close()
		require.Equal(t, want, resp.StatusCode, token)
	}
}

func TestLife(t *testing.T) {
	t.Parallel()
	t.Run("stop before start", func(t *testing.T) {
		s, err := New(invoices(), Config{})
		require.NoError(t, err)
		require.Empty(t, s.URL())
		require.Empty(t, page(t, s, Query{}).Entries)
		require.Zero(t, s.Summary().Executed)
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, s.Stop(t.Context()))
		require.Error(t, s.Start(t.Context()))
	})
	t.Run("start twice, stop twice", func(t *testing.T) {
		s := start(t, Config{})
		require.Error(t, s.Start(t.Context()))
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, s.Stop(t.Context()))
	})
	t.Run("a port in use", func(t *testing.T) {
		s := start(t, Config{})
		other, err := New(invoices(), Config{Listen: strings.TrimPrefix(s.URL(), "http://")})
		require.NoError(t, err)
		require.ErrorContains(t, other.Start(t.Context()), "address already in use")
	})
	t.Run("what is silent ends with the server", func(t *testing.T) {
		s := start(t, Config{Faults: Faults{Silence: true}})
		done := make(chan answer)
		go func() { done <- caller{s.URL(), time.Minute}.ask(1, 1, 5) }()
		eventually(t, s, kindSilent, 1)
		require.NoError(t, s.Stop(t.Context()))
		require.Error(t, (<-done).err)
	})
	t.Run("what is slow is waited for", func(t *testing.T) {
		s := start(t, Config{Faults: Faults{Latency: 200 * time.Millisecond}})
		done := make(chan answer)
		go func() { done <- call(s).ask(1, 1, 5) }()
		require.Eventually(t, func() bool { return s.attempts() == 1 }, 2*time.Minute, time.Millisecond) // or it is over already
		require.NoError(t, s.Stop(t.Context()))
		require.Equal(t, 200, (<-done).status)
	})
	t.Run("but not forever", func(t *testing.T) {
		s := start(t, Config{Faults: Faults{Latency: time.Hour}})
		done := make(chan answer)
		go func() { done <- caller{s.URL(), time.Minute}.ask(1, 1, 5) }()
		require.Eventually(t, func() bool { return inFlight(s) }, 2*time.Minute, time.Millisecond)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		require.NoError(t, s.Stop(ctx))
		require.Error(t, (<-done).err)
		require.Zero(t, s.Summary().Executed)
	})
}

// An answer has left before its handler ends: from then on Stop may cut the connection.
func TestAnswersAreFlushed(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	rec := httptest.NewRecorder()
	req := httptest.NewRequest(http.MethodPost, "/v1/invoices", strings.NewReader(invoiceBody(1, 2, 5)))
	req.Header.Set("Idempotency-Key", "invoice:1:2")
	s.ServeHTTP(rec, req)
	require.Equal(t, 200, rec.Code, rec.Body)
	require.True(t, rec.Flushed)
}

// attempts returns how many keys of points are known: each was under way at least.
func (s *Server) attempts() int {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	return len(s.journal.keys)
}

// inFlight reports whether a request for invoice:1:1 is under way.
func inFlight(s *Server) bool {
	s.journal.mu.Lock()
	defer s.journal.mu.Unlock()
	r := s.journal.keys["invoice:1:1"]
	return r != nil && r.inFlight
}

func TestControl(t *testing.T) {
	t.Parallel()
	s := start(t, Config{})
	c := call(s)
	for n := range 25 {
		require.Equal(t, 200, c.ask(1+n%2, n+1, 5).status)
	}

	t.Run("the journal, page by page", func(t *testing.T) {
		read := func(q Query) (keys []string) {
			for e, err := range ReadJournal(t.Context(), noKeepAlive(t), s.URL(), q) {
				require.NoError(t, err)
				keys = append(keys, e.Key)
			}
			require.IsIncreasing(t, keys)
			return keys
		}
		require.Len(t, read(Query{Limit: 4}), 25)
		require.Len(t, read(Query{Filter: ofCustomer("1"), Limit: 5}), 13)
		require.Equal(t, []string{"invoice:2:8"}, read(Query{After: "invoice:2:6"}))
		for e := range ReadJournal(t.Context(), noKeepAlive(t), s.URL(), Query{}) {
			require.NotEmpty(t, e.Receipt)
			require.Equal(t, "/v1/invoices", e.Path)
			require.Equal(t, hashOf([]byte(e.Body)).String(), e.BodyHash)
			require.EqualValues(t, 5, e.Sum)
			break
		}
		for _, bad := range []string{"customer=nobody", "limit=0", "limit=10001", "limit=x", "format=xml"} {
			require.Equal(t, 400, c.do(http.MethodGet, "/_sim/journal?"+bad, "", "").status, bad)
		}
		for _, err := range ReadJournal(t.Context(), noKeepAlive(t), s.URL(), Query{Limit: -1}) {
			require.ErrorContains(t, err, "limit must be")
		}
		_, err := s.Page(Query{Filter: ofCustomer("nobody")})
		require.ErrorContains(t, err, "no such customer")
	})
	t.Run("the journal as a book", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "book.csv")
		require.NoError(t, os.WriteFile(path, []byte(c.do(http.MethodGet, "/_sim/journal?format=book&customer=2", "", "").body), 0o600))
		lines := map[string]reconcile.Line{}
		columns, err := reconcile.ReadBook(path, func(_ reconcile.Columns, l reconcile.Line) error { lines[l.Text] = l; return nil })
		require.NoError(t, err)
		require.Equal(t, reconcile.Columns{ByKey: true, Used: []string{"key", "receipt", "times", "sum"}}, columns)
		require.Len(t, lines, 12)
		require.Equal(t, reconcile.Line{
			Number: lines["invoice:2:8"].Number, Text: "invoice:2:8", Receipt: page(t, s, Query{After: "invoice:2:6"}).Entries[0].Receipt,
			Sum: 5, HasSum: true, Times: 1,
		}, lines["invoice:2:8"])
	})
	t.Run("the summary", func(t *testing.T) {
		var sum Summary
		require.NoError(t, get(t.Context(), noKeepAlive(t), s.URL(), "/_sim/summary", &sum))
		require.Equal(t, 25, sum.Executed)
		require.Equal(t, uint64(25), sum.Requests["executed"])
		require.Len(t, sum.Requests, int(kinds))
		err := get(t.Context(), noKeepAlive(t), s.URL()+"/nowhere", "/_sim/summary", &sum)
		require.ErrorContains(t, err, "404")
		require.ErrorIs(t, err, ErrNotSimulator)
	})
	t.Run("the faults", func(t *testing.T) {
		require.Equal(t, 200, c.do(http.MethodPut, "/_sim/faults", "", `{"latency":"1ms","fail_rate":1}`).status)
		require.Equal(t, Faults{Latency: time.Millisecond, FailRate: 1}, s.Faults())
		require.Equal(t, 500, c.ask(1, 100, 5).status)
		var f Faults
		require.NoError(t, json.Unmarshal([]byte(c.do(http.MethodGet, "/_sim/faults", "", "").body), &f))
		require.Equal(t, s.Faults(), f)
		for _, bad := range []string{"", "{", `{"fail_rate":2}`, `{"failrate":1}`, `{"down":true}`, `{"latency":"-1s"}`} {
			require.Equal(t, 400, c.do(http.MethodPut, "/_sim/faults", "", bad).status, bad)
		}
		require.Equal(t, f, s.Faults())
		require.Equal(t, 200, c.do(http.MethodPut, "/_sim/faults", "", `{"down":true,"down_for":"1h"}`).status)
		require.Eventually(t, func() bool { return c.ask(1, 100, 5).err != nil }, 2*time.Minute, time.Millisecond)
		require.NoError(t, s.SetFaults(Faults{Down: true, DownFor: 50 * time.Millisecond}))
		require.Eventually(t, func() bool { return c.ask(1, 100, 5).status == 200 }, 2*time.Minute, time.Millisecond)
	})
	t.Run("nothing else", func(t *testing.T) {
		for _, path := range []string{"/_sim/", "/_sim/other", "/v1/invoices", "/v2", "/"} {
			require.Equal(t, 404, c.do(http.MethodGet, path, "", "").status, path)
		}
		require.Equal(t, 404, c.do(http.MethodPost, "/_sim/summary", "", "").status)
	})
}

// Another server, an unavailable one, and a simulator without charges have different results.
func TestReadJournalOfAnotherServer(t *testing.T) {
	t.Parallel()
	for answer, want := range map[string]error{
		`{"entries":[]}`: nil, `{}`: ErrNotSimulator, `{"entries":null}`: ErrNotSimulator, `[]`: ErrNotSimulator, "<html>": ErrNotSimulator,
		"404": ErrNotSimulator, "401": ErrNotSimulator, "503": pipeline.ErrUnavailable,
	} {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if status, err := strconv.Atoi(answer); err == nil {
				w.WriteHeader(status)
			}
			_, _ = w.Write([]byte(answer))
		}))
		t.Cleanup(api.Close)
		var got []error
		for _, err := range ReadJournal(t.Context(), api.Client(), api.URL, Query{}) {
			got = append(got, err)
		}
		if want == nil {
			require.Empty(t, got, answer)
			continue
		}
		require.Len(t, got, 1, answer)
		require.ErrorIs(t, got[0], want, answer)
	}
}
