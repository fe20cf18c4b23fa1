package console_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/internal/terminaltest"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
	"github.com/millrace-io/millrace/plugins/web/signin"
)

// top runs the command and returns what it wrote and its exit code.
func top(ctx context.Context, stdout io.Writer, environ []string, args ...string) (code int, stderr string) {
	var log pipelinetest.Buffer
	code = app.Main(ctx, app.Options{
		Name: "mine", Plugins: []pipeline.Plugin{console.New()}, Args: append([]string{"top"}, args...), Stdout: stdout, Stderr: &log,
		Environ: append([]string{"MINE__PLUGINS__CONSOLE__ENABLED=true", "MINE__DATA_DIR=/nonexistent"}, environ...),
	})
	return code, log.String()
}

func TestTopShowsAPageOnce(t *testing.T) {
	t.Parallel()
	r := start(t, nil, page(loading("carts", pages.Stats{{Name: "Open", Cell: pages.Count(3)}}, nil)))
	listen := "MINE__PLUGINS__CONSOLE__LISTEN=" + strings.TrimPrefix(r.base, "http://")
	for name, c := range map[string]struct {
		environ, args []string
		code          int
		out, log      string
	}{
		"the console of the settings": {[]string{listen}, []string{"tried"}, app.ExitOK, "Panel carts\nOpen  3\n", ""},
		"the console at an address":   {nil, []string{"tried", "--url", r.base}, app.ExitOK, "Panel carts\nOpen  3\n", ""},
		"the routes":                  {nil, []string{"--url", r.base}, app.ExitOK, "This instance has no routes.\n", ""},
		"for scripts":                 {nil, []string{"tried", "--json", "--url", r.base}, app.ExitOK, `"open": 3`, ""},
		"no such page":                {nil, []string{"cart", "--url", r.base}, app.ExitBad, "", `the console has no page "cart"; it has part, route, tried`},
		"no such page for scripts":    {nil, []string{"cart", "--json", "--url", r.base}, app.ExitBad, "", `the console has no page "cart"; it has part, route, tried`},
		"nothing answers":             {[]string{"MINE__PLUGINS__CONSOLE__LISTEN=127.0.0.1:1"}, nil, app.ExitUnavailable, "", "the console does not answer"},
		"no address":                  {nil, []string{"--url", "localhost:9465"}, app.ExitUsage, "", "--url must be an address such as https://host"},
		"two logins":                  {nil, []string{"--user", "ann", "--token", "env:HOME"}, app.ExitUsage, "", "--user and --token are two ways to sign in"},
		"a password in the address":   {nil, []string{"--url", "https://ann:hidden@ops.example"}, app.ExitUsage, "", "--url must have no user and password"},
		"a password in plain text":    {nil, []string{"--url", "http://ops.example", "--user", "ann"}, app.ExitUsage, "", "--url must begin with https://, because passwords"},
		"too often":                   {nil, []string{"--every", "1ms"}, app.ExitUsage, "", "--every must be at least 1s, got 1ms"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out pipelinetest.Buffer
			code, log := top(t.Context(), &out, c.environ, c.args...)
			require.Equal(t, c.code, code, log)
			require.Contains(t, out.String(), c.out)
			require.Contains(t, log, c.log)
		})
	}
}

// Something else than a console may answer: it may color what it says, and do nothing else to the terminal.
func TestTopLeavesTheTerminalAlone(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, "\x1b[1mfine\x1b[0m\n\x1b]52;c;b3duZWQ=\a\x1b[2J\x1b[31\u009bm\x9d\r\n")
	}))
	defer server.Close()
	var out pipelinetest.Buffer
	code, log := top(t.Context(), &out, nil, "--url", server.URL)
	require.Equal(t, app.ExitOK, code, log)
	require.Equal(t, "\x1b[1mfine\x1b[0m\n\uFFFD]52;c;b3duZWQ=\uFFFD\uFFFD[2J\uFFFD[31\uFFFDm\uFFFD\uFFFD\n", out.String())
}

// signingIn puts a password into the input of the process. It is the only test that does.
func signingIn(t *testing.T, password string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "input")
	require.NoError(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	input, err := os.Open(file)
	require.NoError(t, err)
	before := os.Stdin
	os.Stdin = input
	t.Cleanup(func() {
		os.Stdin = before
		require.NoError(t, input.Close())
	})
}

func TestTopSignsIn(t *testing.T) { //nolint:paralleltest // it replaces the input of the process
	r := start(t, func(c *console.Config) { c.UsersFile = usersFile(t) }, page(loading("secret", pages.Text("inside"), nil)))
	for password, want := range map[string]struct {
		args []string
		code int
		text string
	}{
		"open":  {[]string{"--user", "ann"}, app.ExitOK, "inside"},
		"wrong": {[]string{"--user", "ann"}, app.ExitBad, "401 Unauthorized"},
		"":      {[]string{"--user", "ann"}, app.ExitUsage, "--user needs the password in the first line of the input"},
		"none":  {nil, app.ExitBad, "wants a login: give --user or --token"},
	} {
		signingIn(t, password)
		var out pipelinetest.Buffer
		code, log := top(t.Context(), &out, nil, append([]string{"tried", "--url", r.base}, want.args...)...)
		require.Equal(t, want.code, code, log)
		require.Contains(t, out.String()+log, want.text)
	}
}

// A console whose users come from a sign-in takes its token, also below the path of a proxy.
func TestTopHasAToken(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	r := start(t, func(c *console.Config) {
		c.Auth = keysOf(signin.Config{JWKSFile: i.file()})
		c.Roles, c.Prefix = map[string]operate.Role{"ann": operate.Viewer}, "/millrace"
	}, page(loading("secret", pages.Text("inside"), nil)))
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(i.token(nil)), 0o600))
	listen := "MINE__PLUGINS__CONSOLE__LISTEN=" + strings.TrimPrefix(r.base, "http://")
	for name, c := range map[string]struct {
		environ, args []string
	}{
		"at an address":   {nil, []string{"--url", r.base + "/millrace"}},
		"of the settings": {[]string{listen, "MINE__PLUGINS__CONSOLE__PREFIX=/millrace"}, nil},
	} {
		var out pipelinetest.Buffer
		code, log := top(t.Context(), &out, c.environ, append(c.args, "tried", "--token", "file:"+file)...)
		require.Equal(t, app.ExitOK, code, "%s: %s", name, log)
		require.Contains(t, out.String(), "inside", name)
	}
	code, log := top(t.Context(), io.Discard, nil, "tried", "--url", r.base)
	require.Equal(t, app.ExitBad, code)
	require.Contains(t, log, "give --user or --token")
}

// A console that takes its token in another header gets it there, and says so to whoever has not sent it.
func TestTopSendsTheTokenInItsHeader(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	keys := i.file()
	auth := keysOf(signin.Config{JWKSFile: keys})
	r := start(t, func(c *console.Config) {
		c.Auth, c.TokenHeader, c.Roles = auth, "X-Token", map[string]operate.Role{"ann": operate.Viewer}
	}, page(loading("secret", pages.Text("inside"), nil)))
	file := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(file, []byte(i.token(nil)), 0o600))
	settings := filepath.Join(t.TempDir(), "settings.yaml")
	require.NoError(t, os.WriteFile(settings, fmt.Appendf(nil, "plugins: {console: {listen: %q, auth: {jwks_file: %q, issuer: %q, audience: %q}, token_header: X-Token, roles: {ann: viewer}}}\n",
		strings.TrimPrefix(r.base, "http://"), keys, auth.Issuer, auth.Audience), 0o600))
	for name, args := range map[string][]string{
		"at an address":   {"--url", r.base, "--token-header", "X-Token"},
		"of the settings": {"--config", settings},
	} {
		var out pipelinetest.Buffer
		code, log := top(t.Context(), &out, nil, append(args, "tried", "--token", "file:"+file)...)
		require.Equal(t, app.ExitOK, code, "%s: %s", name, log)
		require.Contains(t, out.String(), "inside", name)
	}
	code, log := top(t.Context(), io.Discard, nil, "tried", "--url", r.base, "--token", "file:"+file)
	require.Equal(t, app.ExitBad, code)
	require.Contains(t, log, "in the header X-Token")
}

// Nobody else may take the address of the console and ask for its passwords.
func TestTopTrustsTheCertificateOfTheSettings(t *testing.T) {
	t.Parallel()
	certificate, _ := pipelinetest.Certificate(t)
	other, _ := pipelinetest.Certificate(t)
	r := start(t, func(c *console.Config) { c.TLS.CertFile, c.TLS.KeyFile = certificate, certificate }, page(loading("a", pages.Text("inside"), nil)))
	listen := "MINE__PLUGINS__CONSOLE__LISTEN=" + strings.TrimPrefix(r.base, "http://")
	for file, want := range map[string]int{certificate: app.ExitOK, other: app.ExitUnavailable} {
		var out pipelinetest.Buffer
		code, log := top(t.Context(), &out, []string{listen, "MINE__PLUGINS__CONSOLE__TLS__CERT_FILE=" + file, "MINE__PLUGINS__CONSOLE__TLS__KEY_FILE=" + file}, "tried")
		require.Equal(t, want, code, log)
		if want != app.ExitOK {
			require.Contains(t, log, "has another certificate than "+other)
		}
	}
}

// On a terminal it follows the page, says when it can't, and leaves the screen as it was.
func TestTopFollowsAPage(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	counts := pages.Panel{Name: "looks", Load: func(context.Context, pages.Query) (pages.Block, error) {
		rows := make([][]pages.Cell, 40)
		for i := range rows {
			rows[i] = []pages.Cell{pages.Word("row")}
		}
		return pages.Blocks{pages.Stats{{Name: "Looks", Cell: pages.Count(looks.Add(1))}}, pages.Table{Columns: pages.Columns("Row"), Rows: rows}}, nil
	}}
	r := start(t, nil, page(counts))
	person, screen := terminaltest.Open(t)
	ctx, interrupt := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	go func() {
		code, _ := top(ctx, screen, []string{"TERM=xterm"}, "tried", "--every", "1s", "--url", r.base)
		ended <- code
	}()
	sees(t, person, "\x1b[?1049h")
	sees(t, person, "Looks  1\x1b[K")
	sees(t, person, "… 21 more lines: enlarge the window, or use --once\x1b[K")
	sees(t, person, "Looks  2\x1b[K")
	require.NoError(t, r.stop())
	sees(t, person, "Looks") // still shown
	sees(t, person, "!! Shown is ")
	interrupt()
	sees(t, person, "\x1b[?1049l")
	require.Equal(t, app.ExitOK, <-ended)
}

// A token of a sign-in lives for minutes, so what follows a page takes the one that is in the file now.
func TestTopTakesTheTokenThatIsInTheFileNow(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	counts := pages.Panel{Name: "looks", Load: func(context.Context, pages.Query) (pages.Block, error) {
		return pages.Stats{{Name: "Looks", Cell: pages.Count(looks.Add(1))}}, nil
	}}
	before, after := newIssuer(t), newIssuer(t)
	keys, token := before.file(), filepath.Join(t.TempDir(), "token")
	replace := func(file string, content []byte) {
		require.NoError(t, os.WriteFile(file+".new", content, 0o600))
		require.NoError(t, os.Rename(file+".new", file))
	}
	replace(token, []byte(before.token(nil)))
	r := start(t, func(c *console.Config) {
		c.Auth, c.Roles = keysOf(signin.Config{JWKSFile: keys}), map[string]operate.Role{"ann": operate.Viewer}
	}, page(counts))
	person, screen := terminaltest.Open(t)
	go top(t.Context(), screen, []string{"TERM=xterm"}, "tried", "--every", "1s", "--url", r.base, "--token", "file:"+token)
	sees(t, person, "Looks  1\x1b[K")
	replace(keys, after.set())
	sees(t, person, "401 Unauthorized")
	next := looks.Load() + 1
	replace(token, []byte(after.token(nil)))
	sees(t, person, fmt.Sprintf("Looks  %d\x1b[K", next))
}

// sees reads until a text was shown.
func sees(t *testing.T, person *bufio.Reader, text string) {
	t.Helper()
	var got strings.Builder
	for !strings.HasSuffix(got.String(), text) {
		b, err := person.ReadByte()
		require.NoError(t, err, "it shows no %q, but %q", text, got.String())
		got.WriteByte(b)
		require.Less(t, got.Len(), 64<<10, "it shows no %q", text)
	}
}
