package redis

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/sorted"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// levelAction is the name of the action that changes the log level.
const levelAction = "instances log-level"

// levelReport is what the action writes with --json.
type levelReport struct {
	DryRun    bool             `json:"dry_run,omitempty"`
	Level     string           `json:"level"`
	Instance  string           `json:"instance,omitempty"` // absent: all
	Changed   bool             `json:"changed"`            // false: there was nothing to end; in a dry run: it would change
	Until     *time.Time       `json:"until,omitempty"`    // by the clock of Redis
	Instances []instanceStatus `json:"instances"`          // those that run, before the change has reached them
}

// levelWanted is what the input of the action says.
type levelWanted struct {
	level    string
	instance string
	length   time.Duration
}

// levelOf reads the input of the action.
func levelOf(in operate.Input) (w levelWanted, err error) {
	w = levelWanted{level: strings.ToLower(in.Text("level")), instance: in.Text("instance"), length: levelLongest}
	if w.level == levelOfSettings {
		return w, nil
	}
	if !slices.ContainsFunc([]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}, func(l slog.Level) bool { return levelName(l) == w.level }) {
		return w, &operate.InputError{Field: "level", Problem: fmt.Sprintf("the level must be debug, info, warn, error or settings, got %q", in.Text("level"))}
	}
	w.length, err = time.ParseDuration(in.Text("for"))
	if err != nil || w.length < time.Second || w.length > levelLongest {
		return w, &operate.InputError{Field: "for", Problem: fmt.Sprintf("--for must be a duration from 1s to %s, such as 10m, got %q", levelLongest, in.Text("for"))}
	}
	return w, nil
}

// levelAction changes the log level of instances that run, for some time.
func (p *Plugin) levelAction() operate.Action {
	return operate.Action{
		About: operate.About{
			Name: levelAction, Short: "Change the log level of instances that run, for some time",
			Long: fmt.Sprintf(`Change the log level of instances that run, for some time.

Every instance reads the order from Redis within %s. When its time is over, the instance goes back to the level of its settings by itself, also while Redis does not answer. An instance that starts before then has the level from its start on. The level settings ends an order early.

An order for all instances takes the place of earlier ones for one instance. Without Redis it can't be ordered: a level for one process is its setting log.level.`, PresenceRenewal),
			Examples: []string{
				levelAction + ` debug --for 10m --why "ticket 7"`, levelAction + " debug --instance api-0 --dry-run",
				levelAction + ` settings --why "it was found"`,
			},
			Fields: []operate.Field{
				{Name: "level", Help: "`debug`, info, warn, error, or settings", Required: true, Arguments: true},
				{Name: "for", Help: "`how long`, from 1s to 24h; not with settings", Default: "10m"},
				{Name: "instance", Help: "only the instance of this `name`"},
			},
			Validate: func(in operate.Input) error {
				_, err := levelOf(in)
				return err
			},
		},
		Danger:  operate.Safe,
		Role:    operate.Operator,
		Audited: true,
		Preview: func(ctx context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			return p.withInstances(ctx, in, func(ctx context.Context, c goredis.UniversalClient, w levelWanted, running []instance) (operate.Answer, error) {
				v := levelReport{DryRun: true, Changed: true}
				if w.level == levelOfSettings {
					set, err := levelSet(ctx, c, w.instance)
					if err != nil {
						return operate.Answer{}, err
					}
					v.Changed = set
				}
				return levelAnswer(v, w, running), nil
			})
		},
		Do: func(ctx context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.withInstances(ctx, in, func(ctx context.Context, c goredis.UniversalClient, w levelWanted, running []instance) (operate.Answer, error) {
				o, changed, err := storeLevel(ctx, c, w.instance, w.level, w.length, orderedBy{Who: use.Who, Why: use.Why})
				if err != nil {
					return operate.Answer{}, err
				}
				v := levelReport{Changed: changed}
				if changed && w.level != levelOfSettings {
					until := time.UnixMicro(o.until).UTC().Truncate(time.Second)
					v.Until = &until
				}
				answer := levelAnswer(v, w, running)
				if here := p.runningAs(); here != nil { // it does not wait for the next renewal of the presence
					if err := p.levels.Load().read(ctx, c, here.instance); err != nil {
						return answer, answered(err)
					}
					if err := p.tell(ctx, c, here); err != nil {
						return answer, answered(err)
					}
				}
				return answer, nil
			})
		},
	}
}

// runningAs returns the presence of this instance, or nil when the service does not run here.
func (p *Plugin) runningAs() *presence {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.presence
}

// levelSet reports whether a level is ordered now that settings would end.
func levelSet(ctx context.Context, c goredis.UniversalClient, name string) (bool, error) {
	all, own, err := storedLevels(ctx, c, name)
	if err != nil {
		return false, answered(err)
	}
	if name != "" {
		o := laterOf(all, own, time.Now())
		return o.at > 0 && o.level != levelOfSettings, nil
	}
	orders, err := c.HGetAll(ctx, levelsKey).Result()
	if err != nil {
		return false, answered(fmt.Errorf("redis: read the log levels that are ordered: %w", err))
	}
	now, err := c.Time(ctx).Result()
	if err != nil {
		return false, answered(fmt.Errorf("redis: read the time: %w", err))
	}
	for _, text := range orders {
		if o := parseLevel(text); o.until > now.UnixMicro() && o.level != levelOfSettings {
			return true, nil
		}
	}
	return false, nil
}

// withInstances calls do with a client, and with the instances that run and that the input means.
func (p *Plugin) withInstances(ctx context.Context, in operate.Input,
	do func(ctx context.Context, c goredis.UniversalClient, w levelWanted, running []instance) (operate.Answer, error),
) (operate.Answer, error) {
	w, err := levelOf(in)
	if err != nil {
		return operate.Answer{}, err
	}
	c, done, err := p.connected(ctx)
	if err != nil {
		return operate.Answer{}, err
	}
	defer done()
	running, err := runningInstances(ctx, c)
	if err != nil {
		return operate.Answer{}, err
	}
	if w.instance == "" {
		return do(ctx, c, w, running)
	}
	i := slices.IndexFunc(running, func(i instance) bool { return i.name == w.instance })
	if i < 0 {
		return operate.Answer{}, noSuchInstance(w.instance, running)
	}
	return do(ctx, c, w, running[i:i+1])
}

// runningInstances returns the instances that have a presence, by name.
func runningInstances(ctx context.Context, c goredis.UniversalClient) ([]instance, error) {
	all, _, err := readInstances(ctx, c, markMost)
	all = slices.DeleteFunc(all, func(i instance) bool { return !i.alive })
	sorted.By(all, func(a, b instance) int { return strings.Compare(a.name, b.name) })
	return all, err
}

// areRunning says which instances run.
func areRunning(running []instance) string {
	if len(running) == 0 {
		return "none runs"
	}
	var names []string
	for _, i := range running {
		names = append(names, i.name)
	}
	return "these run: " + someOf(names)
}

// shownNames is the number of instances that a sentence names.
const shownNames = 10

// someOf lists the first names, and says how many more there are.
func someOf(names []string) string {
	text := strings.Join(names[:min(len(names), shownNames)], ", ")
	if more := len(names) - shownNames; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// levelAnswer says what was, or would be, ordered.
func levelAnswer(v levelReport, w levelWanted, running []instance) operate.Answer {
	v.Level, v.Instance, v.Instances = w.level, w.instance, []instanceStatus{}
	t := operate.Table{Columns: []string{"INSTANCE", "LOG LEVEL"}, Empty: "No instance runs now."}
	for _, i := range running {
		s := i.status()
		v.Instances = append(v.Instances, s)
		if level, _ := s.texts(); v.DryRun {
			t.Rows = append(t.Rows, []string{s.Instance, level})
		}
	}
	whom := "all instances"
	if w.instance != "" {
		whom = "the instance " + w.instance
	}
	within := fmt.Sprintf("within %s on every instance that runs", PresenceRenewal)
	if w.instance != "" {
		within = fmt.Sprintf("within %s", PresenceRenewal)
	}
	var line string
	switch ends := w.level == levelOfSettings; {
	case ends && !v.Changed:
		line = fmt.Sprintf("No log level is ordered for %s, so that of the settings applies already.", whom)
	case ends && v.DryRun:
		line = fmt.Sprintf("Would give %s the log level of the settings again, %s.", whom, within)
	case ends:
		line = fmt.Sprintf("The log level of the settings applies again to %s, %s.", whom, within)
	case v.DryRun:
		line = fmt.Sprintf("Would set the log level of %s to %s for %s, %s. Afterwards that of the settings applies again.", whom, w.level, w.length, within)
	default:
		line = fmt.Sprintf("Set the log level of %s to %s until %s, %s. Afterwards that of the settings applies again.", whom, w.level, v.Until.Format(time.RFC3339), within)
	}
	a := operate.Answer{Value: v, Lines: []string{line}}
	if v.DryRun {
		a.Tables = []operate.Table{t}
	}
	return a
}
