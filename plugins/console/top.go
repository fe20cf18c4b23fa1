package console

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/setting"
)

const (
	topLimit  = 25 * time.Second // of one reading; a page takes up to 20 seconds
	topAnswer = 8 << 20          // bytes of a page as JSON

	// What the terminal understands (ECMA-48 and xterm).
	ownScreen   = "\x1b[?1049h\x1b[?25l" // a screen of its own, without a cursor
	formerAgain = "\x1b[?25h\x1b[?1049l"
	toTheTop    = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	t := top{plugin: p, host: h}
	cmd := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   "top [PAGE]",
		Short: "Show a page of the console in the terminal",
		Long: "Show a page of the console in the terminal, and read it again until Ctrl-C. Without a page it shows the routes.\n\n" +
			"It reads the console of the instance that has these settings, or the one at --url. When the output is no terminal, it shows the page once. " +
			"A login needs --user, and takes the password from the terminal, or from the first line of the input, or it needs --token.\n\n" +
			"The exit code is 1 for a page that does not exist or may not be seen, and 3 when nothing answers.",
		Example: "  " + h.Name() + " top --profile embedded\n  " + h.Name() + " top dead-letters --once\n  " + h.Name() + " top topics --url https://millrace.example.com --user ann",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				t.page = strings.Trim(args[0], "/")
			}
			if t.user != "" && !t.token.IsZero() {
				return app.Usage("--user and --token are two ways to sign in: give one")
			}
			if t.tokenHeader != "" && t.token.IsZero() {
				return app.Usage("--token-header is for --token: give both")
			}
			if t.every < time.Second {
				return app.Usage("--every must be at least 1s, got %s", t.every)
			}
			t.json = h.JSON(cmd)
			if t.address != "" {
				return t.show(cmd.Context(), cmd.InOrStdin())
			}
			return h.Services(cmd.Context(), cmd, app.ServicesOptions{Routes: true}, func(ctx context.Context, _ *app.Running) error {
				return t.show(ctx, cmd.InOrStdin())
			})
		},
	}))
	flags := cmd.Flags()
	flags.StringVar(&t.address, "url", "", "`address` of a console (default that of the settings)")
	flags.StringVar(&t.user, "user", "", "`name` to sign in with")
	flags.TextVar(&t.token, "token", setting.Secret{}, "where a bearer token of the sign-in is: env:NAME or file:/path")
	flags.StringVar(&t.tokenHeader, "token-header", "", "`name` of the header for the token (default token_header of the settings; with --url: Authorization)")
	flags.DurationVar(&t.every, "every", 2*time.Second, "`time` between two readings")
	flags.BoolVar(&t.once, "once", false, "show the page once")
	return []*cobra.Command{cmd}
}

// top is the command of this name.
type top struct {
	plugin *Plugin
	host   *app.Host

	page, address, user string
	token               setting.Secret
	tokenHeader         string // empty: Authorization: Bearer
	every               time.Duration
	once, json          bool

	client   *http.Client
	password string
	bearer   *setting.Live // of token, which ends before somebody stops to look
}

func (t *top) show(ctx context.Context, in io.Reader) error {
	secured := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.address == "" {
		var err error
		if t.address, err = t.plugin.find(ctx, topLimit); err != nil {
			return err
		}
		t.tokenHeader = cmp.Or(t.tokenHeader, t.plugin.config.TokenHeader)
		if file := t.plugin.config.TLS.CertFile; file != "" {
			trustOnly(secured, file)
		}
	}
	u, err := url.Parse(t.address)
	switch {
	case err == nil && u.User != nil:
		return app.Usage("--url must have no user and password: use --user")
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		return app.Usage("--url must be an address such as https://host, got %q", t.address)
	case u.Scheme == "http" && !setting.Loopback(u.Host) && (t.user != "" || !t.token.IsZero()):
		return app.Usage("--url must begin with https://, because passwords and tokens must not cross a network without encryption")
	}
	t.address = strings.TrimSuffix(t.address, "/") + "/"
	t.client = &http.Client{
		Transport: &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: secured}, Timeout: topLimit,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	defer t.client.CloseIdleConnections()
	t.bearer = t.token.Live("--token", nil, nil)
	if t.user != "" {
		var err error
		if t.password, err = t.ask(in); err != nil {
			return err
		}
	}
	out := t.host.Out()
	file, _ := out.(*os.File)
	if t.json || t.once || !t.host.IsTerminal(out) {
		text, err := t.read(ctx, textColumns)
		if err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	return t.follow(ctx, out, func() (width, height int) {
		width, height, err := term.GetSize(int(file.Fd())) //nolint:gosec // a file descriptor is small
		if err != nil || width < 1 || height < 1 {
			return textColumns, 24 // of a terminal that does not say
		}
		return width, height
	})
}

// follow shows the page again and again, on a screen of its own, until ctx ends. The first reading must
// succeed. A later one that fails leaves what is shown, and says why it is old.
func (t *top) follow(ctx context.Context, out io.Writer, size func() (width, height int)) error {
	width, height := size()
	text, err := t.read(ctx, width)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, ownScreen); err != nil {
		return err
	}
	defer func() { _, _ = io.WriteString(out, formerAgain) }() // the terminal may have gone
	again := time.NewTicker(t.every)
	defer again.Stop()
	read, problem := time.Now(), ""
	for {
		if _, err := out.Write(frame(text, problem, width, height)); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-again.C:
		}
		width, height = size()
		switch latest, err := t.read(ctx, width); {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			problem = fmt.Sprintf("Shown is %s. %s", read.Format(time.TimeOnly), plain(err.Error()))
		default:
			text, read, problem = latest, time.Now(), ""
		}
	}
}

// frame returns a screen: what fits of the text, and a problem in the last line.
func frame(text []byte, problem string, width, height int) []byte {
	lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
	room := height
	if problem != "" {
		room--
	}
	if hidden := len(lines) - room; hidden > 0 {
		lines = append(lines[:max(0, room-1)], cut(fmt.Sprintf("… %d more lines: enlarge the window, or use --once", hidden+1), width))
	}
	if problem != "" {
		lines = append(lines, cut("!! "+problem, width))
	}
	var b bytes.Buffer
	b.WriteString(toTheTop)
	for i, line := range lines {
		b.WriteString(line + clearLine)
		if i < len(lines)-1 {
			b.WriteString("\r\n")
		}
	}
	b.WriteString(clearBelow)
	return b.Bytes()
}

// read returns the page as text, or as JSON.
func (t *top) read(ctx context.Context, width int) ([]byte, error) {
	if t.json {
		return t.get(ctx, "api/v1/"+cmp.Or(t.page, homeName), "application/json")
	}
	color := 0
	if t.host.Colors(t.host.Out()) && !t.once {
		color = 1
	}
	return t.get(ctx, t.page, fmt.Sprintf("text/plain; columns=%d; color=%d", width, color))
}

// get returns what the console answers to a request for a type of content.
func (t *top) get(ctx context.Context, path, accept string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, t.address+path, http.NoBody)
	if err != nil {
		return nil, app.Usage("%q is no page: %w", t.page, err)
	}
	request.Header.Set("Accept", accept)
	switch {
	case t.user != "":
		request.SetBasicAuth(t.user, t.password)
	case t.tokenHeader != "" && !t.token.IsZero():
		request.Header.Set(t.tokenHeader, t.bearer.Value(ctx))
	case !t.token.IsZero():
		request.Header.Set("Authorization", "Bearer "+t.bearer.Value(ctx))
	}
	answer, err := t.client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("%w: the console does not answer: %w", pipeline.ErrUnavailable, err)
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(io.LimitReader(answer.Body, topAnswer+1))
	kind, _, _ := strings.Cut(answer.Header.Get("Content-Type"), ";")
	wanted, _, _ := strings.Cut(accept, ";")
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %s: %w", pipeline.ErrUnavailable, t.address, err)
	case len(text) > topAnswer:
		return nil, app.Bad("the page has more than %d MiB", topAnswer>>20)
	case answer.StatusCode == http.StatusUnauthorized && t.user == "" && t.token.IsZero():
		return nil, app.Bad("%s wants a login: give --user or --token", t.address)
	case answer.StatusCode == http.StatusNotFound && kind == wanted && !strings.Contains(t.page, "?"):
		return nil, t.noPage(ctx)
	case answer.StatusCode != http.StatusOK:
		return nil, app.Bad("%s answers %s: %s", t.address, answer.Status, plain(strings.TrimSpace(string(text[:min(len(text), 500)]))))
	case kind != wanted:
		return nil, app.Bad("%s answers with %s, so it is no console of this version", t.address, cmp.Or(plain(kind), "no type of content"))
	}
	return harmless(text), nil
}

var controls = regexp.MustCompile(`\x1b\[[0-9;]*m|[\x00-\x09\x0b-\x1f\x7f\x{80}-\x{9f}]`)

// harmless leaves of control characters only newlines and colors, because something else than a console may
// listen at an address, and other sequences change more of a terminal than what it shows.
func harmless(text []byte) []byte {
	return controls.ReplaceAllFunc(bytes.ToValidUTF8(text, []byte("\uFFFD")), func(found []byte) []byte {
		if bytes.HasSuffix(found, []byte("m")) {
			return found
		}
		return []byte("\uFFFD")
	})
}

// noPage says which pages there are.
func (t *top) noPage(ctx context.Context) error {
	text, err := t.get(ctx, "api/v1/", "application/json")
	if err != nil {
		return err
	}
	var list struct {
		Pages []struct {
			Page string `json:"page"`
		} `json:"pages"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return fmt.Errorf("the list of pages: %w", err)
	}
	var names []string
	for _, p := range list.Pages {
		if p.Page != homeName {
			names = append(names, plain(p.Page))
		}
	}
	return app.Bad("the console has no page %q; it has %s", t.page, strings.Join(names, ", "))
}

// ask returns the password: from the terminal without showing it, or the first line of another input.
func (t *top) ask(in io.Reader) (string, error) {
	if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) { //nolint:gosec // a file descriptor is small
		fmt.Fprintf(t.host.Err(), "Password of %s: ", plain(t.user))
		password, err := term.ReadPassword(int(f.Fd())) //nolint:gosec // as above
		fmt.Fprintln(t.host.Err())
		if err != nil {
			return "", fmt.Errorf("read the password: %w", err)
		}
		return string(password), nil
	}
	line, err := bufio.NewReader(io.LimitReader(in, 1<<10)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("read the password: %w", err)
	}
	if line = strings.TrimRight(line, "\r\n"); line == "" {
		return "", app.Usage("--user needs the password in the first line of the input")
	}
	return line, nil
}

// trustOnly accepts the certificate of the settings and no other. It is for the name that people use, and
// not for the address of this machine.
func trustOnly(c *tls.Config, file string) {
	c.InsecureSkipVerify = true // replaced by what follows
	c.VerifyConnection = func(state tls.ConnectionState) error {
		var own []byte
		text, err := os.ReadFile(file) // it may have changed
		if err != nil {
			return fmt.Errorf("plugins.console.tls.cert_file: %w", err)
		}
		for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
			if block.Type == "CERTIFICATE" {
				own = block.Bytes
				break
			}
		}
		if !bytes.Equal(own, state.PeerCertificates[0].Raw) {
			return fmt.Errorf("what listens there has another certificate than %s (plugins.console.tls.cert_file)", file)
		}
		return nil
	}
}

var _ app.Commander = (*Plugin)(nil)
