package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/promql"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// dashboard is what these tests read of Grafana's format.
type dashboard struct {
	UID        string
	Panels     []panel
	Templating struct {
		List []struct {
			Name, Type, Definition string
			Datasource             source
		}
	}
}

type source struct{ Type, UID string }

type panel struct {
	ID                       int
	Type, Title, Description string
	Collapsed                bool
	Panels                   []panel // of a row that is collapsed
	row                      string  // the collapsed row that it is in
	Datasource               source
	GridPos                  struct{ X, Y, W, H int }
	FieldConfig              struct{ Defaults struct{ Unit string } }
	Targets                  []struct {
		RefID, Expr, LegendFormat string
		Datasource                source
	}
}

func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	files, err := filepath.Glob("../configs/grafana/*.json")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	all := map[string]dashboard{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		var d dashboard
		require.NoError(t, json.Unmarshal(text, &d), file)
		d.Panels = unfolded(d.Panels)
		all[filepath.Base(file)] = d
	}
	return all
}

// unfolded returns the panels with those of collapsed rows behind their rows.
func unfolded(panels []panel) (all []panel) {
	for _, p := range panels {
		all = append(all, p)
		for _, inside := range p.Panels {
			inside.row = p.Title
			all = append(all, inside)
		}
	}
	return all
}

// lint returns what is wrong with a dashboard whatever is scraped.
func (d dashboard) lint() []string {
	var wrong []string
	say := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if d.UID == "" {
		say("no uid: every import would make another dashboard")
	}
	chosen := source{"prometheus", "${datasource}"}
	variables := map[string]bool{}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
		if v.Type == "query" && v.Datasource != chosen {
			say("variable %s doesn't ask the chosen data source", v.Name)
		}
	}
	if !variables["datasource"] {
		say("no variable datasource")
	}
	ids, titles := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		if ids[p.ID] || p.ID == 0 {
			say("%q: the id %d is none, or used twice", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Title == "" || p.Type != "row" && titles[p.Title] {
			say("the title %q is none, or used twice", p.Title)
		}
		for _, q := range d.Panels[:i] {
			a, b := p.GridPos, q.GridPos
			if p.row == q.row && a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
				say("%q lies over %q", p.Title, q.Title)
			}
		}
		if p.Type == "row" {
			if opened := i == 0; opened == p.Collapsed || opened != (len(p.Panels) == 0) {
				say("%q must be collapsed, and contain its panels, unless it is the first row", p.Title)
			}
			continue
		}
		titles[p.Title] = true
		if p.FieldConfig.Defaults.Unit == "" {
			say("%q has no unit", p.Title)
		}
		if p.Description == "" {
			say("%q has no description", p.Title)
		}
		if len(p.Targets) == 0 {
			say("%q asks nothing", p.Title)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if p.Datasource != chosen || target.Datasource != chosen {
				say("%q doesn't ask the chosen data source", p.Title)
			}
			if refs[target.RefID] || target.RefID == "" {
				say("%q: the refId %q is none, or used twice", p.Title, target.RefID)
			}
			refs[target.RefID] = true
			for _, name := range variable.FindAllStringSubmatch(target.Expr, -1) {
				if !variables[name[1]] && !strings.HasPrefix(name[1], "__") {
					say("%q: no variable %s", p.Title, name[1])
				}
			}
		}
	}
	return wrong
}

var (
	variable    = regexp.MustCompile(`\$\{?(\w+)`)
	legendLabel = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
	labelValues = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
)

// expand puts values in the place of variables, as Grafana does it. A variable that is matched by a
// regular expression stands for all, one that is compared for the first value there is.
func (d dashboard) expand(query string, r *recorded) (string, []string) {
	var wrong []string
	query = strings.ReplaceAll(query, "$__rate_interval", "1m")
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		asked := labelValues.FindStringSubmatch(v.Definition)
		if asked == nil {
			return query, append(wrong, fmt.Sprintf("variable %s: %q is not label_values(metric, label)", v.Name, v.Definition))
		}
		wrong = append(wrong, misfits(r, fmt.Sprintf("count by (%s) (%s)", asked[2], asked[1]))...)
		first := ""
		for _, s := range r.series {
			if s.labels.Get(model.MetricNameLabel) == asked[1] {
				first = s.labels.Get(asked[2])
				break
			}
		}
		query = strings.ReplaceAll(query, `=~"$`+v.Name+`"`, `=~".+"`)
		query = strings.ReplaceAll(query, "$"+v.Name, first)
	}
	return query, wrong
}

// check returns what is wrong with a query of a panel and its legend.
func (d dashboard) check(t *testing.T, e *promql.Engine, r *recorded, expr, legend string) []string {
	t.Helper()
	query, wrong := d.expand(expr, r)
	if wrong = append(wrong, misfits(r, query)...); len(wrong) > 0 {
		return wrong
	}
	result, err := eval(t.Context(), e, r, query, r.last)
	switch {
	case err != nil:
		return []string{err.Error()}
	case len(result) == 0:
		return []string{"the result is empty"}
	}
	for _, name := range legendLabel.FindAllStringSubmatch(legend, -1) {
		if !result[0].Metric.Has(name[1]) {
			wrong = append(wrong, fmt.Sprintf("the legend shows %s, which the result doesn't have", name[1]))
		}
	}
	return wrong
}

// operated runs the built binary, everything embedded, with a campaign to pay, and returns where
// its operations server is.
func operated(t *testing.T, targets int, flags []string, env ...string) (base string, log *processLog) {
	t.Helper()
	addr, err := freePort()
	require.NoError(t, err)
	cmd := exec.Command(binary(t), append([]string{"demo", "--keep", "--targets", strconv.Itoa(targets)}, flags...)...)
	cmd.Env = append(os.Environ(), append(env, "MILLRACE__PLUGINS__TELEMETRY__LISTEN="+addr, "MILLRACE__INSTANCE_ID=observed", "MILLRACE__DATA_DIR="+t.TempDir())...)
	log = &processLog{}
	cmd.Stdout, cmd.Stderr = log, log
	done, err := startBound(cmd)
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-done:
		case <-time.After(2 * time.Minute):
			_ = cmd.Process.Kill()
			<-done
		}
	})
	return "http://" + addr, log
}

// observed has a process pay a campaign, and scrapes it as Prometheus does it.
func observed(t *testing.T) *recorded {
	t.Helper()
	settings := filepath.Join(t.TempDir(), "all.yaml")
	public, err := freePort()
	require.NoError(t, err)
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(`{"id": "n-1"}`)) // a client that has gone needs no answer
	}))
	t.Cleanup(far.Close)
	require.NoError(t, os.WriteFile(settings, []byte(`
plugins:
  effects:
    kinds:
      notice:
        repeat: never
        key: id
        group: for
        request: {path: /notices}
        answers: {receipt: id}
        api: {url: "`+far.URL+`"}
        effects: {results: notices-settled}
    http: {kinds: [notice], clients: {test: {token: the-token-of-the-test}}}
  waitingroom: {enabled: true, unknown_events: refuse, admin_tokens: {eve: the-token-of-operators}, shop_tokens: {tickets: the-token-of-a-shop}}
  redis: {domains: [{prefix: "scan:events", shards: 2, group: eventrouter, fields: true, exclusive: true}]}
  eventrouter: {enabled: true, domains: ["scan:events"]}
  web: {listen: "`+public+`", auth: {header: X-User}, trusted_proxies: [127.0.0.1]}
`), 0o600))
	base, log := operated(t, 300, []string{"--profile", "embedded", "--config", settings}, "MILLRACE__PLUGINS__RECLAIM__INTERVAL=1s")
	require.Eventually(t, func() bool { return log.has("Still running") }, 2*time.Minute, 50*time.Millisecond, "the demo has paid: %s", log)
	waits(t, base, public)
	request(t, http.StatusAccepted, http.MethodPost, public+"/once/notice", `{"key": "1", "group": "ann", "payload": {"id": "1", "for": "ann"}}`,
		"Authorization", "Bearer the-token-of-the-test", "Content-Type", "application/json")
	began := time.Now()
	// Reclaim writes its series after its first round. The service counts settled payouts every 15
	// seconds.
	for {
		first := newRecorded()
		first.scrape(t, base)
		if first.types["millrace_reclaim_lost_total"] != "" && first.types["millrace_redis_shard_entries"] != "" &&
			first.types["millrace_once_calls_total"] != "" && first.types["millrace_room_tick_age_seconds"] != "" && first.types["millrace_room_waiting"] != "" &&
			first.sum(t, `millrace_redis_shards_owned`) == 2 && first.sum(t, `millrace_promotion_payouts{state="SUCCESS"}`) == 600 {
			require.InDelta(t, 600, first.sum(t, `millrace_promotion_attempts_total{state="SUCCESS"}`), 0)
			break
		}
		require.Less(t, time.Since(began), 2*time.Minute, "the streams were looked at, and the ledger counted")
		pause(t, 200*time.Millisecond)
	}
	r := newRecorded()
	for range 3 {
		r.scrape(t, base)
		pause(t, 500*time.Millisecond)
	}
	return r
}

// request sends a request, whose headers are names and values in turn. The body of the answer stays open until
// the end of the test.
func request(t *testing.T, status int, method, address, body string, headers ...string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address, strings.NewReader(body))
	require.NoError(t, err)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	require.NoError(t, err)
	t.Cleanup(func() { _ = answer.Body.Close() })
	require.Equal(t, status, answer.StatusCode)
}

// waits opens a room with one seat, and lets a user wait in it until the end of the test.
func waits(t *testing.T, operations, public string) {
	t.Helper()
	request(t, http.StatusOK, http.MethodPost, strings.TrimPrefix(operations, "http://")+"/api/v1/rooms/42/open", `{"by":"test","why":"test","capacity":1}`,
		"Authorization", "Bearer the-token-of-operators")
	request(t, http.StatusOK, http.MethodGet, public+"/events/42/tickets/waiting", "", "X-User", "ann", "Accept", "text/event-stream")
}

// A real process has every series that the dashboard and the alerts query.
func TestDashboardsAndAlertsFitTheMetrics(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	r := observed(t)
	e := newEngine(t)
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				for _, wrong := range d.check(t, e, r, target.Expr, target.LegendFormat) {
					t.Errorf("%s: %q: %s\n%s", name, p.Title, wrong, target.Expr)
				}
			}
		}
	}
	checkAlerts(t, e, r)

	t.Run("what is misspelt goes red", func(t *testing.T) {
		d := dashboards(t)["millrace.json"]
		for query, want := range map[string]string{
			`sum(millrace_once_http_in_fligth)`:                                                         "nothing is scraped",
			`sum(rate(millrace_once_http_calls_total{class="doen"}[1m]))`:                               "nothing is scraped",
			`sum by (domian) (rate(millrace_reclaim_messages_total[1m]))`:                               "has the label domian",
			`millrace_once_http_in_flight / on (instantce) millrace_once_http_in_flight_limit`:          "has the label instantce",
			`rate(millrace_once_http_in_flight[1m])`:                                                    "is a gauge, not a counter",
			`sum(rate(millrace_once_http_calls_total[1m])`:                                              "parse error",
			`millrace_once_http_calls_total * on (instance) millrace_once_http_calls_total`:             "many-to-many",
			`millrace_once_http_in_flight > 1000`:                                                       "the result is empty",
			`histogram_quantile(0.9, sum by (le) (rate(millrace_once_http_call_duration_seconds[1m])))`: "nothing is scraped",
			`sum by (shard) (rate(millrace_reclaim_messages_total{domain="$dommain"}[1m]))`:             "nothing is scraped",
		} {
			require.Contains(t, strings.Join(d.check(t, e, r, query, ""), "\n"), want, query)
		}
		require.Equal(t, []string{"the legend shows class, which the result doesn't have"},
			d.check(t, e, r, `sum by (operation) (millrace_once_http_calls_total)`, "{{class}}"))
		require.Empty(t, d.check(t, e, r, `sum by (operation) (rate(millrace_once_http_calls_total{instance=~"$instance"}[$__rate_interval]))`, "{{operation}}"))
	})
}

func TestDashboardsAreInOrder(t *testing.T) {
	t.Parallel()
	for name, d := range dashboards(t) {
		for _, wrong := range d.lint() {
			t.Errorf("%s: %s", name, wrong)
		}
	}
	// The panels that the on-call person was promised.
	titles, uids := map[string]bool{}, map[string]bool{}
	for name, d := range dashboards(t) {
		require.False(t, uids[d.UID], "%s has the uid of another dashboard", name)
		uids[d.UID] = true
		for _, p := range d.Panels {
			require.False(t, titles[p.Title], "%s: another dashboard has %q, and the runbook names panels by their titles", name, p.Title)
			titles[p.Title] = p.Type != "row"
		}
	}
	for _, want := range []string{
		"Entries reclaimed, by domain", "Entries reclaimed, shards of $domain", "Entries taken over by readers", "Claim p99, by domain", "Oldest unpaid",
		"Dead letters, by topic", "Breaker",
	} {
		require.True(t, titles[want], want)
	}
}

func TestDashboardLintBites(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(d *dashboard)
		want  string
	}{
		"two panels with one id": {func(d *dashboard) { d.Panels[1].ID = d.Panels[2].ID }, "used twice"},
		"no unit":                {func(d *dashboard) { d.Panels[1].FieldConfig.Defaults.Unit = "" }, "has no unit"},
		"a data source of one's own": {func(d *dashboard) {
			d.Panels[1].Targets[0].Datasource.UID = "P1809F7CD0C75ACF3"
		}, "doesn't ask the chosen data source"},
		"a row that is open": {func(d *dashboard) {
			for i := range d.Panels[1:] {
				d.Panels[i+1].Collapsed = false
			}
		}, "must be collapsed"},
		"a row without its panels": {func(d *dashboard) {
			d.Panels = slices.DeleteFunc(d.Panels, func(p panel) bool { return p.row != "" })
			for i := range d.Panels {
				d.Panels[i].Panels = nil
			}
		}, "contain its panels"},
		"a panel over another":         {func(d *dashboard) { d.Panels[1].GridPos = d.Panels[2].GridPos }, "lies over"},
		"a variable that nobody knows": {func(d *dashboard) { d.Panels[1].Targets[0].Expr = `x{a="$dommain"}` }, "no variable dommain"},
		"no variable for the source":   {func(d *dashboard) { d.Templating.List = d.Templating.List[1:] }, "no variable datasource"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := dashboards(t)["millrace.json"]
			c.spoil(&d)
			require.Contains(t, strings.Join(d.lint(), "\n"), c.want)
		})
	}
}
