package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/console"
)

// chronicle has routes, and what its instances did in the steps before the one that is not over.
type chronicle struct {
	routes int
	steps  func(ago int64) (map[string]operate.Handled, bool) // 1: the last one
	err    error
}

func (chronicle) Name() string { return "chronicle" }

func (c chronicle) Register(r *pipeline.Registry) error {
	for n := range c.routes {
		r.Route(pipeline.Route{Name: fmt.Sprint("route", n), From: pipelinetest.NewFeed(fmt.Sprint("in", n)), Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
			Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil }})
	}
	r.Offer(c)
	return nil
}

func (c chronicle) ReadHistory(context.Context) (map[int64]map[string]operate.Handled, int64, error) {
	all, now := map[int64]map[string]operate.Handled{}, time.Now().Unix()/15
	for ago := range int64(64) {
		if handled, known := c.steps(ago); known {
			all[now-ago] = handled
		}
	}
	return all, now, c.err
}

// drawn is a chart of the API.
type drawn struct {
	Unit  string
	Begin time.Time
	Step  float64 `json:"step_seconds"`
	Lines []struct {
		Name   string
		Values []*float64
	}
}

// busy did more on each route than on the one before it, and nothing is known of two minutes.
func busy(ago int64) (map[string]operate.Handled, bool) {
	handled := map[string]operate.Handled{}
	for n := range uint64(8) {
		handled[fmt.Sprint("route", n)] = operate.Handled{Done: n * 150}
	}
	handled["route1"] = operate.Handled{Done: 150, Failed: 30}
	return handled, ago < 20 || ago >= 28
}

func TestTheHomePageHasAChartOfTheBusiestRoutes(t *testing.T) {
	t.Parallel()
	r := start(t, nil, chronicle{routes: 9, steps: busy})
	var charts []drawn
	require.NoError(t, json.Unmarshal(r.panels("home")["history"].Value, &charts))
	require.Len(t, charts, 2)
	handled := charts[0]
	require.Equal(t, []any{"Messages handled per second", 15.0}, []any{handled.Unit, handled.Step})
	require.InDelta(t, time.Now().Add(-15*time.Minute).Unix(), handled.Begin.Unix(), 120)
	require.Len(t, handled.Lines, 6)
	for i, name := range []string{"route7", "route6", "route5", "route4", "route3", "2 other routes"} {
		require.Equal(t, name, handled.Lines[i].Name)
		require.Len(t, handled.Lines[i].Values, operate.HistorySteps)
	}
	require.InDelta(t, 70, *handled.Lines[0].Values[0], 1e-9)
	require.InDelta(t, 30, *handled.Lines[5].Values[0], 1e-9, "10 of one and 20 of another")
	unknown := 0
	for _, v := range handled.Lines[5].Values {
		if v == nil {
			unknown++
		}
	}
	require.Equal(t, 8, unknown)
	require.Len(t, charts[1].Lines, 1)
	require.Equal(t, "route1", charts[1].Lines[0].Name)

	page := r.get("/")
	require.Contains(t, page, `<figcaption>Messages handled per second, <span class="note">drawn from 0 to 80</span></figcaption>`)
	require.Contains(t, page, `<th scope="row" class="key l0">route7</th><td class="number">70</td><td class="number">70</td>`)
	require.Contains(t, page, "A gap is a time that no instance has told anything about, 2m in all.")
	_, text := r.do(http.MethodGet, "/", "", "Accept: text/plain; columns=80")
	require.Regexp(t, `(?m)^route7 +70 +70 +█+ +█+$`, text)
	require.Contains(t, text, "Messages that failed, per second:")
	for line := range strings.Lines(text) {
		require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), 80)
	}
}

func TestThePageOfARouteHasItsChart(t *testing.T) {
	t.Parallel()
	r := start(t, nil, chronicle{routes: 9, steps: busy})
	var chart drawn
	require.NoError(t, json.Unmarshal(r.panels("route?route=route1")["history"].Value, &chart))
	require.Equal(t, []any{"handled", 10.0, "failed", 2.0}, []any{chart.Lines[0].Name, *chart.Lines[0].Values[59], chart.Lines[1].Name, *chart.Lines[1].Values[59]})
}

// A chart without anything to draw says why.
func TestAChartThatHasNothingToDraw(t *testing.T) {
	t.Parallel()
	never := func(int64) (map[string]operate.Handled, bool) { return nil, false }
	idle := func(int64) (map[string]operate.Handled, bool) { return nil, true }
	for name, c := range map[string]struct {
		plugin pipeline.Plugin
		text   string
	}{
		"nobody keeps it": {contributor{}, "Without the plugin redis nothing keeps what instances did."},
		"no route":        {chronicle{steps: busy}, "This process has no routes."},
		"idle":            {chronicle{routes: 1, steps: idle}, "Messages handled per second: none were."},
		"not told yet":    {chronicle{routes: 1, steps: never}, "Messages handled per second: no instance has told anything yet"},
		"refused":         {chronicle{routes: 1, steps: never, err: errors.New("WRONGPASS of the server")}, "WRONGPASS of the server"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, nil, c.plugin)
			require.Contains(t, r.get("/"), c.text)
			_, text := r.do(http.MethodGet, "/", "", "Accept: text/plain; columns=200")
			require.Contains(t, text, c.text)
		})
	}
}

// A server that answers no more leaves the chart as it was, and says so without what is masked.
func TestAChartThatIsOld(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	released := make(chan struct{})
	c := console.New()
	c.PatientButForSources()
	r := startOf(t, c, nil, chronicle{routes: 9, steps: func(ago int64) (map[string]operate.Handled, bool) {
		if hangs.Load() && ago == 0 {
			<-released
		}
		return busy(ago)
	}})
	t.Cleanup(func() { close(released) })
	r.eventually("the chart", func() bool { return strings.Contains(r.get("/"), ">route7</th>") })
	hangs.Store(true)
	r.eventually("the old chart", func() bool {
		return strings.Contains(r.get("/"), "Nothing newer is known: no answer within 400ms, so its numbers are ")
	})
	require.Contains(t, r.get("/"), `<th scope="row" class="key l0">route7</th>`)
}

// Names of lines are those of anybody.
func TestAChartShowsForeignNamesAsText(t *testing.T) {
	t.Parallel()
	one := 1.0
	s := pages.Series{Unit: "<b>a", Note: "<b>c", Lines: []pages.Line{{Name: "<b>d token=abc", Values: []*float64{&one, nil}}}}
	r := start(t, nil, page(loading("chart", s, nil), loading("none", pages.Series{Unit: "<b>e", Empty: "<b>f"}, nil)))
	text := r.get("/tried")
	require.NotContains(t, text, "<b>")
	require.Contains(t, text, "&lt;b&gt;d token=")
	require.NotContains(t, text, "token=abc", "it is masked")
	require.NotContains(t, r.get("/api/v1/tried"), "token=abc")
	_, plain := r.do(http.MethodGet, "/tried", "", "Accept: text/plain")
	require.Contains(t, plain, "<b>d token=")
	require.NotContains(t, plain, "token=abc")
}
