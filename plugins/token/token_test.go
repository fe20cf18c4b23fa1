package token_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/token"
)

func TestConformance(t *testing.T) {
	t.Parallel()
	pipelinetest.Conformance(t, func() []pipeline.Plugin { return []pipeline.Plugin{token.New()} })
}

func newKey(t testing.TB, kid string) token.KeyConfig {
	t.Helper()
	file := filepath.Join(t.TempDir(), kid+".pem")
	require.NoError(t, token.CreateKey(file))
	return token.KeyConfig{Kid: kid, File: file}
}

// pemOf returns the content of the file of a key.
func pemOf(t testing.TB, k token.KeyConfig) []byte {
	t.Helper()
	text, err := os.ReadFile(k.File)
	require.NoError(t, err)
	return text
}

func private(t testing.TB, k token.KeyConfig) ed25519.PrivateKey {
	t.Helper()
	block, _ := pem.Decode(pemOf(t, k))
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	require.NoError(t, err)
	return key.(ed25519.PrivateKey)
}

// with returns a registered plugin with keys.
func with(t testing.TB, keys ...token.KeyConfig) *token.Plugin {
	t.Helper()
	p := token.New()
	p.Settings().(*token.Config).Keys = keys
	_, err := pipeline.NewRegistry(pipeline.Env{}, p)
	require.NoError(t, err)
	return p
}

func sign(t testing.TB, p *token.Plugin) string {
	t.Helper()
	raw, err := p.Sign(token.Claims{Audience: "shop", Subject: "u1", ID: "7", Expires: time.Now().Add(time.Hour)})
	require.NoError(t, err)
	return raw
}

func TestClaimsComeBack(t *testing.T) {
	t.Parallel()
	p := with(t, newKey(t, "a"))
	for _, jobs := range [][]string{nil, {"scan/J1"}, {"scan/J1", "chat/J1"}} {
		want := token.Claims{Audience: "millrace-jobs", Subject: "u1", ID: "7", Expires: time.Now().Add(time.Hour).Truncate(time.Second), Job: jobs}
		raw, err := p.Sign(want)
		require.NoError(t, err)
		got, err := p.Verify("millrace-jobs", raw)
		require.NoError(t, err)
		require.Equal(t, want, got)
		body, err := base64.RawURLEncoding.DecodeString(strings.Split(raw, ".")[1])
		require.NoError(t, err)
		if len(jobs) == 1 {
			require.Contains(t, string(body), `"aud":"millrace-jobs"`)
			require.Contains(t, string(body), `"job":"scan/J1"`)
		}
	}
	for _, bad := range []token.Claims{{Expires: time.Now()}, {Audience: "a"}, {Audience: "a", Expires: time.Now(), Subject: strings.Repeat("x", 8<<10)}} {
		_, err := p.Sign(bad)
		require.Error(t, err)
	}
}

func TestATokenEnds(t *testing.T) {
	key := newKey(t, "a")
	synctest.Test(t, func(t *testing.T) {
		p := with(t, key)
		raw := sign(t, p)
		time.Sleep(time.Hour + 29*time.Second)
		_, err := p.Verify("shop", raw)
		require.NoError(t, err, "clocks differ")
		time.Sleep(2 * time.Second)
		c, err := p.Verify("shop", raw)
		require.ErrorIs(t, err, token.ErrExpired)
		require.Equal(t, "7", c.ID, "the caller may look up what has ended")
		c, err = p.Verify("other", raw)
		require.ErrorIs(t, err, token.ErrAudience)
		require.Zero(t, c)
	})
}

func TestKeysRotate(t *testing.T) {
	t.Parallel()
	older, newer := newKey(t, "2025"), newKey(t, "2026")
	raw := sign(t, with(t, older))
	both := with(t, newer, older)
	_, err := both.Verify("shop", raw)
	require.NoError(t, err, "an older key verifies")
	_, err = with(t, newer).Verify("shop", sign(t, both))
	require.NoError(t, err, "the first key signs")
	_, err = with(t, newer).Verify("shop", raw)
	require.ErrorIs(t, err, token.ErrForged, "a removed key does not verify")
	_, err = with(t, token.KeyConfig{Kid: "2025", File: newer.File}).Verify("shop", raw)
	require.ErrorIs(t, err, token.ErrForged, "another key has the name now")
}

// compact signs a payload in a way that Sign would not.
func compact(t testing.TB, key jose.SigningKey, headers map[jose.HeaderKey]any, payload string) string {
	t.Helper()
	signer, err := jose.NewSigner(key, &jose.SignerOptions{ExtraHeaders: headers})
	require.NoError(t, err)
	signed, err := signer.Sign([]byte(payload))
	require.NoError(t, err)
	raw, err := signed.CompactSerialize()
	require.NoError(t, err)
	return raw
}

func TestForgedTokens(t *testing.T) {
	t.Parallel()
	key := newKey(t, "a")
	p := with(t, key)
	const claims = `{"aud":"shop","sub":"u1","exp":4102444800}`
	encode := base64.RawURLEncoding.EncodeToString
	public := private(t, key).Public().(ed25519.PublicKey)
	der, err := x509.MarshalPKIXPublicKey(public)
	require.NoError(t, err)
	own := jose.SigningKey{Algorithm: jose.EdDSA, Key: private(t, key)}
	kid := map[jose.HeaderKey]any{"kid": "a"}
	_, stranger, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	hs := func(secret []byte) string {
		return compact(t, jose.SigningKey{Algorithm: jose.HS256, Key: secret}, kid, claims)
	}
	good := compact(t, own, kid, claims)
	_, err = p.Verify("shop", good)
	require.NoError(t, err)
	parts := strings.Split(good, ".")
	for name, raw := range map[string]string{
		"empty":                                 "",
		"not a token":                           "a.b.c",
		"alg none":                              encode([]byte(`{"alg":"none","kid":"a"}`)) + "." + parts[1] + ".",
		"alg None":                              encode([]byte(`{"alg":"None","kid":"a"}`)) + "." + parts[1] + "." + parts[2],
		"HS256 with the public key":             hs(public),
		"HS256 with the public key in DER":      hs(der),
		"HS256 with the public key in PEM":      hs(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})),
		"ES256":                                 compact(t, jose.SigningKey{Algorithm: jose.ES256, Key: curve}, kid, claims),
		"another key with our kid":              compact(t, jose.SigningKey{Algorithm: jose.EdDSA, Key: stranger}, kid, claims),
		"another key in its own header":         compact(t, jose.SigningKey{Algorithm: jose.EdDSA, Key: stranger}, map[jose.HeaderKey]any{"kid": "a", "jwk": jose.JSONWebKey{Key: stranger.Public()}}, claims),
		"unknown kid":                           compact(t, own, map[jose.HeaderKey]any{"kid": "b"}, claims),
		"no kid":                                compact(t, own, nil, claims),
		"crit that the library accepts":         compact(t, own, map[jose.HeaderKey]any{"kid": "a", "b64": true, "crit": []string{"b64"}}, claims),
		"no end":                                compact(t, own, kid, `{"aud":"shop"}`),
		"end is a text":                         compact(t, own, kid, `{"aud":"shop","exp":"4102444800"}`),
		"not JSON":                              compact(t, own, kid, `hello`),
		"other claims under the same signature": parts[0] + "." + encode([]byte(`{"aud":"shop","sub":"u2","exp":4102444800}`)) + "." + parts[2],
		"no signature":                          parts[0] + "." + parts[1] + ".",
		"too long":                              compact(t, own, kid, `{"aud":"shop","exp":4102444800,"sub":"`+strings.Repeat("x", 8<<10)+`"}`),
		"JSON serialization":                    `{"payload":"` + parts[1] + `","protected":"` + parts[0] + `","signature":"` + parts[2] + `"}`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := p.Verify("shop", raw)
			require.ErrorIs(t, err, token.ErrForged)
			require.Zero(t, c)
		})
	}
}

func TestTheKeySetHasOnlyPublicKeys(t *testing.T) {
	t.Parallel()
	key := newKey(t, "a")
	p := with(t, key)
	text, err := p.KeySet()
	require.NoError(t, err)
	require.NotContains(t, string(text), `"d"`)
	var set jose.JSONWebKeySet
	require.NoError(t, json.Unmarshal(text, &set))
	signed, err := jose.ParseSignedCompact(sign(t, p), []jose.SignatureAlgorithm{jose.EdDSA})
	require.NoError(t, err)
	_, err = signed.Verify(set.Key("a")[0])
	require.NoError(t, err, "another service verifies with it")
}

// While keys are rotated over several files, one key may be in two of them.
func TestAKeyThatIsInTwoFilesIsOneKey(t *testing.T) {
	t.Parallel()
	one, two := newKey(t, ""), newKey(t, "")
	require.NoError(t, os.WriteFile(two.File, append(pemOf(t, two), pemOf(t, one)...), 0o600))
	text, err := with(t, one, two).KeySet()
	require.NoError(t, err)
	var set jose.JSONWebKeySet
	require.NoError(t, json.Unmarshal(text, &set))
	require.Len(t, set.Keys, 2)
}

func TestKeyFilesThatAreRefused(t *testing.T) {
	t.Parallel()
	good := newKey(t, "a")
	curve, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(curve)
	require.NoError(t, err)
	write := func(text []byte) string {
		file := filepath.Join(t.TempDir(), "key.pem")
		require.NoError(t, os.WriteFile(file, text, 0o600))
		return file
	}
	for want, keys := range map[string][]token.KeyConfig{
		"keys[1].kid: must differ":      {good, good},
		"no such file":                  {{Kid: "b", File: "/absent.pem"}},
		"contains no PEM":               {{Kid: "b", File: write([]byte("hello"))}},
		"contains no PKCS #8 key":       {{Kid: "b", File: write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("hello")}))}},
		"another kind of key":           {{Kid: "b", File: write(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))}},
		"keys[1].file: open /absent.pe": {good, {Kid: "b", File: "/absent.pem"}},
		"can name only one":             {{Kid: "b", File: write(slices.Concat(pemOf(t, good), pemOf(t, good)))}},
		"a key that is not complete":    {{File: write(slices.Concat(pemOf(t, good), pemOf(t, good)[:60]))}},
	} {
		c := token.Config{Keys: keys}
		require.ErrorContains(t, c.Validate(), want)
	}
	p := token.New()
	require.NoError(t, p.ValidateIn(app.Where{Environment: "external"}), "no plugin uses tokens")
	require.NoError(t, p.ValidateIn(app.Where{Environment: "embedded", NeededBy: []string{"jobs"}}))
	require.ErrorContains(t, p.ValidateIn(app.Where{Environment: "external", NeededBy: []string{"jobs"}}), "openssl genpkey")
	p.Settings().(*token.Config).Keys = []token.KeyConfig{good}
	require.NoError(t, p.ValidateIn(app.Where{Environment: "external", NeededBy: []string{"jobs"}}))
}

func TestAKeyThatAllCanReadIsReported(t *testing.T) {
	t.Parallel()
	key := newKey(t, "a")
	info, err := os.Stat(key.File)
	require.NoError(t, err)
	require.Zero(t, info.Mode().Perm()&0o077)
	before, err := os.ReadFile(key.File)
	require.NoError(t, err)
	require.NoError(t, token.CreateKey(key.File))
	after, err := os.ReadFile(key.File)
	require.NoError(t, err)
	require.Equal(t, before, after, "an existing key stays")

	require.NoError(t, os.Chmod(key.File, 0o644))
	var logged bytes.Buffer
	p := token.New()
	p.Settings().(*token.Config).Keys = []token.KeyConfig{key}
	_, err = pipeline.NewRegistry(pipeline.Env{Logger: slog.New(slog.NewTextHandler(&logged, nil))}, p)
	require.NoError(t, err)
	require.Contains(t, logged.String(), "level=WARN")
	require.Contains(t, logged.String(), key.File)
}

func FuzzVerify(f *testing.F) {
	p := with(f, newKey(f, "a"))
	good := sign(f, p)
	want, err := p.Verify("shop", good)
	require.NoError(f, err)
	parts := strings.Split(good, ".")
	for _, raw := range []string{good, "", "..", parts[0] + ".." + parts[2], parts[0] + "." + parts[1] + ".", good + "." + good, `{"payload":""}`} {
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw string) {
		c, err := p.Verify("shop", raw)
		if err == nil {
			require.Equal(t, want, c, "only our token has a valid signature")
			return
		}
		require.ErrorIs(t, err, token.ErrForged)
		require.Zero(t, c)
	})
}
