package web_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/web"
)

// tokens accepts the secrets by the names a, b and so on.
func tokens(secrets ...setting.Secret) *web.NamedTokens {
	named := map[string]setting.Secret{}
	for i, s := range secrets {
		named[string(rune('a'+i))] = s
	}
	return web.NewNamedTokens(func(name string) string { return "tokens." + name }, nil, named)
}

func TestTokens(t *testing.T) {
	t.Parallel()
	nameOf := func(n *web.NamedTokens, authorization string) string {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", http.NoBody)
		r.Header.Set("Authorization", authorization)
		return n.NameOf(r)
	}
	two := tokens(setting.NewSecret("0123456789abcdef"), setting.NewSecret("fedcba9876543210"))
	for authorization, want := range map[string]string{
		"Bearer 0123456789abcdef": "a", "bearer  fedcba9876543210": "b",
		"": "", "Bearer": "", "Bearer ": "", "Bearer 0123456789abcde": "", "Basic 0123456789abcdef": "", "0123456789abcdef": "",
	} {
		require.Equal(t, want, nameOf(two, authorization), authorization)
		require.Empty(t, nameOf(tokens(), authorization), authorization)
	}
}

// One of two tokens is always valid while the other one is replaced, so no client is refused. A new
// token that is too short replaces none.
func TestTokensAreRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(i int, token string) {
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), []byte(token+"\n"), 0o600))
	}
	secrets := make([]setting.Secret, 2)
	token := func(n int) string { return fmt.Sprintf("the token of round %d", n) }
	for i := range secrets {
		write(i, token(i))
		require.NoError(t, secrets[i].UnmarshalText([]byte("file:"+filepath.Join(dir, fmt.Sprint(i)))))
	}
	bearer := tokens(secrets...)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if bearer.NameOf(r) == "" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(server.Close)
	status := func(token string) int {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, http.NoBody)
		if err != nil {
			return 0
		}
		r.Header.Set("Authorization", "Bearer "+token)
		answer, err := server.Client().Do(r)
		if err != nil {
			return 0
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}

	var using sync.RWMutex // held for reading by a request
	current := token(0)
	var good, bad atomic.Int64
	var clients sync.WaitGroup
	quit := make(chan struct{})
	for range 4 {
		clients.Go(func() {
			for {
				select {
				case <-quit:
					return
				default:
				}
				using.RLock()
				if got := status(current); got == http.StatusOK {
					good.Add(1)
				} else {
					bad.Add(1)
				}
				using.RUnlock()
			}
		})
	}
	for n := 1; n <= 20; n++ {
		before := good.Load()
		require.Eventually(t, func() bool { return good.Load() > before+20 || bad.Load() > 0 }, 2*time.Minute, time.Millisecond)
		write(n%2, token(n))
		using.Lock()
		old := current
		current = token(n)
		using.Unlock()
		write((n+1)%2, "short") // is not taken
		require.Equal(t, http.StatusOK, status(old))
		write((n+1)%2, token(n+1000))
		require.Equal(t, http.StatusUnauthorized, status(old))
	}
	close(quit)
	clients.Wait()
	require.Zero(t, bad.Load())
}
