package console_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"html"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/embedded"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/sqldb"
	"github.com/millrace-io/millrace/plugins/telemetry"
)

// shop is a handler: it refuses a message that is bad, and another one waits until the test has ended.
type shop struct {
	kafka   *kafka.Plugin
	redis   *redis.Plugin
	dead    *deadletter.Plugin
	prefix  string // of its topics and groups
	release chan struct{}
}

func (*shop) Name() string { return "shop" }

func (s *shop) Register(r *pipeline.Registry) error {
	handle := func(m *message.Message) ([]*message.Message, error) {
		if string(m.Payload) == "wait" {
			select {
			case <-s.release:
			case <-m.Context().Done():
			}
			return nil, nil
		}
		said := "the amount is <b>negative</b>"
		if m.Metadata.Get("said") != "" {
			said = m.Metadata.Get("said")
		}
		return nil, pipeline.WithClass(pipeline.Permanent(errors.New(said)), "rejected")
	}
	r.Route(pipeline.Route{Name: "shop.orders", From: s.kafka.Source(s.prefix+"orders", s.prefix+"shop"), Handle: handle, Policy: pipeline.Policy{DeadLetter: s.dead.Sink(s.prefix + "orders-dead")}})
	r.Route(pipeline.Route{Name: "shop.mails", From: s.redis.Source("mails", "shop"), Handle: handle, Policy: pipeline.Policy{DeadLetter: s.dead.Sink(s.prefix + "orders-dead")}})
	r.Health("shop", func(ctx context.Context) error {
		telemetry.Detail(ctx, "open_carts", 3)
		return errors.New("no order for an hour")
	})
	return nil
}

// proxy is between the process and a server. Frozen, it passes nothing on and closes nothing.
type proxy struct {
	listener net.Listener
	to       string
	answer   func(*bufio.Reader) ([]byte, error) // reads what the server sends; nil: as it comes
	work     sync.WaitGroup
	mu       sync.Mutex // held while it is frozen
}

func newProxy(t *testing.T, to string, answer func(*bufio.Reader) ([]byte, error)) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{listener: listener, to: to, answer: answer}
	p.work.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			p.work.Go(func() {
				server, err := net.Dial("tcp", p.to)
				if err != nil {
					_ = client.Close()
					return
				}
				p.work.Go(func() { p.pass(server, client, p.answer) })
				p.pass(client, server, nil)
			})
		}
	})
	return p
}

// close ends the proxy after its clients.
func (p *proxy) close() {
	_ = p.listener.Close()
	p.work.Wait()
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) pass(from, to net.Conn, read func(*bufio.Reader) ([]byte, error)) {
	defer func() { _, _ = from.Close(), to.Close() }()
	buffered, buffer := bufio.NewReader(from), make([]byte, 32<<10)
	if read == nil {
		read = func(r *bufio.Reader) ([]byte, error) {
			n, err := r.Read(buffer)
			return buffer[:n], err
		}
	}
	for {
		part, err := read(buffered)
		if len(part) > 0 {
			p.mu.Lock()
			_, wrong := to.Write(part)
			p.mu.Unlock()
			err = errors.Join(err, wrong)
		}
		if err != nil {
			return
		}
	}
}

// process is a binary of another module with an embedded pipeline.
type process struct {
	*rig
	redis *proxy
	kafka *kafka.Plugin
	send  func(payload string) // to the route of Kafka
}

// plugged returns further plugins of a process.
type plugged func(*kafka.Plugin, *deadletter.Plugin) []pipeline.Plugin

// startProcess starts the process with embedded servers, with the plugins that further returns, which may be nil,
// and with settings of theirs.
func startProcess(t *testing.T, further plugged, settings map[string]string) *process {
	t.Helper()
	all := map[string]string{"plugins.deadletter.store.dsn": "sqlite:{dir}/dead.db"}
	maps.Copy(all, settings)
	environment := embedded.Environment(all)
	start := environment.Start
	var between *proxy
	environment.Start = func(ctx context.Context, dir string, log *slog.Logger) (map[string]any, func(context.Context) error, error) {
		overrides, stop, err := start(ctx, dir, log)
		if err != nil {
			return nil, nil, err
		}
		addrs, _ := overrides["plugins.redis.addrs"].([]string)
		between = newProxy(t, addrs[0], nil)
		overrides["plugins.redis.addrs"] = []string{between.addr()}
		return overrides, func(ctx context.Context) error {
			err := stop(ctx)
			between.close()
			return err
		}, nil
	}
	p := runProcess(t, "", environment, further)
	p.redis = between
	return p
}

// runProcess starts the process in an environment.
func runProcess(t *testing.T, prefix string, environment app.Environment, further plugged) *process {
	t.Helper()
	k, rd := kafka.New(), redis.New()
	dead, pages := deadletter.New(k, rd).StoreIn(sqldb.Databases{}), console.New()
	s := &shop{k, rd, dead, prefix, make(chan struct{})}
	plugins := []pipeline.Plugin{telemetry.New(), rd, k, dead, s}
	if further != nil {
		plugins = append(plugins, further(k, dead)...)
	}
	var log pipelinetest.Buffer
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		ended <- app.Main(ctx, app.Options{
			Name: "mine", Version: "v1.2.3", Plugins: append(plugins, pages), Args: []string{"run"},
			Environments: map[string]app.Environment{"embedded": environment}, Stdout: io.Discard, Stderr: &log,
			Environ: []string{
				"MINE__ENVIRONMENT=embedded", "MINE__DATA_DIR=" + filepath.Join(t.TempDir(), "data"), "MINE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0",
				"MINE__PLUGINS__CONSOLE__ENABLED=true", "MINE__PLUGINS__CONSOLE__LISTEN=127.0.0.1:0", "MINE__INSTANCE_ID=mine-1",
				"MINE__PLUGINS__REDIS__PASSWORD=", "MINE__LOG__FORMAT=text",
			},
		})
	}()
	t.Cleanup(func() {
		close(s.release)
		cancel()
		select {
		case code := <-ended:
			require.Equal(t, app.ExitOK, code, log.String())
		case <-time.After(2 * time.Minute):
			require.Fail(t, "the process does not end", log.String())
		}
	})
	require.Eventually(t, func() bool { return pages.Addr() != "" }, 2*time.Minute, 10*time.Millisecond, log.String())
	send := func(to pipeline.Sink, payload string) {
		require.NoError(t, to.Publish(t.Context(), message.NewMessage("id-"+payload, message.Payload(payload))))
	}
	send(k.Sink(prefix+"orders"), hostilePayload)
	send(rd.Sink("mails"), "wait")
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	r := &rig{t: t, log: &log, client: client, base: "http://" + pages.Addr()}
	return &process{r, nil, k, func(payload string) { send(k.Sink(prefix+"orders"), payload) }}
}

const hostilePayload = `{"id":1152921504606846977,"name":"<img src=x onerror=alert(1)>"}`

// rows returns the rows of a table in the answer of the API, by the value of a column.
func rows(t *testing.T, value json.RawMessage, column string) map[string]map[string]any {
	t.Helper()
	var table []map[string]any
	if err := json.Unmarshal(value, &table); err != nil { // the first of several blocks that is a table
		var blocks []json.RawMessage
		require.NoError(t, json.Unmarshal(value, &blocks), string(value))
		for _, b := range blocks {
			if json.Unmarshal(b, &table) == nil {
				break
			}
		}
	}
	found := map[string]map[string]any{}
	for _, row := range table {
		name, _ := row[column].(string)
		found[name] = row
	}
	return found
}

// Each page of a pipeline with real messages, with a Redis that freezes at the end.
func TestPagesOfAPipeline(t *testing.T) {
	t.Parallel()
	p := startProcess(t, nil, nil)
	eventually := func(what string, ok func() bool) {
		t.Helper()
		require.Eventually(t, ok, 2*time.Minute, 50*time.Millisecond, what)
	}
	// A busy machine may be late with any panel, so each page is read until none of its panels is.
	settled := func(path string) (text string) {
		t.Helper()
		eventually("a page without late panels: "+path, func() bool {
			text = p.get(path)
			return !strings.Contains(text, "No answer within")
		})
		return text
	}
	row := func(page, panel, column, name string) map[string]any {
		t.Helper()
		var found json.RawMessage
		eventually("the panel "+panel+" of the page "+page, func() bool {
			one := p.panels(page)[panel]
			found = one.Value
			return one.State == "ok"
		})
		return rows(t, found, column)[name]
	}

	eventually("the dead letter of the route", func() bool { return row("home", "routes", "route", "shop.orders")["dead_letters"] == 1.0 })
	eventually("the rate of a route", func() bool {
		_, known := row("home", "routes", "route", "shop.orders")["done_per_second"].(float64)
		return known
	})
	eventually("the entry in flight", func() bool { return row("home", "routes", "route", "shop.mails")["in_flight"] == 1.0 })
	home := ""
	eventually("the drawing of the route", func() bool { // Kafka learns of a handled message when its offset is committed
		home = settled("/")
		return strings.Contains(home, "<title>route shop.orders, warn: dead letters wait for a person; waiting 0; retries 0; dead 1; done/s ")
	})
	require.Regexp(t, `(?s)id="conditions-title".*id="graph-title".*id="routes-title"`, home, "trouble is seen without scrolling")
	require.Contains(t, home, `<td class="level warn">dead letters wait for a person</td>`)
	require.Contains(t, home, "kafka orders, group shop")
	require.Contains(t, home, `<g class="edge dead" data-from="route shop.orders" data-to="kafka orders-dead">`)
	require.NotContains(t, home, "style=", "the policy of the console permits none")
	eventually("the check that fails", func() bool { return row("home", "checks", "check", "shop")["state"] == "fails" })
	home = settled("/")
	require.Contains(t, home, "no order for an hour")
	require.Contains(t, home, "open carts: 3")
	require.Less(t, strings.Index(home, "no order for an hour"), strings.Index(home, "<td>kafka</td>"), "what fails comes first")

	require.Equal(t, "orders", row("topics", "groups", "group", "shop")["topic"])
	topics := settled("/topics")
	require.Contains(t, topics, "orders-dead")
	require.Contains(t, topics, "max.message.bytes")

	mails := row("streams", "streams", "stream", "mails")
	require.Equal(t, 1.0, mails["entries"])
	require.Equal(t, 1.0, mails["pending"])
	require.Equal(t, "shop", mails["group"])
	require.Contains(t, settled("/streams"), `href="/stream?stream=mails"`)
	_, entry, _ := strings.Cut(settled("/stream?stream=mails"), `href="/stream?entry=`)
	entry, _, _ = strings.Cut(entry, `&amp;`)
	require.Regexp(t, `Group shop</dt>\s*<dd[^>]*>pending; deliveries: \d+`, settled("/stream?stream=mails&entry="+entry))

	self := row("instances", "instances", "instance", "mine-1")
	require.Equal(t, []any{"runs, and serves this page", "v1.2.3"}, []any{self["state"], self["version"]})

	group := row("dead-letters", "groups", "route", "shop.orders")
	require.Equal(t, 1.0, group["count"])
	require.Equal(t, "the amount is <b>negative</b>", group["error"])
	id, _ := group["example"].(string)
	letters := settled("/dead-letters")
	require.Contains(t, letters, `href="/dead-letters/letter?id=`+id+`"`)
	_, link, _ := strings.Cut(letters, `href="/dead-letters/group?`)
	link, _, _ = strings.Cut(link, `"`)
	require.Contains(t, settled("/dead-letters/group?"+link), `href="/dead-letters/letter?id=`+id+`"`)
	letter := settled("/dead-letters/letter?id=" + id)
	require.Contains(t, letter, "the amount is &lt;b&gt;negative&lt;/b&gt;")
	require.Contains(t, letter, "<details><summary>Payload</summary>")
	require.Contains(t, letter, "{&#34;id&#34;:1152921504606846977,&#34;name&#34;:&#34;&lt;img src=x onerror=alert(1)&gt;&#34;}")
	require.NotContains(t, letter, "<img")
	require.Contains(t, settled("/dead-letters/letter?id=absent"), "No dead letter has the id")

	written := row("settings", "written", "setting", "plugins.console.listen")
	require.Equal(t, "127.0.0.1:0", written["value"])
	require.Equal(t, "environment variable MINE__PLUGINS__CONSOLE__LISTEN", written["source"])
	require.Equal(t, "set", row("settings", "written", "setting", "plugins.deadletter.store.dsn")["value"])
	require.NotContains(t, settled("/settings"), "dead.db", "a secret is not shown")
	require.Equal(t, "10s", row("settings", "defaults", "setting", "publish_timeout")["value"])

	require.NotContains(t, p.get("/doctor"), "process memory")
	var doctor string
	eventually("the answer of doctor", func() bool {
		answer, text := p.do(http.MethodPost, "/doctor", "panel=doctor")
		doctor = text
		return answer.StatusCode == http.StatusOK && !strings.Contains(text, "No answer within")
	})
	require.Contains(t, doctor, "process memory")
	require.Contains(t, doctor, "kafka brokers")

	// A second dead letter is discarded from its page, and the audit names the console.
	p.send("another")
	eventually("the second dead letter", func() bool { return row("dead-letters", "groups", "route", "shop.orders")["count"] == 2.0 })
	var compare string
	eventually("the link to the second dead letter", func() (found bool) { // a page that was just read is kept for a moment
		_, compare, found = strings.Cut(settled("/dead-letters/letter?id="+id), `href="/dead-letters/compare?`)
		return found
	})
	compare, _, _ = strings.Cut(compare, `"`)
	compare = html.UnescapeString(compare)
	both := settled("/dead-letters/compare?" + compare)
	require.Contains(t, both, "<td>Error</td><td>same</td><td>the amount is &lt;b&gt;negative&lt;/b&gt;</td>")
	require.Contains(t, both, "<td>From</td><td>differs</td><td>kafka orders/")
	require.Contains(t, both, "<td>Payload</td><td>differs</td>")
	require.NotContains(t, both, "<img")
	require.Contains(t, both, `href="/actions/deadletter/discard?`+html.EscapeString(compare)+`"`)
	require.Contains(t, p.get("/topics"), `href="/actions/topics/create"`)
	require.Contains(t, p.get("/dead-letters/group?"+link), `href="/actions/deadletter/replay?`+link+`"`)
	require.Contains(t, p.get("/dead-letters/letter?id="+id), `href="/actions/deadletter/discard?id=`+id+`"`)
	require.Contains(t, p.get("/actions/deadletter/discard?id="+id), id+"</textarea>")
	confirm, preview := p.previewed("/actions/deadletter/discard", url.Values{"in.id": {id}})
	require.Contains(t, preview, "1 dead letter: 1 would be discarded; nothing was changed.")
	confirm.Set("why", "a <b>test</b>")
	confirm.Set("confirm", "deadletter discard")
	for range 2 {
		answer, text := p.post("/actions/deadletter/discard", confirm)
		require.Equal(t, http.StatusSeeOther, answer.StatusCode, text)
		require.Contains(t, p.get(answer.Header.Get("Location")), "1 dead letter: 1 discarded.")
	}
	eventually("the audit on the page", func() bool { // which may show values of a second ago
		return strings.Contains(p.get("/dead-letters/letter?id="+id), "<td>anonymous (console)</td><td>a &lt;b&gt;test&lt;/b&gt;</td>")
	})
	discarded := row("audit", "dead-letters", "subject", id)
	require.Equal(t, []any{"discard", "anonymous", "console", "a <b>test</b>", "discarded"}, []any{discarded["action"], discarded["who"], discarded["from"], discarded["why"], discarded["outcome"]})
	_, elsewhere, _ := strings.Cut(p.get("/audit"), "What is not here")
	require.Contains(t, elsewhere, "All actions of this instance are recorded in a place above.")
	status, did := p.rig.send("deadletter/discard", `{"input":{"id":["`+id+`"]},"why":"again"}`)
	require.Equal(t, http.StatusConflict, status, did)
	require.Equal(t, 1.0, did["outcome"].(map[string]any)["skipped"])
	status, did = p.rig.send("topics/create", `{"dry_run":true}`)
	require.Equal(t, http.StatusOK, status, did)
	require.Contains(t, did["outcome"], "topics")
	eventually("the discard", func() bool { return row("home", "routes", "route", "shop.orders")["dead_letters"] == 1.0 })

	p.redis.mu.Lock()
	defer p.redis.mu.Unlock()
	eventually("the frozen Redis", func() bool { return p.panels("instances")["instances"].State != "ok" })
	eventually("the numbers of the route", func() bool {
		mails := rows(t, p.panels("home")["routes"].Value, "route")["shop.mails"]
		state, _ := mails["state"].(string)
		return mails["waiting"] == nil && mails["in_flight"] == nil && strings.HasSuffix(state, " does not answer")
	})
	eventually("the numbers of Kafka and of the store", func() bool {
		orders := rows(t, p.panels("home")["routes"].Value, "route")["shop.orders"]
		return orders["dead_letters"] == 1.0 && orders["waiting"] == 0.0
	})
	eventually("the drawing", func() bool {
		home := p.get("/")
		return strings.Contains(home, "<title>route shop.mails, fail: not known, because redis") &&
			strings.Contains(home, "<title>route shop.orders, warn: dead letters wait for a person; waiting 0; retries 0; dead 1; done/s ")
	})
	eventually("the page of Kafka", func() bool { return p.panels("topics")["groups"].State == "ok" })
	eventually("the page of dead letters", func() bool { return p.panels("dead-letters")["groups"].State == "ok" })
	eventually("the number that is not known", func() bool { return strings.Contains(p.get("/"), `<td class="number">unknown</td>`) })
}
