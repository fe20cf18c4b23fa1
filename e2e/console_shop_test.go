package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/plugins/embedded"
)

// farSide is the server that a shop calls: it creates invoices, and receives its webhooks.
type farSide struct {
	*httptest.Server

	mu       sync.Mutex
	broken   bool           // answers 500
	refusing bool           // refuses webhooks for good
	received map[string]int // by what was asked for: how often it was done
}

func newFarSide(t *testing.T) *farSide {
	t.Helper()
	f := &farSide{received: map[string]int{}}
	f.Server = httptest.NewServer(f)
	t.Cleanup(f.Close)
	return f
}

func (f *farSide) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has gone
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	key, hook := r.Header.Get("Idempotency-Key"), r.URL.Path == "/hooks"
	if hook {
		key = string(body)
	}
	switch {
	case f.broken:
		http.Error(w, `{"code": "database_down", "message": "the database of invoices is down"}`, http.StatusInternalServerError)
	case hook && f.refusing:
		http.Error(w, "the signature is unknown", http.StatusForbidden)
	default:
		f.received[key]++
		_, _ = fmt.Fprintf(w, `{"id": "in_%d"}`, len(f.received)) // a client that has gone asks again
	}
}

// set changes how it answers from now on.
func (f *farSide) set(change func(f *farSide)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f)
}

// did returns how often something was done.
func (f *farSide) did(what string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.received[what]
}

// shop is a process of the binary with a console. It makes invoices of the records of one topic, and webhooks
// of those of another one.
type shop struct {
	*service
	kafka *embedded.Servers
	far   *farSide
}

func startShop(t *testing.T) *shop {
	t.Helper()
	start := func() *embedded.Servers {
		servers, err := embedded.Start(t.Context(), embedded.Config{}, nil)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, servers.Stop(context.Background())) })
		return servers
	}
	redis, kafka, far := start(), start(), newFarSide(t) // so that Kafka can end alone
	listen, err := freePort()
	require.NoError(t, err)
	operations, err := freePort() // which commands ask what the instance knows
	require.NoError(t, err)
	dir := t.TempDir()
	s := &shop{kafka: kafka, far: far, service: &service{
		t: t, program: binary(t), config: filepath.Join(dir, "shop.yaml"), url: "http://" + listen, probe: "/none", log: &lockedBuffer{},
	}}
	require.NoError(t, os.WriteFile(s.config, fmt.Appendf(nil, `
instance_id: shop-1
command_wait: 1m
log: {format: text}
plugins:
  telemetry: {listen: %q}
  redis: {addrs: [%q]}
  kafka: {brokers: [%q], commit_interval: 100ms}
  promotion: {enabled: false}
  console: {enabled: true, listen: %q}
  deadletter: {store: {dsn: %q}}
  once: {ledger: {dsn: %q}}
  webhook: {enabled: true, topic: orders, url: %q, secret: known to the receiver, max_retries: 1000, retry: {first: 1s, max: 1s}}
  effects:
    kinds:
      invoice:
        repeat: by_key
        key: number
        group: customer
        request: {path: /v1/invoices, idempotency_header: Idempotency-Key}
        answers: {receipt: id}
        api: {url: %q, breaker: {min_calls: 3, open_delay: 1s}}
        effects: {topic: invoices, key_ttl: 23h, max_retries: 50, retry: {first: 100ms, max: 1s}}
`, operations, redis.RedisAddr(), kafka.KafkaAddrs()[0], listen, "sqlite:"+filepath.Join(dir, "dead.db"), "sqlite:"+filepath.Join(dir, "once.db"), far.URL+"/hooks", far.URL), 0o600))
	out, code := s.command("", "migrate")
	require.Zero(t, code, out)
	t.Cleanup(s.kill)
	s.start()
	return s
}

// send publishes records.
func (s *shop) send(topic string, records ...string) {
	s.t.Helper()
	out, code := s.command(strings.Join(records, "\n"), "send", topic, "--file", "-", "--why", "a test")
	require.Zero(s.t, code, out)
}

// invoiced publishes invoices of a customer, and waits until the far side has made each once.
func (s *shop) invoiced(customer string, numbers ...int) {
	s.t.Helper()
	s.orders(customer, numbers...)
	for _, n := range numbers {
		s.reached(invoiceKey(customer, n))
	}
}

func (s *shop) orders(customer string, numbers ...int) {
	s.t.Helper()
	var records []string
	for _, n := range numbers {
		records = append(records, fmt.Sprintf(`{"customer": %q, "number": "%d", "cents": %d}`, customer, n, 100*n))
	}
	s.send("invoices", records...)
}

func invoiceKey(customer string, number int) string {
	return fmt.Sprintf("invoice:%s:%d", customer, number)
}

// reached waits until the far side has done something once.
func (s *shop) reached(what string) {
	s.t.Helper()
	require.Eventually(s.t, func() bool { return s.far.did(what) > 0 }, 2*time.Minute, glance, "%s is not done\n%s", what, s.log)
	require.Equal(s.t, 1, s.far.did(what), what)
}

// reads waits until a person can read a text in an element of the page.
func (p *tab) reads(selector, text string) {
	p.t.Helper()
	require.Eventually(p.t, func() bool { return value[bool](p, readable(selector, text)) }, 2*time.Minute, glance, "%q is not in %s of this page:\n%s", text, selector, content{p})
}

// readable is a script that reports whether a person can read a text in an element of the page.
func readable(selector, text string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)].some((e) => e.checkVisibility() && (e.innerText ?? e.textContent).includes(%q))`, selector, text)
}

// content prints what a page says.
type content struct{ *tab }

func (c content) String() string { return value[string](c.tab, `document.body.innerText`) }

// follows clicks a link or button, which an XPath finds, until its page with a heading is there. A section may be
// replaced at the moment of a click.
func (p *tab) follows(xpath, heading string) {
	p.t.Helper()
	p.arrives(xpath, heading, func(ctx context.Context) error { return chromedp.Do(ctx, chromedp.Click(xpath)) })
}

// enters follows a link with the keyboard.
func (p *tab) enters(selector, heading string) {
	p.t.Helper()
	p.arrives(selector, heading, func(ctx context.Context) error {
		if !value[bool](p, fmt.Sprintf(`document.querySelector(%[1]q)?.focus(), document.activeElement.matches(%[1]q)`, selector)) {
			return errNoFocus
		}
		return chromedp.Do(ctx, chromedp.KeyEvent(kb.Enter))
	})
}

var errNoFocus = errors.New("it has no focus")

// arrives does something until the page with the heading is there.
func (p *tab) arrives(from, heading string, do func(context.Context) error) {
	p.t.Helper()
	arrived := fmt.Sprintf(`document.querySelector("h1")?.innerText === %q && location.href !== %q`, heading, value[string](p, `location.href`))
	var err error
	require.Eventually(p.t, func() bool {
		if value[bool](p, arrived) {
			return true
		}
		ctx, cancel := context.WithTimeout(p.ctx, 10*time.Second)
		defer cancel()
		err = do(ctx)
		return err == nil && value[bool](p, arrived)
	}, 2*time.Minute, glance, "%s does not lead to %q: %v", from, heading, err)
}

// link is the XPath of a link in the content of a page.
func link(text string) string { return fmt.Sprintf(`//main//a[normalize-space()=%q]`, text) }

// menu is the XPath of a link in the navigation.
func menu(text string) string { return fmt.Sprintf(`//nav//a[normalize-space()=%q]`, text) }

// button is the XPath of a button.
func button(text string) string { return fmt.Sprintf(`//button[normalize-space()=%q]`, text) }

// fills types into a field.
func (p *tab) fills(selector, text string) {
	p.t.Helper()
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.Click(chromedp.CSS(selector)), typed(text)))
	require.Equal(p.t, text, value[string](p, fmt.Sprintf(`document.querySelector(%q).value`, selector)))
}

// submits presses the button of a form whose answer has the same heading and address, and waits for it.
func (p *tab) submits(text string) {
	p.t.Helper()
	value[bool](p, `window.before = true`)
	require.NoError(p.t, chromedp.Do(p.ctx, chromedp.Click(button(text))))
	p.reaches("the answer to "+text, `window.before !== true && document.readyState === "complete"`)
}

// acts goes through the forms of an action that the page leads to, and waits for the page that says what was done.
func (p *tab) acts(action, preview, why string) {
	p.t.Helper()
	p.follows(link(action), action)
	p.submits("Preview")
	p.reads("main", preview)
	p.confirms(action, why)
}

// confirms fills in what a preview asks for, and sends it.
func (p *tab) confirms(action, why string) {
	p.t.Helper()
	p.fills("#why", why)
	if value[bool](p, `document.getElementById("confirm") !== null`) {
		p.fills("#confirm", action)
	}
	p.submits("Do it: " + action)
}
