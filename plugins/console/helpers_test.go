package console_test

import (
	"context"
	"encoding/json"
	"html"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
)

// The meters of Sarama have a goroutine until the process ends.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/rcrowley/go-metrics.(*meterArbiter).tick"))
}

// contributor is a plugin with pages.
type contributor []pages.Page

func (contributor) Name() string                          { return "contributor" }
func (c contributor) Register(r *pipeline.Registry) error { r.Offer(c); return nil }
func (c contributor) Console() []pages.Page               { return c }

// rig is a process with a console.
type rig struct {
	t      testing.TB
	log    *pipelinetest.Buffer
	client *http.Client
	base   string
	plugin *console.Plugin
	stop   func() error // may be called twice
}

// start starts a console with pages that waits for them while the machine stands still. configure may be nil.
func start(t testing.TB, configure func(*console.Config), plugins ...pipeline.Plugin) *rig {
	t.Helper()
	c := console.New()
	c.Patient()
	return startOf(t, c, configure, plugins...)
}

// startHasty starts a console that waits for panels and actions as long as in production.
func startHasty(t testing.TB, configure func(*console.Config), plugins ...pipeline.Plugin) *rig {
	t.Helper()
	return startOf(t, console.New(), configure, plugins...)
}

func startOf(t testing.TB, c *console.Plugin, configure func(*console.Config), plugins ...pipeline.Plugin) *rig {
	t.Helper()
	config := c.Settings().(*console.Config)
	config.Listen = "127.0.0.1:0"
	if configure != nil {
		configure(config)
	}
	require.NoError(t, config.Validate())
	r := &rig{t: t, plugin: c, log: &pipelinetest.Buffer{}, client: &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true}, Timeout: time.Minute,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	registry, err := pipeline.NewRegistry(pipeline.Env{Instance: "rig", Logger: slog.New(slog.NewTextHandler(r.log, nil))}, append(plugins, c)...)
	require.NoError(t, err)
	runtime := pipeline.NewRuntime(registry, pipeline.RuntimeOptions{})
	require.NoError(t, runtime.StartServices(t.Context()))
	r.stop = func() error { return runtime.Stop(context.Background()) }
	t.Cleanup(func() { require.NoError(t, r.stop()) })
	r.base = "http://" + c.Addr()
	return r
}

// answered is an answer without its body.
type answered struct {
	StatusCode int
	Header     http.Header
}

// do sends a request, whose headers are name: value lines, and returns the answer and its body.
func (r *rig) do(method, path, body string, headers ...string) (answered, string) {
	r.t.Helper()
	request, err := http.NewRequest(method, r.base+path, strings.NewReader(body))
	require.NoError(r.t, err)
	if body != "" {
		request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Host" {
			request.Host = value
		}
		request.Header.Set(name, value)
	}
	answer, err := r.client.Do(request)
	require.NoError(r.t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(r.t, err)
	return answered{answer.StatusCode, answer.Header}, string(text)
}

func (r *rig) get(path string) string {
	r.t.Helper()
	answer, text := r.do(http.MethodGet, path, "")
	require.Equal(r.t, http.StatusOK, answer.StatusCode, text)
	return text
}

// requireNotFound fails unless the page and its JSON say with the status 404 that there is no such thing.
func (r *rig) requireNotFound(path, why string) {
	r.t.Helper()
	for _, address := range []string{"/" + path, "/api/v1/" + path} {
		answer, text := r.do(http.MethodGet, address, "")
		require.Equal(r.t, http.StatusNotFound, answer.StatusCode, address)
		if strings.HasPrefix(answer.Header.Get("Content-Type"), "application/json") {
			var problem struct{ Error string }
			require.NoError(r.t, json.Unmarshal([]byte(text), &problem), text)
			text = problem.Error
		}
		require.Contains(r.t, html.UnescapeString(text), why, address)
	}
}

// unhurried returns a page of startHasty of which at most one panel is late. All of them are while the machine stands still.
func (r *rig) unhurried(path string) (text string) {
	r.t.Helper()
	for end := time.Now().Add(time.Minute); ; {
		if text = r.get(path); strings.Count(text, "No answer within ") <= 1 || time.Now().After(end) {
			return text
		}
	}
}

// panel is one of an answer of the API.
type panel struct {
	Panel, State, Problem string
	At                    *time.Time
	Value                 json.RawMessage
}

// panels returns those of a page, by name.
func (r *rig) panels(path string) map[string]panel {
	r.t.Helper()
	var answer struct{ Panels []panel }
	require.NoError(r.t, json.Unmarshal([]byte(r.get("/api/v1/"+path)), &answer))
	all := map[string]panel{}
	for _, p := range answer.Panels {
		all[p.Panel] = p
	}
	return all
}

// page returns a page with panels.
func page(panels ...pages.Panel) contributor {
	return contributor{{Path: "tried", Title: "Tried", Panels: panels}}
}

// loading returns a panel of one block.
func loading(name string, b pages.Block, err error) pages.Panel {
	return pages.Panel{Name: name, Title: "Panel " + name, Load: func(context.Context, pages.Query) (pages.Block, error) { return b, err }}
}
