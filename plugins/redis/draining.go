package redis

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// drainAction is the name of the action that ends an instance.
const drainAction = "instances drain"

// drainKey has the order to drain an instance, for drainKept.
func drainKey(instance string) string { return "millrace:drain:" + instance }

// drainKept is how long an instance that does not reach Redis may take to read the order. It is about one process only,
// so it says nothing to the next one of the name.
const drainKept = time.Hour

// drainOrder is what an operator has ordered about one process.
type drainOrder struct {
	Process string `json:"process"` // of presence
	orderedBy
}

// drainReport is what the action writes with --json.
type drainReport struct {
	DryRun   bool     `json:"dry_run,omitempty"`
	Instance string   `json:"instance"`
	Version  string   `json:"version,omitempty"`
	Others   []string `json:"others"` // the instances that go on
}

// drainAction ends one instance as SIGTERM does.
func (p *Plugin) drainAction() operate.Action {
	return operate.Action{
		About: operate.About{
			Name: drainAction, Short: "Drain an instance that runs, and end it as SIGTERM does",
			Long: fmt.Sprintf(`Drain an instance that runs, and end it as SIGTERM does.

The instance reads the order from Redis within %s. It takes no new messages, finishes those that it has for at most stop_timeout, leaves its consumer groups, and ends with exit code 0, so the others go on with what it has read. Whether it is started again is up to what supervises it: Kubernetes and Compose start it again, and the systemd unit of the packages does not.

The order is about the process that runs now. One that is started later under the same name does not follow it. A demo takes no such order, which is said before anything is ordered. To stop the reading of a route on all instances, use routes pause.`, PresenceRenewal),
			Examples: []string{drainAction + " api-0 --config settings.yaml --dry-run", drainAction + ` api-0 --config settings.yaml --why "ticket 7"`},
			Fields:   []operate.Field{{Name: "instance", Help: "the `name` of the instance", Required: true, Arguments: true}},
		},
		Danger:   operate.Irreversible,
		Role:     operate.Admin,
		Audited:  true,
		Recorded: true,
		Preview: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			return p.withProcess(ctx, in, func(_ goredis.UniversalClient, v drainReport, _ string) (operate.Answer, error) {
				v.DryRun = true
				return v.answer(), nil
			})
		},
		Do: func(ctx context.Context, reg *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withProcess(ctx, in, func(c goredis.UniversalClient, v drainReport, process string) (operate.Answer, error) {
				text, err := json.Marshal(drainOrder{process, orderedBy{Who: use.Who, Why: use.Why}})
				if err != nil {
					return operate.Answer{}, fmt.Errorf("redis: encode the order: %w", err)
				}
				change := operate.Change{Who: use.Who, Why: use.Why, Action: "drain", Subject: v.Instance}
				_, failed, unrecorded := operate.Record(ctx, reg, change, func() error {
					if err := c.Set(ctx, drainKey(v.Instance), text, drainKept).Err(); err != nil {
						return answered(fmt.Errorf("redis: order to drain the instance %s: %w", v.Instance, err))
					}
					return nil
				})
				if failed == nil && unrecorded != nil {
					unrecorded = fmt.Errorf("record the order to drain %s, so nothing was ordered: %w", v.Instance, unrecorded)
				}
				if err := errors.Join(failed, unrecorded); err != nil {
					return operate.Answer{}, err
				}
				return v.answer(), nil
			})
		},
	}
}

// withProcess calls do with the process that runs under the name of an instance that the input means.
func (p *Plugin) withProcess(ctx context.Context, in operate.Input, do func(c goredis.UniversalClient, v drainReport, process string) (operate.Answer, error)) (operate.Answer, error) {
	c, done, err := p.connected(ctx)
	if err != nil {
		return operate.Answer{}, err
	}
	defer done()
	running, err := runningInstances(ctx, c)
	if err != nil {
		return operate.Answer{}, err
	}
	v := drainReport{Instance: in.Text("instance"), Others: []string{}}
	i := slices.IndexFunc(running, func(i instance) bool { return i.name == v.Instance })
	if i < 0 {
		return operate.Answer{}, noSuchInstance(v.Instance, running)
	}
	if state := running[i].state; state != nil && state.Undrainable {
		return operate.Answer{}, &operate.InputError{Field: "instance", Problem: fmt.Sprintf("%s takes no order to drain, because it is a demo or a command; end it where it was started, such as with Ctrl-C", v.Instance)}
	}
	v.Version = running[i].version
	for _, other := range running {
		if other.name != v.Instance {
			v.Others = append(v.Others, other.name)
		}
	}
	return do(c, v, running[i].process)
}

func noSuchInstance(name string, running []instance) error {
	return &operate.InputError{Field: "instance", Problem: fmt.Sprintf("no instance that runs has the name %q; %s", name, areRunning(running))}
}

func (v drainReport) answer() operate.Answer {
	line := fmt.Sprintf("%s drains within %s, and ends with exit code 0. The command instances shows when it has stopped.", v.Instance, PresenceRenewal)
	if v.DryRun {
		line = fmt.Sprintf("Would drain %s within %s: it takes nothing new, finishes what it has, and ends with exit code 0.", v.Instance, PresenceRenewal)
	}
	a := operate.Answer{Value: v, Lines: []string{line}}
	if len(v.Others) == 0 {
		a.Checks = []operate.Check{{
			Name: "other instances", Level: operate.Warn, Text: "none runs, so nothing is handled until one is started", Remedy: "start another one first",
		}}
		return a
	}
	a.Notes = []string{"These go on: " + someOf(v.Others) + "."}
	return a
}

// followDrain drains this process when that is ordered about it. An order that can't be read is none: it is read again.
func (p *presence) followDrain(ctx context.Context, drain func(why error)) {
	if drain == nil || p.drains.Load() != nil {
		return
	}
	text, err := p.c.Get(ctx, drainKey(p.instance)).Bytes()
	var o drainOrder
	switch {
	case errors.Is(err, goredis.Nil):
		return
	case err == nil:
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		p.log.DebugContext(ctx, "the order to drain this instance can't be read", logs.Err(err))
		return
	}
	if o.Process != p.process() {
		return
	}
	p.drains.Store(&o.orderedBy)
	p.log.InfoContext(ctx, "drain ordered by an operator", slog.String("who", o.Who), slog.String("why", o.Why))
	drain(fmt.Errorf("ordered by %s, because: %s", o.Who, o.Why))
}
