package redis

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// parcels is a route that handles what it reads, unless it is bad.
type parcels struct {
	p      *Plugin
	stream string
}

func (parcels) Name() string { return "parcels" }

func (s parcels) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{
		Name: "parcels", From: s.p.Source(s.stream, "g"), Policy: pipeline.Policy{DeadLetter: pipeline.Drop},
		Handle: func(m *message.Message) ([]*message.Message, error) {
			if string(m.Payload) == "bad" {
				return nil, pipeline.Permanent(fmt.Errorf("no"))
			}
			return nil, nil
		},
	})
	return nil
}

// depot is a server with instances of the route, each of which has a stream of its own.
type depot struct {
	t      *testing.T
	server redistest.Server
	db     int
}

func (d depot) plugin() *Plugin {
	p, _, _ := retryPlugin(d.t, d.server)
	p.cfg.DB = d.db
	return p
}

// start starts an instance, which reads a stream.
func (d depot) start(name, stream string) (p *Plugin, stop func()) {
	d.t.Helper()
	p = d.plugin()
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: name, Logger: redistest.Logger(d.t)}, p, parcels{p, stream})
	require.NoError(d.t, err)
	chain := middleware.New(reg, middleware.Options{})
	run := pipeline.NewRuntime(reg, pipeline.RuntimeOptions{Wrap: chain.Wrap, Failers: []pipeline.Failer{chain}, StopTimeout: time.Minute})
	require.NoError(d.t, run.Start(d.t.Context()))
	stop = func() { require.NoError(d.t, run.Stop(context.Background())) }
	d.t.Cleanup(stop)
	return p, stop
}

// command is a process that asks, and handles nothing.
func (d depot) command() (p *Plugin, read func() (operate.Answer, operate.RoutesStatus)) {
	d.t.Helper()
	p = d.plugin()
	reg, err := pipeline.NewRegistry(pipeline.Env{Instance: "command"}, p, parcels{p, "none"})
	require.NoError(d.t, err)
	return p, func() (operate.Answer, operate.RoutesStatus) {
		answer, err := operate.Routes().Read(d.t.Context(), reg, nil)
		require.NoError(d.t, err)
		value, _ := answer.Value.(operate.RoutesStatus)
		return answer, value
	}
}

// A command sums the rates that two instances tell. One that has started again under its name has none at first, and
// never less than nothing.
func TestTheReportOfRoutesHasTheRatesOfAllInstances(t *testing.T) {
	t.Parallel()
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		d := depot{t, s, db}
		names := []string{"a-" + watermill.NewULID(), "b-" + watermill.NewULID()}
		a, _ := d.start(names[0], names[0])
		_, stop := d.start(names[1], names[1])
		command, read := d.command()
		told := func() (done, failed map[string]float64) {
			done, failed = map[string]float64{}, map[string]float64{}
			all, _, err := command.ReadWork(t.Context())
			require.NoError(t, err)
			for _, one := range all {
				if w := one.Routes["parcels"]; w.DonePerSecond != nil && one.Silent == 0 {
					done[one.Instance], failed[one.Instance] = *w.DonePerSecond, *w.FailedPerSecond
				}
			}
			return done, failed
		}
		redistest.Eventually(t, "both work, and the report has the sum", func() bool {
			for _, name := range names {
				require.NoError(t, a.Sink(name).Publish(t.Context(), message.NewMessage(watermill.NewULID(), []byte("good")), message.NewMessage(watermill.NewULID(), []byte("bad"))))
			}
			before, _ := told()
			_, value := read()
			done, failed := told()
			if value.Unknown+value.RatesUnknown != "" || before[names[0]] != done[names[0]] || before[names[1]] != done[names[1]] || done[names[0]] <= 0 || done[names[1]] <= 0 {
				return false // one of them has told another rate meanwhile
			}
			require.InDelta(t, done[names[0]]+done[names[1]], *value.Routes[0].DonePerSecond, 1e-9)
			require.InDelta(t, failed[names[0]]+failed[names[1]], *value.Routes[0].FailedPerSecond, 1e-9)
			return failed[names[0]] > 0 && failed[names[1]] > 0
		})

		c, done, err := command.connected(t.Context())
		require.NoError(t, err)
		defer done()
		seen, _, err := readInstances(t.Context(), c, shownInstances)
		require.NoError(t, err)
		for _, i := range seen {
			s := i.status()
			if !slices.Contains(names, s.Instance) || i.state == nil {
				continue // it is late, because the machine stands still
			}
			require.WithinDuration(t, time.Now(), *s.Started, 10*time.Minute)
			if i.silent < silentAfter {
				require.Positive(t, *s.DonePerSecond)
				require.Positive(t, *s.FailedPerSecond)
				require.NotNil(t, s.InFlight)
			}
		}

		stop()
		_, stop = d.start(names[1], "idle")
		defer stop()
		redistest.Eventually(t, "it has a rate again", func() bool {
			done, failed := told()
			again, known := done[names[1]]
			if !known {
				return false
			}
			require.Zero(t, again, "it has handled nothing since")
			require.Zero(t, failed[names[1]])
			return true
		})
	})
}

// What an instance told long ago, or the process that had its name before, is not added to what others do.
func TestTheReportOfRoutesLeavesOutWhatIsStale(t *testing.T) {
	eachDatabase(t, func(t *testing.T, s redistest.Server, db int) {
		d := depot{t, s, db}
		command, read := d.command()
		c, done, err := command.connected(t.Context())
		require.NoError(t, err)
		t.Cleanup(done)
		tell := func(instance, process string, left time.Duration) {
			text, err := json.Marshal(instanceState{Process: process, Work: map[string]pipeline.RouteWork{
				"parcels": {DonePerSecond: new(100.0), FailedPerSecond: new(7.0), LastError: &pipeline.LastError{Record: "x", Class: "error", Text: "no", At: time.Now()}},
			}})
			require.NoError(t, err)
			require.NoError(t, c.Set(t.Context(), stateKey(instance), text, left).Err())
		}
		live, frozen, young := withTTL(t, c, "live", time.Minute), withTTL(t, c, "frozen", time.Minute), withTTL(t, c, "young", time.Minute)
		for _, p := range []*presence{live, frozen, young} {
			require.NoError(t, p.acquire(t.Context()))
		}
		redistest.Eventually(t, "one of three instances is up to date", func() bool { // a slow machine may be late with the question
			tell("live", live.process(), presenceTTL)
			tell("young", "of the process before", presenceTTL)
			tell("frozen", frozen.process(), presenceTTL-silentAfter)
			answer, value := read()
			route := value.Routes[0]
			if route.DonePerSecond == nil || !strings.Contains(value.Unknown, "frozen (for ") {
				return false
			}
			require.Regexp(t, `^2 instances have told nothing: frozen \(for 1\ds\), young$`, value.Unknown)
			require.Equal(t, []float64{100, 7}, []float64{*route.DonePerSecond, *route.FailedPerSecond})
			require.Contains(t, answer.Notes, "Rates are not known of all instances: "+value.Unknown+".")
			return true
		})
	})
}
