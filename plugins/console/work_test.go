package console_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	pages "github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// failing is a plugin whose route has failed.
type failing struct {
	*pipelinetest.Feed
	last pipeline.LastError
}

func (failing) Name() string { return "failing" }

func (f failing) Register(r *pipeline.Registry) error {
	r.Offer(f)
	r.Route(pipeline.Route{
		Name: "parcels", From: f, Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(*message.Message) ([]*message.Message, error) { return nil, nil },
	})
	return nil
}

func (f failing) Work(string) pipeline.RouteWork {
	return pipeline.RouteWork{DonePerSecond: new(1499.6), FailedPerSecond: new(0.25), LastError: &f.last}
}

func (f failing) Backlog(context.Context) (operate.Backlog, error) {
	return operate.Backlog{Waiting: new(int64), InFlight: new(int64), Oldest: f.last.At.Add(-time.Second)}, nil
}

// The home page says why messages of a route are tried again, in the table and in the graph, without what is masked.
func TestTheHomePageSaysWhyMessagesAreTriedAgain(t *testing.T) {
	t.Parallel()
	r := start(t, nil, failing{pipelinetest.NewFeed("parcels"), pipeline.LastError{
		At: time.Now().Add(-3 * time.Second), Record: "parcels/4@17", Class: "timeout", Text: "POST https://carrier.example/send?token=" + planted + " <b>",
	}})
	home := r.get("/")
	require.Regexp(t, `some messages failed and are tried again; the last error: parcels/4@17 failed \(timeout, \d+s ago\) on rig: POST https://carrier\.example/send\?token=\S+ &lt;b&gt;</`, home)
	require.Regexp(t, `<title>route parcels[^<]*parcels/4@17 failed`, home)
	require.Contains(t, home, "Rates and last errors are not known of all instances: without the plugin redis, instances tell each other nothing, so only this one is known.")
	require.Contains(t, string(r.panels("home")["routes"].Value), "parcels/4@17 failed")
	require.Contains(t, home, `<a href="/route?route=parcels">parcels</a>`)
	row := rows(t, r.panels("home")["routes"].Value, "route")["parcels"]
	require.Equal(t, []any{1499.6, 0.25}, []any{row["done_per_second"], row["failed_per_second"]})
	require.Regexp(t, `>1,500<.*>0\.2<`, strings.ReplaceAll(home, "\n", " "))

	// The page of the route has the parts of the sentence.
	one := r.get("/route?route=parcels")
	require.Regexp(t, `>parcels/4@17</td>\s*<td>timeout</td>\s*<td><time datetime="\S+Z" title="\S+Z">\d+s ago</time></td>\s*<td>rig</td>\s*<td>POST https://carrier\.example/send\?token=\S+ &lt;b&gt;</td>`, one)
	require.Contains(t, one, "some messages failed and are tried again")
	last := rows(t, r.panels("route?route=parcels")["last-error"].Value, "record")["parcels/4@17"]
	require.Equal(t, []any{"timeout", "rig"}, []any{last["class"], last["instance"]})
	require.Contains(t, last["error"], "POST https://carrier.example/send")
	r.requireNotFound("route?route=%3Cb%3E", `No route has the name "<b>". The page Pipeline has all routes.`)
	require.Contains(t, r.requireMasked(), "/route?route=parcels")
}

// A route that has not failed says so, and a rate that nobody knows is not 0.
func TestThePageOfARouteWithoutErrors(t *testing.T) {
	t.Parallel()
	r := start(t, nil, &carrier{})
	require.Contains(t, r.get("/route?route=parcels"), "No message of this route has failed and is tried again")
	r.requireNotFound("route?route=absent&panel=history", `No route has the name "absent". The page Pipeline has all routes.`)
	r.requireNotFound("route", `No route has the name "". The page Pipeline has all routes.`)
	row := rows(t, r.panels("route?route=parcels")["route"].Value, "route")["parcels"]
	require.Nil(t, row["done_per_second"])
	require.Nil(t, row["failed_per_second"])
}

// measuring has a route whose retries another route reads, and what a chain and a store tell of both.
type measuring struct{ returning }

func (m measuring) Register(r *pipeline.Registry) error {
	r.Offer(m)
	return m.returning.Register(r)
}

func (measuring) Measures(route string) pipeline.RouteMeasures {
	if route != "parcels" {
		return pipeline.RouteMeasures{Outcomes: []pipeline.Outcome{{Outcome: "dead", Class: "<b>", Messages: 2}}}
	}
	return pipeline.RouteMeasures{
		Outcomes:  []pipeline.Outcome{{Outcome: "acked", Messages: 1200}, {Outcome: "retried", Class: "timeout", Messages: 4}},
		Durations: pipeline.Distribution{Count: 100, Sum: 25, Bounds: []float64{0.1, 1}, AtMost: []uint64{50, 90}},
		Batches:   pipeline.Distribution{Count: 8, Sum: 20},
	}
}

func (measuring) WaitingByRoute(context.Context) (map[string]int64, bool, error) {
	return map[string]int64{"parcels": 3, "parcels.retry": 2}, true, nil
}

// The page of a route leads to its places and to its dead letters, and has what this instance has measured.
func TestThePageOfARouteHasItsPlacesAndMeasures(t *testing.T) {
	t.Parallel()
	topics := contributor{{Path: "topics", Title: "Topics", Places: []string{"feed"}, Panels: []pages.Panel{loading("topics", pages.Text("all topics"), nil)}}}
	r := start(t, nil, measuring{}, topics)
	page := strings.ReplaceAll(r.get("/route?route=parcels"), "\n", "")
	require.Regexp(t, `<td>are read from</td><td><a href="/topics">feed parcels</a></td>`, page)
	require.Regexp(t, `<td>wait for a retry in</td><td><a href="/topics">feed parcels-retry</a></td>`, page)
	require.Regexp(t, `<td>end as dead letters in</td><td>none, because the route drops them</td>`, page)
	require.Contains(t, page, `<a href="/dead-letters?handler=parcels">3</a>`)
	require.Contains(t, page, `<a href="/dead-letters?handler=parcels.retry">2 of parcels.retry</a>`)
	require.Contains(t, page, `<td>parcels</td><td>acked</td><td></td><td class="number">1,200</td>`)
	require.Contains(t, page, `<td>parcels.retry</td><td>dead</td><td>&lt;b&gt;</td><td class="number">2</td>`)
	require.Contains(t, page, `<td>parcels</td><td class="number">100</td><td class="number">250ms</td><td class="number">100ms</td><td class="number">more than 1s</td><td class="number">8</td><td class="number">2.5</td>`)
	require.Contains(t, page, "These are the numbers of this instance alone, since it was started")
}
