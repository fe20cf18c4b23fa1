package web_test

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/web"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// identity is the sign-in of a site.
type identity struct {
	t    testing.TB
	keys map[string]ed25519.PrivateKey
}

func newIdentity(t testing.TB, kids ...string) *identity {
	i := &identity{t, map[string]ed25519.PrivateKey{}}
	for _, kid := range kids {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		require.NoError(t, err)
		i.keys[kid] = key
	}
	return i
}

func (i *identity) set(kids ...string) []byte {
	var set jose.JSONWebKeySet
	for _, kid := range kids {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: i.keys[kid].Public(), KeyID: kid})
	}
	text, err := json.Marshal(set)
	require.NoError(i.t, err)
	return text
}

func (i *identity) token(kid string, change func(*jwt.Claims)) string {
	return signed(i.t, jose.SigningKey{Algorithm: jose.EdDSA, Key: i.keys[kid]}, map[jose.HeaderKey]any{"kid": kid}, change)
}

func signed(t testing.TB, key jose.SigningKey, headers map[jose.HeaderKey]any, change func(*jwt.Claims)) string {
	t.Helper()
	c := jwt.Claims{Issuer: "https://id.example", Audience: jwt.Audience{"site"}, Subject: "u1", Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour))}
	if change != nil {
		change(&c)
	}
	signer, err := jose.NewSigner(key, &jose.SignerOptions{ExtraHeaders: headers})
	require.NoError(t, err)
	raw, err := jwt.Signed(signer).Claims(c).Serialize()
	require.NoError(t, err)
	return raw
}

func (i *identity) file(kids ...string) string {
	file := filepath.Join(i.t.TempDir(), "jwks.json")
	require.NoError(i.t, os.WriteFile(file, i.set(kids...), 0o600))
	return file
}

func signInRig(t testing.TB, auth signin.Config) *rig {
	t.Helper()
	auth.Issuer, auth.Audience = "https://id.example", "site"
	return start(t, func(c *web.Config) { c.Auth = auth }, func(s *site) {
		s.web.Handle("GET /users", user(), web.Users())
		s.web.Handle("GET /all", user())
	})
}

func TestSignedInUsers(t *testing.T) {
	t.Parallel()
	id, other := newIdentity(t, "a"), newIdentity(t, "a")
	r := signInRig(t, signin.Config{JWKSFile: id.file("a")})
	good := id.token("a", nil)
	require.Equal(t, "u1", r.send("GET", "/users", "Authorization", "Bearer "+good).body)
	require.Equal(t, "u1", r.send("GET", "/users", "Authorization", "bearer "+good).body)
	require.Equal(t, "u1", r.send("GET", "/users?token="+good).body, "an EventSource sends no headers")
	require.Equal(t, "u1", r.send("GET", "/all?token="+good).body)

	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	public := id.keys["a"].Public().(ed25519.PublicKey)
	kid := map[jose.HeaderKey]any{"kid": "a"}
	for name, raw := range map[string]string{
		"none":                      "",
		"not a token":               "secret",
		"another issuer":            id.token("a", func(c *jwt.Claims) { c.Issuer = "https://evil.example" }),
		"another audience":          id.token("a", func(c *jwt.Claims) { c.Audience = jwt.Audience{"shop"} }),
		"ended":                     id.token("a", func(c *jwt.Claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Minute)) }),
		"no end":                    id.token("a", func(c *jwt.Claims) { c.Expiry = nil }),
		"no user":                   id.token("a", func(c *jwt.Claims) { c.Subject = "" }),
		"another key":               other.token("a", nil),
		"HS256 with the public key": signed(t, jose.SigningKey{Algorithm: jose.HS256, Key: []byte(public)}, kid, nil),
		"another algorithm":         signed(t, jose.SigningKey{Algorithm: jose.ES256, Key: curve}, kid, nil),
		"crit":                      signed(t, jose.SigningKey{Algorithm: jose.EdDSA, Key: id.keys["a"]}, map[jose.HeaderKey]any{"kid": "a", "b64": true, "crit": []string{"b64"}}, nil),
		"no kid":                    signed(t, jose.SigningKey{Algorithm: jose.EdDSA, Key: id.keys["a"]}, nil, nil),
		"too long":                  id.token("a", func(c *jwt.Claims) { c.ID = strings.Repeat("x", 8<<10) }),
		"unknown kid":               newIdentity(t, "b").token("b", nil),
	} {
		require.Equal(t, http.StatusUnauthorized, r.send("GET", "/users", "Authorization", "Bearer "+raw).status, name)
		require.Equal(t, "nobody", r.send("GET", "/all", "Authorization", "Bearer "+raw).body, name)
	}
}

// The file of the keys is read again when it changes, so a sign-in rotates its keys without a restart of the gateways.
// What can't be used, as when a copy is not complete, changes nothing.
func TestKeysOfAFileAreReadAgain(t *testing.T) {
	t.Parallel()
	id := newIdentity(t, "a", "b")
	file := id.file("a")
	r := signInRig(t, signin.Config{JWKSFile: file})
	write := func(text []byte) { // as a rotating tool does, in one step
		require.NoError(t, os.WriteFile(file+".new", text, 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	is := func(a, b int) {
		t.Helper()
		require.Equal(t, a, r.send("GET", "/users", "Authorization", "Bearer "+id.token("a", nil)).status)
		require.Equal(t, b, r.send("GET", "/users", "Authorization", "Bearer "+id.token("b", nil)).status)
	}
	is(http.StatusOK, http.StatusUnauthorized)
	write(id.set("a", "b"))
	is(http.StatusOK, http.StatusOK)
	for _, unusable := range []string{"", `{"keys":[`, `{"keys":[]}`, `{"keys":["odd"]}`} {
		write([]byte(unusable))
		is(http.StatusOK, http.StatusOK)
	}
	require.NoError(t, os.Remove(file))
	is(http.StatusOK, http.StatusOK)
	write(id.set("b"))
	is(http.StatusUnauthorized, http.StatusOK)
}

// oddKeys are keys that the sign-in of a site may have besides those of its tokens.
func oddKeys() map[string]string {
	return map[string]string{
		"a type that is not known":  `{"kty":"AKP","alg":"ML-DSA-44","kid":"odd","pub":"AAAA"}`,
		"a curve that is not known": `{"kty":"EC","crv":"secp256k1","kid":"odd","x":"AA","y":"AA"}`,
		"a curve of encryption":     `{"kty":"OKP","crv":"X25519","kid":"odd","x":"3p7bfXt9wbTTW2HC7OQ1Nz-DQ8hbeGdNrfx-FG-IK08"}`,
		"RSA without its numbers":   `{"kty":"RSA","kid":"odd","n":"","e":""}`,
		"a bad certificate":         `{"kty":"RSA","kid":"odd","n":"AQAB","e":"AQAB","x5c":["nonsense"]}`,
		"a shared secret":           `{"kty":"oct","kid":"odd","k":"c2VjcmV0"}`,
		"no object":                 `"odd"`,
	}
}

// One key that can't be used refuses no user of the others.
func TestOddKeysAreSkipped(t *testing.T) {
	t.Parallel()
	for name, odd := range oddKeys() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := newIdentity(t, "a")
			good := strings.TrimSuffix(strings.TrimPrefix(string(id.set("a")), `{"keys":[`), `]}`)
			set := `{"keys":[` + odd + `,` + good + `,` + odd + `]}`
			file := filepath.Join(t.TempDir(), "jwks.json")
			require.NoError(t, os.WriteFile(file, []byte(set), 0o600))
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, set) }))
			defer server.Close()
			for _, auth := range []signin.Config{{JWKSFile: file}, {JWKSURL: server.URL}} {
				r := signInRig(t, auth)
				require.Equal(t, "u1", r.send("GET", "/users", "Authorization", "Bearer "+id.token("a", nil)).body)
				r.web.AllowFetch()
				unknown := newIdentity(t, "c").token("c", nil)
				require.Equal(t, http.StatusUnauthorized, r.send("GET", "/users", "Authorization", "Bearer "+unknown).status)
				require.Equal(t, 1, strings.Count(r.log.String(), "keys of the sign-in skipped"), "also after another fetch")
				require.Contains(t, r.log.String(), `level=WARN msg="keys of the sign-in skipped" plugin=web keys="keys[0] (kid `)
				if odd[0] == '{' {
					require.Contains(t, r.log.String(), `kid \"odd\", kty `)
				}
			}
		})
	}
}

// The keys of another address are not believed.
func TestKeysAreNotFetchedOverARedirect(t *testing.T) {
	t.Parallel()
	id := newIdentity(t, "a")
	var asked atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		_, _ = w.Write(id.set("a"))
	}))
	defer other.Close()
	first := httptest.NewServer(http.RedirectHandler(other.URL+"/secret", http.StatusFound))
	defer first.Close()
	r := signInRig(t, signin.Config{JWKSURL: first.URL})
	a := r.send("GET", "/users", "Authorization", "Bearer "+id.token("a", nil))
	require.Equal(t, http.StatusServiceUnavailable, a.status)
	require.Zero(t, asked.Load())
	require.Contains(t, r.log.String(), "a redirect to "+other.URL+" is not followed")
	require.NotContains(t, r.log.String(), "secret")
}

func TestAKeySetWithoutPublicKeysIsRefused(t *testing.T) {
	t.Parallel()
	for _, odd := range oddKeys() {
		file := filepath.Join(t.TempDir(), "jwks.json")
		require.NoError(t, os.WriteFile(file, []byte(`{"keys":[`+odd+`]}`), 0o600))
		c := web.DefaultConfig()
		c.Auth = signin.Config{JWKSFile: file, Issuer: "i", Audience: "a"}
		require.ErrorContains(t, c.Validate(), "auth.jwks_file: the JSON Web Key Set has no public key that can be used: keys[0] (kid ")
	}
	for _, text := range []string{`{"keys":[]}`, `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"a"}]}`, `hello`} {
		file := filepath.Join(t.TempDir(), "jwks.json")
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		c := web.DefaultConfig()
		c.Auth = signin.Config{JWKSFile: file, Issuer: "i", Audience: "a"}
		require.ErrorContains(t, c.Validate(), "auth.jwks_file: ")
	}
}

func TestKeysOfASignInAreFetched(t *testing.T) {
	t.Parallel()
	id := newIdentity(t, "a", "b")
	var fetches, rotated atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetches.Add(1)
		if rotated.Load() > 0 {
			_, _ = w.Write(id.set("b"))
			return
		}
		_, _ = w.Write(id.set("a"))
	}))
	defer server.Close()
	r := signInRig(t, signin.Config{JWKSURL: server.URL})
	require.Equal(t, "u1", r.send("GET", "/users", "Authorization", "Bearer "+id.token("a", nil)).body, "the first request waits for the keys")
	for range 20 {
		require.Equal(t, http.StatusUnauthorized, r.send("GET", "/users", "Authorization", "Bearer "+newIdentity(t, "c").token("c", nil)).status)
	}
	require.EqualValues(t, 1, fetches.Load(), "forged tokens cause no fetches")
	r.web.AllowFetch()
	foreign := newIdentity(t, "c").token("c", func(c *jwt.Claims) { c.Issuer = "millrace" })
	require.Equal(t, "nobody", r.send("GET", "/all", "Authorization", "Bearer "+foreign).body)
	require.EqualValues(t, 1, fetches.Load(), "a token of another issuer causes no fetch")
	rotated.Add(1)
	require.Equal(t, "u1", r.send("GET", "/users", "Authorization", "Bearer "+id.token("b", nil)).body, "a new key is fetched")
	require.Equal(t, http.StatusUnauthorized, r.send("GET", "/users", "Authorization", "Bearer "+id.token("a", nil)).status, "a removed key verifies nothing")
	require.EqualValues(t, 2, fetches.Load())
}

func TestASignInThatIsUnavailable(t *testing.T) {
	t.Parallel()
	id := newIdentity(t, "a")
	release := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select { // it hangs
		case <-release:
		case <-r.Context().Done():
		}
	}))
	defer server.Close()
	defer close(release)
	r := signInRig(t, signin.Config{JWKSURL: server.URL})
	begin := time.Now()
	a := r.send("GET", "/users", "Authorization", "Bearer "+id.token("a", nil))
	require.Less(t, time.Since(begin), 30*time.Second) // a machine may stand still
	require.Equal(t, http.StatusServiceUnavailable, a.status, "the user may be a good one")
	require.Equal(t, "sign_in_unavailable", a.word(t))
	require.Contains(t, r.send("GET", "/users?token="+id.token("a", nil), "Accept", "text/event-stream").body, `{"reason":"sign_in_unavailable"}`)
	require.Equal(t, "nobody", r.send("GET", "/all").body)
	took := time.Hour
	for tries := 3; tries > 0 && took >= 2*time.Second; tries-- { // the machine may stand still in one of them
		begin = time.Now()
		require.Equal(t, http.StatusUnauthorized, r.send("GET", "/users").status)
		took = min(took, time.Since(begin))
	}
	require.Less(t, took, 2*time.Second, "a request without a token waits for nothing")
}
