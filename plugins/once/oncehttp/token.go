package oncehttp

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"

	"github.com/millrace-io/millrace/pipeline/setting"
)

// tokenLook is the time between two looks for a new token or header, unless one is refused.
const tokenLook = time.Second

// credential is one bearer token and the values of Mapping.Headers, ready to be sent. It is immutable.
type credential struct {
	token   string
	further map[string]string // by header
	header  http.Header       // of every request that uses it
}

func newCredential(token string, further map[string]string) *credential {
	c := &credential{token: token, further: further, header: http.Header{"Accept": {"application/json"}}}
	if token != "" {
		c.header["Authorization"] = []string{"Bearer " + token}
	}
	for name, value := range further {
		c.header[name] = []string{value}
	}
	return c
}

// tokens has the current credential. It is safe for concurrent use.
type tokens struct {
	live    *setting.Live
	headers map[string]*setting.Live // of Mapping.Headers, by their canonical names
	start   time.Time
	next    atomic.Int64 // when to look again, after start
	mu      sync.Mutex   // around a look
	looked  atomic.Bool  // the first look has ended
	current atomic.Pointer[credential]
}

func newTokens(client string, token setting.Secret, headers map[string]setting.Secret, log *slog.Logger) *tokens {
	t := &tokens{live: token.Live("token of "+client, log, checkToken), headers: map[string]*setting.Live{}, start: time.Now()}
	further := map[string]string{}
	for name, value := range headers {
		name = http.CanonicalHeaderKey(name)
		t.headers[name], further[name] = value.Live("header "+name+" of "+client, log, checkHeader), value.Reveal()
	}
	t.current.Store(newCredential(token.Reveal(), further))
	return t
}

// get returns the current credential. One call per tokenLook looks for a new token. The first calls wait for its
// end, because a provided secret may have no earlier value.
func (t *tokens) get(ctx context.Context) *credential {
	now, next := time.Since(t.start), t.next.Load()
	due := int64(now) >= next && t.next.CompareAndSwap(next, int64(now+tokenLook))
	if due || !t.looked.Load() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if due || !t.looked.Load() {
			t.look(ctx)
			t.looked.Store(true)
		}
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

// look takes the current token and headers. The caller must hold t.mu.
func (t *tokens) look(ctx context.Context) {
	token, further := t.live.Value(ctx), make(map[string]string, len(t.headers))
	for name, live := range t.headers {
		further[name] = live.Value(ctx)
	}
	if last := t.current.Load(); token != last.token || !maps.Equal(further, last.further) {
		t.current.Store(newCredential(token, further))
	}
}

// checkToken returns why a token can't be sent in a header.
func checkToken(token string) error {
	if strings.ContainsAny(token, "\r\n\x00") {
		return errors.New("must have one line")
	}
	return nil
}

// checkHeader returns why a value can't be that of a header.
func checkHeader(value string) error {
	if strings.ContainsFunc(value, unicode.IsControl) {
		return errors.New("must have one line")
	}
	return nil
}
