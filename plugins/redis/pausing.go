package redis

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// orderReport is what the actions that pause and resume a route write with --json.
type orderReport struct {
	DryRun  bool       `json:"dry_run,omitempty"`
	Route   string     `json:"route"`
	Changed bool       `json:"changed"` // false: it was so already, and nothing was recorded; in a dry run: it would change
	Paused  bool       `json:"paused"`  // now
	Since   *time.Time `json:"since,omitempty"`
	Who     string     `json:"who,omitempty"`
	Why     string     `json:"why,omitempty"`
}

// Operations implements operate.Operated.
func (p *Plugin) Operations() operate.Operations {
	action := func(verb, short, long string, paused bool) operate.Action {
		return operate.Action{
			About: operate.About{
				Name: "routes " + verb, Short: short, Long: long,
				Examples: []string{"routes " + verb + " orders --config settings.yaml --dry-run", "routes " + verb + ` orders --config settings.yaml --why "the shop moves"`},
				Fields:   []operate.Field{{Name: "route", Help: "the `name` of the route", Required: true, Arguments: true}},
			},
			Danger:  operate.Safe,
			Role:    operate.Operator,
			Audited: true,
			Preview: func(ctx context.Context, reg *pipeline.Registry, in operate.Input) (operate.Answer, error) {
				return p.withRoute(ctx, reg, in, paused, func(ctx context.Context, _ goredis.UniversalClient, route string, now routeOrder) (operate.Answer, error) {
					return orderAnswer(reg, orderReport{DryRun: true, Route: route, Changed: now.paused != paused}, now, paused), nil
				})
			},
			Do: func(ctx context.Context, reg *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
				return p.withRoute(ctx, reg, in, paused, func(ctx context.Context, c goredis.UniversalClient, route string, _ routeOrder) (operate.Answer, error) {
					now, changed, err := storeOrder(ctx, c, route, paused, orderedBy{Who: use.Who, Why: use.Why})
					if err != nil {
						return operate.Answer{}, err
					}
					answer := orderAnswer(reg, orderReport{Route: route, Changed: changed}, now, paused)
					if p.runningAs() != nil { // it does not wait for the next renewal of the presence
						if err := p.orders.read(ctx, c, p.log()); err != nil {
							return answer, answered(err)
						}
					}
					return answer, nil
				})
			},
		}
	}
	return operate.Operations{Reports: []operate.Report{p.instancesReport()}, Actions: []operate.Action{
		p.levelAction(),
		p.drainAction(),
		action("pause", "Take no new messages in a route, on all instances", fmt.Sprintf(`Take no new messages in a route, on all instances, until it is resumed.

Every instance reads the order from Redis within %s, and stops reading for the route. Messages that handlers have already are finished and acknowledged. What waits stays in its topic or stream, members stay in their consumer groups, and the route NAME.retry of its retry topic is paused, too. The order outlives restarts and deploys, so a paused route does not start by itself.

What a plugin does outside of routes goes on, and so does the retention of topics: doctor says when records come near to it.`, PresenceRenewal), true),
		action("resume", "Take messages again in a paused route, on all instances", fmt.Sprintf(`Take messages again in a paused route, on all instances.

Every instance reads the order from Redis within %s, and continues where it has stopped. The order to pause a route that no longer exists can be taken back, too.`, PresenceRenewal), false),
	}}
}

// withRoute calls do with a client, and with what is ordered about the route that the input names.
func (p *Plugin) withRoute(ctx context.Context, reg *pipeline.Registry, in operate.Input, pause bool,
	do func(ctx context.Context, c goredis.UniversalClient, route string, now routeOrder) (operate.Answer, error),
) (operate.Answer, error) {
	route, names := in.Text("route"), routeNames(reg.Routes())
	exists := slices.Contains(names, route)
	unknown := &operate.InputError{Problem: fmt.Sprintf("no route has the name %q; the routes are %s", route, strings.Join(names, ", ")), Field: "route"}
	if !exists && pause {
		return operate.Answer{}, unknown
	}
	c, done, err := p.connected(ctx)
	if err != nil {
		return operate.Answer{}, err
	}
	defer done()
	now, ordered, err := storedOrder(ctx, c, route)
	if err != nil {
		return operate.Answer{}, err
	}
	if !exists && !ordered { // an order about a route of an earlier version can be taken back
		return operate.Answer{}, unknown
	}
	return do(ctx, c, route, now)
}

// orderAnswer says what was, or would be, ordered. now is the order that holds, and wanted the one that was asked for.
func orderAnswer(reg *pipeline.Registry, v orderReport, now routeOrder, wanted bool) operate.Answer {
	v.Paused = now.paused
	if now.at > 0 {
		at := now.since()
		v.Since, v.Who, v.Why = &at, now.by.Who, now.by.Why
	}
	name := v.Route
	for _, r := range reg.Routes() {
		if r.RetryOf() == v.Route {
			name += " and " + r.Name
		}
	}
	var line string
	within := fmt.Sprintf("within %s on every instance that runs", PresenceRenewal)
	switch {
	case !v.Changed && now.paused:
		line = v.Route + " is paused already: " + now.sentence(time.Now())
	case !v.Changed:
		line = v.Route + " is not paused."
	case v.DryRun && wanted:
		line = fmt.Sprintf("Would pause %s, %s: no message is taken any more, and those in flight are finished.", name, within)
	case v.DryRun:
		line = fmt.Sprintf("Would resume %s, %s. It is %s", name, within, now.sentence(time.Now()))
	case wanted:
		line = fmt.Sprintf("Paused %s, %s: no message is taken any more, and those in flight are finished.", name, within)
	default:
		line = fmt.Sprintf("Resumed %s, %s.", name, within)
	}
	return operate.Answer{Value: v, Lines: []string{line}}
}

// sentence says since when, by whom and why a route is paused.
func (o routeOrder) sentence(now time.Time) string {
	text := "paused"
	if o.at > 0 {
		text += " " + operate.Since(o.since(), now)
	}
	return fmt.Sprintf("%s, by %s, because: %s", text, o.by.Who, o.by.Why)
}

// Conditions implements operate.Conditioned: the routes of this instance that are paused, as it knows them.
func (p *Plugin) Conditions() (all []operate.Condition) {
	if p.runningAs() == nil {
		return nil
	}
	now := time.Now()
	for _, r := range p.routes() {
		o := p.orders.of(r.Name)
		if !o.paused {
			continue
		}
		all = append(all, o.condition(r.Name, now))
	}
	return all
}

func (o routeOrder) condition(route string, now time.Time) operate.Condition {
	return operate.Condition{Route: route, Check: operate.Check{
		Name: "route " + route, Level: operate.Warn, Text: o.sentence(now), Remedy: "resume it when it may go on (routes resume " + route + ")",
	}}
}

// ReadPauses implements operate.PauseReader: the routes that are paused, as Redis has the orders.
func (p *Plugin) ReadPauses(ctx context.Context, routes []pipeline.Route) (paused []operate.Condition, err error) {
	c, done, err := p.connected(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	names := routeNames(routes)
	if len(names) == 0 {
		return nil, nil
	}
	orders, err := c.HMGet(ctx, ordersKey, names...).Result()
	if err != nil {
		return nil, answered(fmt.Errorf("redis: read the orders about routes: %w", err))
	}
	now := time.Now()
	for i, order := range orders {
		if text, ordered := order.(string); ordered {
			if o := parseOrder(text); o.paused {
				paused = append(paused, o.condition(names[i], now))
			}
		}
	}
	return paused, nil
}

// AuditLogs implements operate.Auditor.
func (p *Plugin) AuditLogs() []operate.AuditLog {
	return []operate.AuditLog{
		p.auditLog("routes", "Routes, topics and instances", ordersAuditKey, ordersAuditMost, func(fields map[string]string) (action, subject string) {
			return fields["verb"], fields["route"]
		}),
		p.auditLog("levels", "Log levels", levelsAuditKey, levelsAuditMost, func(fields map[string]string) (action, subject string) {
			action = "log level " + fields["level"]
			if fields["level"] != levelOfSettings {
				action += " for " + fields["for"]
			}
			return action, cmp.Or(fields["instance"], "all instances")
		}),
	}
}

// Connect lets the changes that RecordChange gets with the returned context share a connection, where the service of this
// instance does not run. The caller calls closeIt.
func (p *Plugin) Connect(ctx context.Context) (connected context.Context, closeIt func(), err error) {
	return p.connect(ctx)
}

// RecordChange implements operate.Recorder: it adds a change of a route or a topic to the audit of the routes.
func (p *Plugin) RecordChange(ctx context.Context, change operate.Change) error {
	c, done, err := p.connected(ctx)
	if err != nil {
		return err
	}
	defer done()
	err = c.XAdd(ctx, &goredis.XAddArgs{Stream: ordersAuditKey, MaxLen: ordersAuditMost, Approx: true, Values: []string{
		"route", change.Subject, "verb", change.Action, "by", change.Who, "why", change.Why, "outcome", change.Outcome, "detail", change.Detail,
	}}).Err()
	if err != nil {
		return answered(fmt.Errorf("redis: record the %s of %s: %w", change.Action, change.Subject, err))
	}
	return nil
}

// auditLog is a stream of changes. read returns what was done, and to what.
func (p *Plugin) auditLog(name, title, key string, keeps int, read func(fields map[string]string) (action, subject string)) operate.AuditLog {
	return operate.AuditLog{
		Name: name, Title: title, Note: fmt.Sprintf("It keeps about %d changes.", keeps),
		Recent: func(ctx context.Context, f operate.AuditFilter, limit int) (operate.AuditPage, error) {
			server := p.Server(nil)
			if server.Client() == nil {
				return operate.AuditPage{}, fmt.Errorf("%w: %w", pipeline.ErrUnavailable, errNotRunning)
			}
			return operate.FilterAudit(ctx, f, limit, func(ctx context.Context, from operate.AuditFilter, n int) ([]operate.Change, error) {
				entries, err := server.Newest(ctx, map[string]string{name: key}, from.Before, n)
				var changes []operate.Change
				for _, e := range entries {
					action, subject := read(e.Fields)
					outcome, has := e.Fields["outcome"]
					if !has {
						outcome = "done"
					}
					changes = append(changes, operate.Change{
						ID: e.Place(), At: e.At(), Who: e.Fields["by"], Why: e.Fields["why"], Action: action, Subject: subject, Outcome: outcome, Detail: e.Fields["detail"],
					})
				}
				if _, wrong := errors.AsType[*operate.InputError](err); err != nil && !wrong {
					err = answered(err)
				}
				return changes, err
			})
		},
	}
}

var (
	_ operate.Operated    = (*Plugin)(nil)
	_ operate.Conditioned = (*Plugin)(nil)
	_ operate.PauseReader = (*Plugin)(nil)
	_ operate.Auditor     = (*Plugin)(nil)
	_ operate.Recorder    = (*Plugin)(nil)
)
