package redis

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/console"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// instanceStatus is an instance in the report of instances. What is null is not known.
type instanceStatus struct {
	Instance string      `json:"instance"`
	Runs     bool        `json:"runs"`
	Version  string      `json:"version,omitempty"`
	Started  *time.Time  `json:"started_at"`
	Last     time.Time   `json:"last_presence"`
	Stopped  *time.Time  `json:"stopped_at,omitempty"` // null: it runs, or has ended without having been stopped
	Drains   *orderedBy  `json:"drains,omitempty"`     // who has ordered that it ends, which it does now
	Log      *levelState `json:"log"`
	Paused   []string    `json:"paused_routes"`
	// These are the sums over its routes, as it told them within the last seconds.
	DonePerSecond   *float64 `json:"done_per_second"`
	FailedPerSecond *float64 `json:"failed_per_second"`
	InFlight        *int64   `json:"in_flight"`
}

func (i instance) status() instanceStatus {
	s := instanceStatus{Instance: i.name, Runs: i.alive, Version: i.version, Last: i.last.UTC()}
	if !i.stopped.IsZero() {
		s.Stopped = &i.stopped
	}
	if i.state != nil {
		s.Log, s.Drains, s.Paused = i.state.Log, i.state.Drains, []string{}
		if !i.state.Started.IsZero() {
			s.Started = &i.state.Started
		}
		if i.state.Work != nil && i.silent < silentAfter {
			sum := operate.SumOf(i.state.Work)
			s.DonePerSecond, s.FailedPerSecond, s.InFlight = sum.DonePerSecond, sum.FailedPerSecond, &sum.InFlight
			if len(i.state.Work) == 0 { // it has no routes
				s.DonePerSecond, s.FailedPerSecond = new(0.0), new(0.0)
			}
		}
		for _, route := range slices.Sorted(maps.Keys(i.state.Routes)) {
			if i.state.Routes[route].Paused {
				s.Paused = append(s.Paused, route)
			}
		}
	}
	return s
}

// words says whether the instance runs.
func (s instanceStatus) words() string {
	switch {
	case s.Drains != nil:
		return fmt.Sprintf("drains, ordered by %s, because: %s", s.Drains.Who, s.Drains.Why)
	case s.Runs:
		return "runs"
	case s.Stopped != nil:
		return "stopped at " + s.Stopped.Format(time.RFC3339)
	}
	return "gone"
}

// texts returns the log level and the paused routes as people read them. Both are empty for an instance that does not run.
func (s instanceStatus) texts() (level, paused string) {
	if !s.Runs {
		return "", ""
	}
	level, paused = console.Unknown, console.Unknown
	if s.Log != nil {
		level = s.Log.sentence()
	}
	if s.Paused != nil {
		paused = strings.Join(s.Paused, ", ")
	}
	return level, paused
}

// sentence says which level is in force and where it comes from.
func (s levelState) sentence() string {
	if s.Until == nil {
		return s.Level + " (settings)"
	}
	return fmt.Sprintf("%s until %s, by %s, because: %s; then %s (settings)", s.Level, s.Until.Format(time.RFC3339), s.Who, s.Why, s.Setting)
}

// endedNote says how instances that do not run have ended.
const endedNote = "A stopped instance has ended in order, after the drain that its log reports. One whose presence was not renewed for 15 seconds is gone, and the others take over what it was doing."

func instancesNote(more bool) string {
	if more {
		return fmt.Sprintf("Only the %d latest instances are shown. ", shownInstances) + endedNote
	}
	return endedNote
}

// Process implements operate.Membership.
func (p *Plugin) Process() string {
	if as := p.runningAs(); as != nil {
		return as.process()
	}
	return ""
}

// IsMember implements operate.Membership.
func (p *Plugin) IsMember(ctx context.Context, instance, process string) (bool, error) {
	c, done, err := p.connected(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	held, err := c.Get(ctx, presenceKey(instance)).Result()
	if err != nil && !errors.Is(err, goredis.Nil) {
		return false, answered(fmt.Errorf("redis: presence of instance %q: %w", instance, err))
	}
	holder, _, _ := strings.Cut(held, " ")
	return err == nil && holder == process, nil
}

var _ operate.Membership = (*Plugin)(nil)

// instancesReport shows the instances, and what they say about themselves.
func (p *Plugin) instancesReport() operate.Report {
	return operate.Report{
		About: operate.About{
			Name: "instances", Short: "Show the instances, their log levels and paused routes",
			Long: fmt.Sprintf(`Show the instances that share the Redis of the settings, the latest first.

Each instance says with its presence, every %s, which log level it has, where that comes from, and which routes it has paused. A paused route that an instance does not name is one for which it has not read the order yet.`, PresenceRenewal),
			Examples: []string{"instances --config settings.yaml", "instances --config settings.yaml --json"},
		},
		Read: func(ctx context.Context, _ *pipeline.Registry, _ operate.Input) (operate.Answer, error) {
			c, done, err := p.connected(ctx)
			if err != nil {
				return operate.Answer{}, err
			}
			defer done()
			all, more, err := readInstances(ctx, c, shownInstances)
			if err != nil {
				return operate.Answer{}, err
			}
			list := []instanceStatus{}
			t := operate.Table{Columns: []string{"INSTANCE", "STATE", "VERSION", "LAST PRESENCE", "LOG LEVEL", "PAUSED ROUTES"}, Empty: "No instance has had a presence."}
			for _, i := range all {
				s := i.status()
				list = append(list, s)
				level, paused := s.texts()
				t.Rows = append(t.Rows, []string{s.Instance, s.words(), s.Version, s.Last.Format(time.RFC3339), level, paused})
			}
			value := struct {
				Instances []instanceStatus `json:"instances"`
				More      bool             `json:"more,omitempty"` // there are more than these
			}{list, more}
			return operate.Answer{Value: value, Tables: []operate.Table{t}, Notes: []string{instancesNote(more)}}, nil
		},
	}
}

func (p *Plugin) showInstances(ctx context.Context, q console.Query) (console.Block, error) {
	c := p.Client()
	if c == nil {
		return nil, errNotRunning
	}
	all, more, err := readInstances(ctx, c, shownInstances)
	if err != nil {
		return nil, err
	}
	t := console.Table{
		Columns: console.Columns("Instance", "State", "Version", "Started", "Done/s", "Failed/s", "In flight", "Last presence", "Log level", "Paused routes"),
		Empty:   "No instance has had a presence.", Note: instancesNote(more),
	}
	t.Columns[4].Name, t.Columns[5].Name = "done_per_second", "failed_per_second"
	for _, i := range all {
		s := i.status()
		words := s.words()
		if s.Runs && s.Instance == q.Registry.Env().Instance {
			words += ", and serves this page"
		}
		state := console.Word(words)
		switch {
		case s.Drains != nil:
			state = state.In(operate.Warn)
		case s.Runs:
			state = state.In(operate.OK)
		}
		text, routes := s.texts()
		level, paused := console.Word(text), console.Word(routes)
		if s.Log != nil && s.Log.Until != nil {
			level = level.In(operate.Warn)
		}
		if len(s.Paused) > 0 {
			paused = paused.In(operate.Warn)
		}
		started, done, failed, inFlight := console.Cell{Text: "–"}, console.Cell{Text: "–", Right: true}, console.Cell{Text: "–", Right: true}, console.Cell{Text: "–", Right: true}
		if s.Runs {
			started.Text = console.Unknown
			done, failed, inFlight = console.Rate(s.DonePerSecond), console.Rate(s.FailedPerSecond), console.Number(s.InFlight)
		}
		if s.Started != nil {
			started = console.Moment(*s.Started)
		}
		t.Rows = append(t.Rows, []console.Cell{console.Word(s.Instance), state, console.Word(s.Version), started, done, failed, inFlight, console.Moment(s.Last), level, paused})
	}
	return t, nil
}
