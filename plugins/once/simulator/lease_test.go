package simulator

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Both numbers are those of a caller that breaks its lease, and the far side honours its key.
func TestCallsThatALeaseForbids(t *testing.T) {
	t.Parallel()
	type numbers struct{ overlaps, afterDone int }
	of := func(s *Server) numbers { sum := s.Summary(); return numbers{sum.Overlaps, sum.AfterDone} }
	lookup := func(s *Server) answer { return call(s).do(http.MethodGet, "/v1/invoices/invoice:1:1", "", "") }
	underWay := func(s *Server) (ctx context.Context) {
		s.journal.mu.Lock()
		defer s.journal.mu.Unlock()
		if calls := s.journal.calls["invoice:1:1"]; len(calls) > 0 {
			ctx = calls[0]
		}
		return ctx
	}
	t.Run("one after the other", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{Faults: Faults{FailRate: 1}})
		require.Equal(t, 500, call(s).ask(1, 1, 5).status)
		require.NoError(t, s.SetFaults(Faults{}))
		require.Equal(t, 404, lookup(s).status)
		require.Equal(t, 200, call(s).ask(1, 1, 5).status)
		require.Equal(t, 200, call(s).ask(1, 2, 5).status)
		require.Equal(t, numbers{}, of(s))
		require.Equal(t, 200, call(s).ask(1, 1, 5).status)
		require.Equal(t, 200, lookup(s).status)
		require.Equal(t, numbers{0, 2}, of(s))
		require.Equal(t, 2, page(t, s, Query{}).Entries[0].AfterDone)
		require.Zero(t, page(t, s, Query{}).Entries[1].AfterDone)
	})
	t.Run("at the same time", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{Faults: Faults{TimeoutRate: 1}})
		ctx, hangUp := context.WithCancel(t.Context())
		first := make(chan answer, 1)
		go func() {
			first <- do(ctx, http.MethodPost, s.URL()+"/v1/invoices", "invoice:1:1", invoiceBody(1, 1, 5))
		}()
		eventually(t, s, kindTimedOut, 1)
		require.NoError(t, s.SetFaults(Faults{}))
		require.Equal(t, 200, call(s).ask(1, 1, 5).status)
		require.Equal(t, numbers{1, 0}, of(s), "the first one has no answer")
		require.Equal(t, 200, lookup(s).status)
		require.Equal(t, numbers{2, 1}, of(s))
		require.Equal(t, 2, page(t, s, Query{}).Entries[0].Overlaps)
		require.Equal(t, 200, call(s).ask(1, 2, 5).status)
		hangUp()
		require.Error(t, (<-first).err)
		require.Eventually(t, func() bool { return underWay(s) == nil }, 2*time.Minute, time.Millisecond)
		require.Equal(t, 200, call(s).ask(1, 1, 5).status)
		require.Equal(t, numbers{2, 2}, of(s))
	})
	t.Run("an answer that nobody receives", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{})
		gone, hangUp := context.WithCancel(t.Context())
		hangUp()
		r := httptest.NewRequestWithContext(gone, http.MethodPost, "/v1/invoices", strings.NewReader(invoiceBody(1, 1, 5)))
		r.Header.Set("Idempotency-Key", "invoice:1:1")
		s.ServeHTTP(httptest.NewRecorder(), r)
		require.Equal(t, 1, s.Summary().Executed)
		require.Equal(t, 200, call(s).ask(1, 1, 5).status)
		require.Equal(t, numbers{}, of(s))
	})
	t.Run("during silence", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{Faults: Faults{Silence: true}})
		for range 2 {
			go func() { _ = caller{s.URL(), time.Minute}.ask(1, 1, 5) }()
		}
		eventually(t, s, kindSilent, 2)
		require.Equal(t, numbers{1, 0}, of(s))
		require.NoError(t, s.SetFaults(Faults{}))
		require.Equal(t, 200, call(s).ask(1, 1, 5).status)
		require.Equal(t, numbers{2, 0}, of(s))
		require.Equal(t, 2, page(t, s, Query{}).Entries[0].Overlaps, "also the one before the first charge was looked at")
	})
	t.Run("the first caller is gone", func(t *testing.T) {
		t.Parallel()
		s := start(t, Config{Faults: Faults{Latency: time.Hour}})
		ctx, hangUp := context.WithCancel(t.Context())
		first := make(chan answer, 1)
		go func() {
			first <- do(ctx, http.MethodPost, s.URL()+"/v1/invoices", "invoice:1:1", invoiceBody(1, 1, 5))
		}()
		require.Eventually(t, func() bool { return inFlight(s) }, 2*time.Minute, time.Millisecond)
		hangUp()
		require.Error(t, (<-first).err)
		require.Eventually(t, func() bool { return underWay(s).Err() != nil }, 2*time.Minute, time.Millisecond)
		require.Equal(t, 409, call(s).ask(1, 1, 5).status, "its charge is still under way")
		require.Equal(t, numbers{}, of(s))
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		require.NoError(t, s.Stop(ended))
	})
}
