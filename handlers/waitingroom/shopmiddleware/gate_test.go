package shopmiddleware

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/trace"
)

// room is a waiting room with one key and one lease.
type room struct {
	*httptest.Server
	private ed25519.PrivateKey
	fetches atomic.Int64
	down    atomic.Bool
	by      string // session that uses the lease
	ended   bool
}

func newRoom(t *testing.T) *room {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	r := &room{private: private}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /.well-known/jwks.json", func(w http.ResponseWriter, _ *http.Request) {
		r.fetches.Add(1)
		if r.down.Load() {
			http.Error(w, "down", http.StatusServiceUnavailable)
			return
		}
		set := jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: public, KeyID: "k1", Algorithm: "EdDSA", Use: "sig"}}}
		assert.NoError(t, json.NewEncoder(w).Encode(set))
	})
	mux.HandleFunc("POST /events/{id}/entry/{verb}", func(w http.ResponseWriter, q *http.Request) {
		if q.Header.Get("Authorization") != "Bearer shop" {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"no_shop","message":"not a shop"}`)
			return
		}
		var body struct {
			Token, By, Result string
			Until             int64
		}
		assert.NoError(t, json.NewDecoder(q.Body).Decode(&body))
		switch {
		case r.ended:
			w.WriteHeader(http.StatusGone)
		case q.PathValue("verb") == "extend" && r.by == "":
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, `{"error":"not_verified","message":"verify first"}`)
		case r.by != "" && r.by != body.By:
			w.WriteHeader(http.StatusConflict)
		case q.PathValue("verb") == "finish":
			r.ended = true
		case q.PathValue("verb") == "extend":
			fmt.Fprintf(w, `{"userId":"ann","jti":"7-x","until":%d}`, min(body.Until, 2000000000000+60_000))
		default:
			r.by = body.By
			fmt.Fprint(w, `{"userId":"ann","jti":"7-x","until":2000000000000}`)
		}
	})
	r.Server = httptest.NewServer(mux)
	t.Cleanup(r.Close)
	return r
}

type claims struct {
	Aud string `json:"aud,omitempty"`
	Sub string `json:"sub,omitempty"`
	ID  string `json:"jti,omitempty"`
	Exp int64  `json:"exp,omitempty"`
}

func valid() claims {
	return claims{Aud: "millrace-room:42", Sub: "ann", ID: "7-x", Exp: time.Now().Add(time.Minute).Unix()}
}

func sign(t *testing.T, key any, alg jose.SignatureAlgorithm, kid string, c any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: kid}}, nil)
	require.NoError(t, err)
	raw, err := jwt.Signed(signer).Claims(c).Serialize()
	require.NoError(t, err)
	return raw
}

func newGate(t *testing.T, r *room, change func(*Options)) *Gate {
	t.Helper()
	o := Options{URL: r.URL, ShopToken: "shop", Event: func(q *http.Request) string { return q.PathValue("id") }}
	if change != nil {
		change(&o)
	}
	g, err := New(o)
	require.NoError(t, err)
	t.Cleanup(g.opts.Client.CloseIdleConnections)
	return g
}

// shop returns the status of a request to a shop behind the gate.
func shop(t *testing.T, g *Gate, event, raw string) int {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle("GET /shop/{id}", g.Middleware(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		e, ok := EntryOf(q.Context())
		assert.True(t, ok)
		assert.Equal(t, []string{event, "ann", "7-x"}, []string{e.Event, e.UserID, e.JTI})
	})))
	w := httptest.NewRecorder()
	q := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/shop/"+event+"?token="+raw, http.NoBody)
	mux.ServeHTTP(w, q)
	return w.Code
}

func TestOnlyAValidTokenPasses(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	g := newGate(t, r, nil)
	_, foreign, err := ed25519.GenerateKey(nil)
	require.NoError(t, err)
	with := func(change func(*claims)) string {
		c := valid()
		change(&c)
		return sign(t, r.private, jose.EdDSA, "k1", c)
	}
	good := with(func(*claims) {})
	for name, tc := range map[string]struct {
		raw  string
		want int
	}{
		"valid":                      {good, http.StatusOK},
		"ended within the leeway":    {with(func(c *claims) { c.Exp = time.Now().Add(-10 * time.Second).Unix() }), http.StatusOK},
		"none":                       {"", http.StatusUnauthorized},
		"expired":                    {with(func(c *claims) { c.Exp = time.Now().Add(-time.Minute).Unix() }), http.StatusUnauthorized},
		"without an end":             {with(func(c *claims) { c.Exp = 0 }), http.StatusUnauthorized},
		"without a user":             {with(func(c *claims) { c.Sub = "" }), http.StatusUnauthorized},
		"without a lease":            {with(func(c *claims) { c.ID = "" }), http.StatusUnauthorized},
		"for another event":          {with(func(c *claims) { c.Aud = "millrace-room:43" }), http.StatusForbidden},
		"for watching a job":         {with(func(c *claims) { c.Aud = "millrace-jobs" }), http.StatusForbidden},
		"of another key":             {sign(t, foreign, jose.EdDSA, "k1", valid()), http.StatusUnauthorized},
		"of an unknown key":          {sign(t, foreign, jose.EdDSA, "k2", valid()), http.StatusUnauthorized},
		"with the public key, HS256": {sign(t, []byte(r.private.Public().(ed25519.PublicKey)), jose.HS256, "k1", valid()), http.StatusUnauthorized},
		"with a changed byte":        {good[:len(good)-10] + map[bool]string{true: "y", false: "x"}[good[len(good)-10] == 'x'] + good[len(good)-9:], http.StatusUnauthorized},
		"no token":                   {"abc", http.StatusUnauthorized},
		"without a signature":        {"eyJhbGciOiJub25lIn0.e30.", http.StatusUnauthorized},
	} {
		require.Equal(t, tc.want, shop(t, g, "42", tc.raw), name)
	}
}

// A token of one session is refused in a second one, and after the end. Its signature is still
// valid.
func TestAReplayedTokenIsRefused(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	session := "s1"
	g := newGate(t, r, func(o *Options) { o.Session = func(*http.Request) string { return session } })
	raw := sign(t, r.private, jose.EdDSA, "k1", valid())
	require.Equal(t, http.StatusOK, shop(t, g, "42", raw))
	require.Equal(t, http.StatusOK, shop(t, g, "42", raw), "the same session")
	session = "s2"
	require.Equal(t, http.StatusConflict, shop(t, g, "42", raw))
	require.ErrorIs(t, g.Finish(t.Context(), "42", raw, session, true), ErrUsed)
	require.ErrorIs(t, g.Finish(t.Context(), "42", raw, "", true), ErrUsed)
	require.NoError(t, g.Finish(t.Context(), "42", raw, "s1", true))
	require.ErrorIs(t, g.Finish(t.Context(), "42", raw, "s1", true), ErrEnded)
	require.Equal(t, http.StatusGone, shop(t, g, "42", raw))
	_, err := g.Check(t.Context(), "42", raw)
	require.NoError(t, err, "offline, nothing has changed")
}

// The waiting room decides how long a turn may be.
func TestASessionExtendsItsEntry(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	g := newGate(t, r, nil)
	raw := sign(t, r.private, jose.EdDSA, "k1", valid())
	_, err := g.Extend(t.Context(), "42", raw, "s1", time.Now())
	require.ErrorIs(t, err, ErrNotVerified)
	before, err := g.Verify(t.Context(), "42", raw, "s1")
	require.NoError(t, err)
	_, err = g.Extend(t.Context(), "42", raw, "s2", before.Until)
	require.ErrorIs(t, err, ErrUsed)
	require.NotErrorIs(t, err, ErrNotVerified)
	for asked, want := range map[time.Duration]time.Duration{time.Second: time.Second, time.Hour: time.Minute} {
		after, err := g.Extend(t.Context(), "42", raw, "s1", before.Until.Add(asked))
		require.NoError(t, err)
		require.Equal(t, Entry{Event: "42", UserID: "ann", JTI: "7-x", Until: before.Until.Add(want)}, after)
	}
	require.NoError(t, g.Finish(t.Context(), "42", raw, "s1", true))
	_, err = g.Extend(t.Context(), "42", raw, "s1", before.Until)
	require.ErrorIs(t, err, ErrEnded)
}

// HEAD binds the entry to no session: a program that makes a preview of a link has another one.
func TestHeadHasNoEffect(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	g := newGate(t, r, func(o *Options) { o.Session = func(q *http.Request) string { return q.Method } })
	raw := sign(t, r.private, jose.EdDSA, "k1", valid())
	head := func(raw string) int {
		w := httptest.NewRecorder()
		q := httptest.NewRequestWithContext(t.Context(), http.MethodHead, "/shop/42?token="+raw, http.NoBody)
		q.SetPathValue("id", "42")
		g.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, q)
		return w.Code
	}
	require.Equal(t, http.StatusOK, head(raw))
	require.Equal(t, http.StatusUnauthorized, head("x"))
	require.Equal(t, http.StatusOK, shop(t, g, "42", raw), "of the user's own session")
}

// The credential of the shop is no matter of the user: the shop is at fault.
func TestAWrongShopTokenIsUnavailable(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	g := newGate(t, r, func(o *Options) { o.ShopToken = "wrong" })
	_, err := g.Verify(t.Context(), "42", sign(t, r.private, jose.EdDSA, "k1", valid()), "s1")
	require.ErrorIs(t, err, ErrUnavailable)
	r.Close()
	_, err = g.Verify(t.Context(), "42", "x", "s1")
	require.ErrorIs(t, err, ErrUnavailable)
}

func TestTheKeysAreFetchedRarely(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	g := newGate(t, r, nil)
	good, unknown := sign(t, r.private, jose.EdDSA, "k1", valid()), sign(t, r.private, jose.EdDSA, "k2", valid())
	r.down.Store(true)
	require.Equal(t, http.StatusServiceUnavailable, shop(t, g, "42", good))
	require.Equal(t, http.StatusServiceUnavailable, shop(t, g, "42", good))
	require.EqualValues(t, 1, r.fetches.Load())
	age := func(d time.Duration) {
		g.keys.mu.Lock()
		defer g.keys.mu.Unlock()
		g.keys.latest = time.Now().Add(-d)
	}
	r.down.Store(false)
	age(fetchAgain)
	require.Equal(t, http.StatusOK, shop(t, g, "42", good))
	for range 5 {
		require.Equal(t, http.StatusUnauthorized, shop(t, g, "42", unknown))
	}
	require.EqualValues(t, 2, r.fetches.Load())
	// The waiting room is not needed: older keys are used.
	r.down.Store(true)
	age(keysLife)
	require.Equal(t, http.StatusOK, shop(t, g, "42", good))
	require.EqualValues(t, 3, r.fetches.Load())
}

func TestRequestsWithAKnownKeyDoNotWaitForAFetch(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	g := newGate(t, r, nil)
	good, unknown := sign(t, r.private, jose.EdDSA, "k1", valid()), sign(t, r.private, jose.EdDSA, "k2", valid())
	require.Equal(t, http.StatusOK, shop(t, g, "42", good))
	running, end := make(chan struct{}), make(chan struct{})
	fetch := g.keys.fetch
	g.keys.fetch = func(ctx context.Context) (map[string]ed25519.PublicKey, error) {
		close(running)
		<-end
		return fetch(ctx)
	}
	g.keys.latest = time.Time{}
	errs := make(chan error, 2)
	check := func() {
		_, err := g.Check(t.Context(), "42", unknown)
		errs <- err
	}
	go check()
	<-running
	require.Equal(t, http.StatusOK, shop(t, g, "42", good))
	go check()
	close(end)
	require.ErrorIs(t, <-errs, ErrNoEntry)
	require.ErrorIs(t, <-errs, ErrNoEntry)
}

// The lease may end later than the token, and the shop's clock may be wrong.
func TestTheWaitingRoomDecidesAboutTheEndOfASession(t *testing.T) {
	t.Parallel()
	r := newRoom(t)
	c := valid()
	c.Exp = time.Now().Add(-time.Hour).Unix()
	ended := sign(t, r.private, jose.EdDSA, "k1", c)
	require.Equal(t, http.StatusUnauthorized, shop(t, newGate(t, r, nil), "42", ended))
	g := newGate(t, r, func(o *Options) { o.Session = func(*http.Request) string { return "s1" } })
	require.Equal(t, http.StatusOK, shop(t, g, "42", ended))
	require.Equal(t, http.StatusForbidden, shop(t, g, "43", ended))
	require.Equal(t, http.StatusUnauthorized, shop(t, g, "42", ended+"x"))
	r.ended = true
	require.Equal(t, http.StatusGone, shop(t, g, "42", ended))
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	event := func(*http.Request) string { return "42" }
	for want, o := range map[string]Options{
		"URL must be":           {URL: "rooms.example", Event: event},
		"Event must be set":     {URL: "https://rooms.example"},
		"ShopToken must be set": {URL: "https://rooms.example", Event: event, Session: event},
	} {
		_, err := New(o)
		require.ErrorContains(t, err, want)
	}
}

// The waiting room continues the trace of the shop, and none if the shop has none.
func TestTheTraceOfTheShopGoesOn(t *testing.T) {
	t.Parallel()
	got := make(chan string, 3)
	rooms := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got <- r.Header.Get("Traceparent")
		fmt.Fprint(w, `{}`)
	}))
	t.Cleanup(rooms.Close)
	g, err := New(Options{URL: rooms.URL, ShopToken: "shop", Event: func(*http.Request) string { return "7" }})
	require.NoError(t, err)
	t.Cleanup(g.opts.Client.CloseIdleConnections)
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: trace.TraceID{0xab, 15: 1}, SpanID: trace.SpanID{7: 2}, TraceFlags: trace.FlagsSampled}))
	_, err = g.Verify(ctx, "7", "token", "session")
	require.NoError(t, err)
	_, err = g.Extend(ctx, "7", "token", "session", time.Now())
	require.NoError(t, err)
	require.NoError(t, g.Finish(ctx, "7", "token", "session", true))
	for range cap(got) {
		require.Equal(t, "00-ab000000000000000000000000000001-0000000000000002-01", <-got)
	}
	_, err = g.Verify(t.Context(), "7", "token", "session")
	require.NoError(t, err)
	require.Empty(t, <-got)
}
