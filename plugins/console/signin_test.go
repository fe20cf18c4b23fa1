package console_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// issuer is a sign-in that signs tokens.
type issuer struct {
	t   testing.TB
	key ed25519.PrivateKey
}

func newIssuer(t testing.TB) issuer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	require.NoError(t, err)
	return issuer{t, key}
}

func (i issuer) set() []byte {
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: i.key.Public(), KeyID: "a"}}})
	require.NoError(i.t, err)
	return text
}

func (i issuer) file() string {
	file := filepath.Join(i.t.TempDir(), "jwks.json")
	require.NoError(i.t, os.WriteFile(file, i.set(), 0o600))
	return file
}

// token returns one of the sign-in, with claims in place of its own.
func (i issuer) token(claims map[string]any) string {
	all := map[string]any{"iss": "https://id.example", "aud": "console", "sub": "ann", "exp": time.Now().Add(time.Hour).Unix()}
	for name, value := range claims {
		all[name] = value
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.EdDSA, Key: i.key}, (&jose.SignerOptions{}).WithHeader("kid", "a"))
	require.NoError(i.t, err)
	raw, err := jwt.Signed(signer).Claims(all).Serialize()
	require.NoError(i.t, err)
	return raw
}

func keysOf(a signin.Config) signin.Config {
	a.Issuer, a.Audience = "https://id.example", "console"
	return a
}

// tryAll sends requests with headers, and checks the status and, for 200, the line about the person.
func tryAll(t *testing.T, r *rig, cases map[string]struct {
	headers []string
	status  int
	person  string
}) {
	t.Helper()
	for name, c := range cases {
		answer, text := r.do(http.MethodGet, "/actions", "", c.headers...)
		require.Equal(t, c.status, answer.StatusCode, "%s: %s", name, text)
		require.Contains(t, text, c.person, name)
		api, _ := r.do(http.MethodGet, "/api/v1/home", "", c.headers...)
		require.Equal(t, c.status, api.StatusCode, name)
	}
}

// A trusted proxy names the user and the groups, and nobody else does.
func TestLoginByAProxy(t *testing.T) {
	t.Parallel()
	configure := func(proxies ...string) func(*console.Config) {
		return func(c *console.Config) {
			c.Auth.Header, c.GroupsHeader, c.TrustedProxies = "X-User", "X-Groups", proxies
			c.Roles = map[string]operate.Role{"eve@corp.example": operate.Admin}
			c.GroupRoles = map[string]operate.Role{"support": operate.Viewer, "on call": operate.Operator}
		}
	}
	x := newTill()
	r := start(t, configure("127.0.0.0/8"), x)
	tryAll(t, r, map[string]struct {
		headers []string
		status  int
		person  string
	}{
		"a role of their own":           {[]string{"X-User: eve@corp.example"}, 200, "You are eve@corp.example, with the role admin."},
		"one above that of a group":     {[]string{"X-User: eve@corp.example", "X-Groups: support"}, 200, "with the role admin."},
		"a role of a group":             {[]string{"X-User: ann", "X-Groups: staff,support"}, 200, "You are ann, with the role viewer."},
		"the highest role of groups":    {[]string{"X-User: ann", "X-Groups: on call, support"}, 200, "with the role operator."},
		"the host of a proxy":           {[]string{"X-User: ann", "X-Groups: support", "Host: console.example"}, 200, "with the role viewer."},
		"no role":                       {[]string{"X-User: bob", "X-Groups: staff"}, 403, "you have no role at this console"},
		"no group":                      {[]string{"X-User: ann"}, 403, "plugins.console.group_roles"},
		"nobody":                        {nil, 401, "Sign in first"},
		"groups of nobody":              {[]string{"X-Groups: support"}, 401, "Sign in first"},
		"a name that can't be shown":    {[]string{"X-User: " + strings.Repeat("a", 200)}, 400, "the user id of the sign-in has 200 characters"},
		"a password in place of a name": {[]string{"Authorization: Basic YW5uOm9wZW4="}, 401, "Sign in first"},
	})
	status, answer := r.send("till/refund", `{"input":{"order":"7"},"why":"broken"}`, "X-User: ann", "X-Groups: on call")
	require.Equal(t, http.StatusOK, status, answer)
	require.Equal(t, "ann (API, operator)", x.done()[0].use.Who)
	status, _ = r.send("till/refund", `{"input":{"order":"7"},"why":"broken"}`, "X-User: ann", "X-Groups: support")
	require.Equal(t, http.StatusForbidden, status)

	// Two values: one of them may be that of the client.
	for _, twice := range []string{"X-User", "X-Groups"} {
		request, err := http.NewRequest(http.MethodGet, r.base+"/", http.NoBody)
		require.NoError(t, err)
		request.Header.Set("X-User", "ann")
		request.Header.Set("X-Groups", "support")
		request.Header.Add(twice, "on call")
		answer, err := r.client.Do(request)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Contains(t, []int{401, 403}, answer.StatusCode, twice)
	}

	far := start(t, configure("10.0.0.0/8"), newTill())
	got, _ := far.do(http.MethodGet, "/", "", "X-User: eve@corp.example")
	require.Equal(t, http.StatusUnauthorized, got.StatusCode, "this machine is no trusted proxy")
}

// A token of the sign-in names the user, in the header Authorization or in one of a proxy.
func TestLoginByATokenOfTheSignIn(t *testing.T) {
	t.Parallel()
	id, other := newIssuer(t), newIssuer(t)
	configure := func(c *console.Config) {
		c.Auth = keysOf(signin.Config{JWKSFile: id.file()})
		c.Roles = map[string]operate.Role{"eve": operate.Admin}
		c.GroupRoles = map[string]operate.Role{"support": operate.Viewer, "on-call": operate.Operator}
	}
	r := start(t, configure, newTill())
	bearer := func(claims map[string]any) []string { return []string{"Authorization: Bearer " + id.token(claims)} }
	cases := map[string]struct {
		headers []string
		status  int
		person  string
	}{
		"a role of their own":    {bearer(map[string]any{"sub": "eve"}), 200, "You are eve, with the role admin."},
		"roles of groups":        {bearer(map[string]any{"groups": []string{"support", "on-call"}}), 200, "You are ann, with the role operator."},
		"one group":              {bearer(map[string]any{"groups": "support"}), 200, "with the role viewer."},
		"groups of another form": {bearer(map[string]any{"groups": map[string]any{"support": true}}), 403, "you have no role at this console"},
		"no groups":              {bearer(nil), 403, "you have no role at this console"},
		"another audience":       {bearer(map[string]any{"sub": "eve", "aud": "shop"}), 401, "Sign in first"},
		"another issuer":         {bearer(map[string]any{"sub": "eve", "iss": "https://evil.example"}), 401, "Sign in first"},
		"a token that has ended": {bearer(map[string]any{"sub": "eve", "exp": time.Now().Add(-time.Hour).Unix()}), 401, "Sign in first"},
		"a token without an end": {bearer(map[string]any{"sub": "eve", "exp": nil}), 401, "Sign in first"},
		"a key of somebody else": {[]string{"Authorization: Bearer " + other.token(map[string]any{"sub": "eve"})}, 401, "Sign in first"},
		"a header of no proxy":   {[]string{"X-User: eve"}, 401, "Sign in first"},
		"nobody":                 {nil, 401, "Sign in first"},
	}
	tryAll(t, r, cases)
	got, _ := r.do(http.MethodGet, "/?token="+id.token(map[string]any{"sub": "eve"}), "")
	require.Equal(t, http.StatusUnauthorized, got.StatusCode, "a token in an address is in logs and histories")
	require.Contains(t, got.Header.Get("WWW-Authenticate"), "Bearer")

	assertion := start(t, func(c *console.Config) {
		configure(c)
		c.TokenHeader, c.GroupsClaim = "Cf-Access-Jwt-Assertion", "teams"
	}, newTill())
	tryAll(t, assertion, map[string]struct {
		headers []string
		status  int
		person  string
	}{
		"a token of the proxy": {[]string{"Cf-Access-Jwt-Assertion: " + id.token(map[string]any{"teams": []string{"support"}})}, 200, "with the role viewer."},
		"another claim":        {[]string{"Cf-Access-Jwt-Assertion: " + id.token(map[string]any{"groups": []string{"support"}})}, 403, "no role"},
		"another header":       {bearer(map[string]any{"sub": "eve"}), 401, "Sign in first"},
	})
}

// Keys of an address are fetched at the start. Until they are there, a token can't be judged.
func TestLoginByFetchedKeys(t *testing.T) {
	t.Parallel()
	id := newIssuer(t)
	fetched := make(chan struct{})
	var absent atomic.Bool
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if absent.Load() {
			w.WriteHeader(http.StatusInternalServerError)
			return
		}
		<-fetched
		_, _ = w.Write(id.set())
	}))
	t.Cleanup(keys.Close)
	configure := func(c *console.Config) {
		c.Auth, c.Roles = keysOf(signin.Config{JWKSURL: keys.URL + "/of/tenant-7?token=hidden"}), map[string]operate.Role{"ann": operate.Viewer}
	}
	r := start(t, configure, page(loading("secret", pages.Text("inside"), nil)))
	bearer := "Authorization: Bearer " + id.token(nil)
	close(fetched)
	require.Eventually(t, func() bool {
		answer, text := r.do(http.MethodGet, "/tried", "", bearer)
		return answer.StatusCode == http.StatusOK && strings.Contains(text, "inside")
	}, 2*time.Minute, 10*time.Millisecond)
	require.NoError(t, r.stop())

	absent.Store(true)
	r = start(t, configure, page(loading("secret", pages.Text("inside"), nil)))
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "keys of the sign-in not fetched") }, 2*time.Minute, 10*time.Millisecond)
	require.Contains(t, r.log.String(), "server="+keys.URL+" ", "its path and query may be secret")
	answer, text := r.do(http.MethodGet, "/tried", "", bearer)
	require.Equal(t, http.StatusServiceUnavailable, answer.StatusCode)
	require.Contains(t, text, "plugins.console.auth.jwks_url could not be fetched")
}

// What is wrong with the settings of a login ends the start.
func TestRefusedLogins(t *testing.T) {
	t.Parallel()
	file, users := newIssuer(t).file(), usersFile(t)
	proxy := "auth: {header: X-User}\ntrusted_proxies: [10.1.0.0/16]\n"
	tokens := "auth: {jwks_file: " + file + ", issuer: 'https://id.example', audience: console}\n"
	for name, c := range map[string]struct {
		settings, want string // an empty one: it is accepted
	}{
		"a proxy":                       {proxy + "listen: ':9465'\ngroups_header: X-Groups\ngroup_roles: {on.call: operator}", ""},
		"a user with dots":              {proxy + "listen: ':9465'\nroles: {ann@corp.example: admin}", ""},
		"tokens on this machine":        {tokens + "roles: {ann: admin}", ""},
		"tokens behind a proxy":         {tokens + "listen: ':9465'\nallow_plaintext_credentials: true\nroles: {ann: admin}", ""},
		"tokens without TLS":            {tokens + "listen: ':9465'\nroles: {ann: admin}", "tls.cert_file: must be set, because passwords and tokens must not cross a network without TLS"},
		"a header without a proxy":      {"auth: {header: X-User}\nroles: {ann: admin}", "auth.header: must be empty without trusted_proxies"},
		"everybody is a proxy":          {"auth: {header: X-User}\ntrusted_proxies: [0.0.0.0/0]\nroles: {ann: admin}", "trusted_proxies: must be the networks of your proxies"},
		"no proxy and another address":  {"trusted_proxies: [10.1.0.0/16]\nlisten: ':9465'", "listen: must be on this machine"},
		"a header of browsers":          {"auth: {header: Cookie}\ntrusted_proxies: [10.1.0.0/16]\nroles: {ann: admin}", "must be a header that only the proxy writes"},
		"groups of browsers":            {proxy + "groups_header: Cookie\nroles: {ann: admin}", "groups_header: must be a header of the proxy"},
		"nobody has a role":             {proxy, "roles: must have a user, or group_roles a group"},
		"a role that does not exist":    {proxy + "groups_header: X-Groups\ngroup_roles: {support: root}", `group_roles.support: must be viewer, operator or admin, got "root"`},
		"groups that nobody names":      {proxy + "group_roles: {support: viewer}", "group_roles: has no effect, because nothing names the groups"},
		"groups of passwords":           {"users_file: " + users + "\ngroup_roles: {support: viewer}", "group_roles: has no effect"},
		"two logins":                    {proxy + "users_file: " + users + "\nroles: {ann: admin}", "users_file: must be empty with plugins.console.auth"},
		"keys without an audience":      {"auth: {jwks_file: " + file + ", issuer: i}\nroles: {ann: admin}", "auth.audience: must be set with the keys of a sign-in"},
		"a token header without keys":   {proxy + "token_header: X-Token\nroles: {ann: admin}", "token_header: has no effect without the keys"},
		"a groups header without users": {tokens + "groups_header: X-Groups\nroles: {ann: admin}", "groups_header: has no effect without plugins.console.auth.header"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			settings := filepath.Join(t.TempDir(), "settings.yaml")
			text := "plugins:\n  console:\n    enabled: true\n"
			for line := range strings.Lines(c.settings) {
				text += "    " + strings.TrimSuffix(line, "\n") + "\n"
			}
			require.NoError(t, os.WriteFile(settings, []byte(text), 0o600))
			command := "validate"
			if c.want != "" {
				command = "run"
			}
			var printed pipelinetest.Buffer
			code := app.Main(t.Context(), app.Options{
				Name: "mine", Plugins: []pipeline.Plugin{console.New()}, Args: []string{command, "--config", settings}, Stdout: &printed, Stderr: &printed,
			})
			if c.want == "" {
				require.Equal(t, app.ExitOK, code, printed.String())
				return
			}
			require.Equal(t, app.ExitUsage, code, printed.String())
			require.Contains(t, printed.String(), c.want)
		})
	}
}

// A trusted proxy has the connections of all its clients, so one of them must not lock out the others.
func TestATrustedProxyHasManyConnections(t *testing.T) {
	t.Parallel()
	for addr, exempt := range map[string]bool{"10.1.2.3": true, "127.0.0.1": true, "10.2.0.1": false} {
		require.Equal(t, exempt, console.Exempt([]string{"10.1.0.0/16"}, netip.MustParseAddr(addr)), addr)
	}
}
