package oncehttp

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// tokenLook is the time between two looks for a new token, unless one is refused.
const tokenLook = time.Second

// credential is one bearer token, ready to be sent. It is immutable.
type credential struct {
	token  string
	header http.Header // of every request that uses it
}

func newCredential(token string) *credential {
	c := &credential{token: token, header: http.Header{"Accept": {"application/json"}}}
	if token != "" {
		c.header["Authorization"] = []string{"Bearer " + token}
	}
	return c
}

// tokens has the current credential. It is safe for concurrent use.
type tokens struct {
	live    *setting.Live
	start   time.Time
	next    atomic.Int64 // when to look again, after start
	mu      sync.Mutex   // around a look
	current atomic.Pointer[credential]
}

func newTokens(client string, token setting.Secret, log *slog.Logger) *tokens {
	t := &tokens{live: token.Live("token of "+client, log, checkToken), start: time.Now()}
	t.current.Store(newCredential(token.Reveal()))
	return t
}

// get returns the current credential. One call per tokenLook looks for a new token.
func (t *tokens) get(ctx context.Context) *credential {
	now, next := time.Since(t.start), t.next.Load()
	if int64(now) >= next && t.next.CompareAndSwap(next, int64(now+tokenLook)) {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.look(ctx)
	}
	return t.current.Load()
}

// renew is called when used was refused. It reports whether there is another credential: one that
// another call has found since, or a new one.
func (t *tokens) renew(ctx context.Context, used *credential) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.current.Load() == used {
		t.look(ctx)
	}
	return t.current.Load() != used
}

// look takes the current token. The caller must hold t.mu.
func (t *tokens) look(ctx context.Context) {
	if value := t.live.Value(ctx); value != t.current.Load().token {
		t.current.Store(newCredential(value))
	}
}

// checkToken returns why a token can't be sent in a header.
func checkToken(token string) error {
	if strings.ContainsAny(token, "\r\n\x00") {
		return errors.New("must have one line")
	}
	return nil
}
