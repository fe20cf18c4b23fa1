package money_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/handlers/promotion/money"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/once/oncehttp"
)

// guarded is an API that writes down what it charges for callers with one of its tokens, and what it refuses.
type guarded struct {
	mu       sync.Mutex
	accepted []string
	used     map[string]bool
	charged  map[string]int // by key
	refused  int
}

func (g *guarded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	defer g.mu.Unlock()
	token := r.Header.Get("Authorization")
	if !slices.Contains(g.accepted, token) {
		g.refused++
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	g.used[token] = true
	g.charged[r.Header.Get("Idempotency-Key")]++
	_, _ = io.WriteString(w, `{"transactionKey":"t-1"}`)
}

func (g *guarded) accept(tokens ...string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.accepted = nil
	for _, token := range tokens {
		g.accepted = append(g.accepted, "Bearer "+token)
	}
}

// The API takes the old and the new token for a while, and then only the new one. It refuses no charge, and makes
// each once.
func TestTheTokenIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	g := &guarded{used: map[string]bool{}, charged: map[string]int{}}
	s := httptest.NewServer(g)
	t.Cleanup(s.Close)
	file := filepath.Join(t.TempDir(), "token")
	pipelinetest.Replace(t, file, []byte("token0\n"))
	g.accept("token0")
	client := newClient(t, s.URL, func(cfg *oncehttp.Config) {
		require.NoError(t, cfg.Token.UnmarshalText([]byte("file:"+file)))
	})
	var target atomic.Int64
	load := pipelinetest.StartLoad(t, 4, func(int) error {
		if a := client.Charge(t.Context(), charge(fmt.Sprint("POINT:1:", target.Add(1)))); a.Class != money.Paid {
			return fmt.Errorf("%s: %s", a.Class, a.Text)
		}
		return nil
	})
	for n := 1; n <= 3; n++ {
		load.More()
		last, token := fmt.Sprint("token", n-1), fmt.Sprint("token", n)
		g.accept(last, token)
		pipelinetest.Replace(t, file, []byte(token+"\n"))
		load.Until("a charge has the new token", func() bool {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.used["Bearer "+token]
		})
		load.More() // no charge is under way with the old one
		g.accept(token)
	}
	load.More()
	calls := load.Stop()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Zero(t, g.refused)
	require.Len(t, g.charged, int(calls))
	for key, times := range g.charged {
		require.Equal(t, 1, times, key)
	}
}
