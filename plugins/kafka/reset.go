package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// resetReport is what the action that resets the group of a route writes with --json.
type resetReport struct {
	DryRun bool   `json:"dry_run,omitempty"`
	Route  string `json:"route"`
	Topic  string `json:"topic"`
	Group  string `json:"group"`
	// Time is the one that was asked for; absent: offsets were.
	Time       *time.Time       `json:"time,omitempty"`
	Changed    bool             `json:"changed"` // commits were changed; in a dry run: would be changed
	Again      int64            `json:"handled_again"`
	Skipped    int64            `json:"skipped"`
	Partitions []resetPartition `json:"partitions"`
	// Members are those that are active, which refuse a reset.
	Members []groupMember `json:"members"`
}

// resetPartition is a partition whose commit is set. Its numbers are of offsets.
type resetPartition struct {
	Partition int32  `json:"partition"`
	Committed *int64 `json:"committed"` // null: nothing
	Offset    int64  `json:"offset"`    // the new commit
	Again     int64  `json:"handled_again"`
	Skipped   int64  `json:"skipped"`

	changed bool
	commit  progress
}

// groupMember is a member of a consumer group, as its coordinator knows it.
type groupMember struct {
	ID       string   `json:"id"`
	Instance string   `json:"instance_id,omitempty"` // of a static member
	Client   string   `json:"client"`
	Host     string   `json:"host"`
	Topics   []string `json:"topics"`
}

// resetAction sets the commits of a route's group.
func (p *Plugin) resetAction() operate.Action {
	return operate.Action{
		About: operate.About{
			Name: "routes reset", Short: "Handle the records of a route again from a time, or skip some",
			Long: `Handle the records of a route again from a time or an offset on, or skip some.

The commits of the consumer group are set, so the route goes on from there when its instances start. With a time, each partition goes on with its first record that is not older. With --to 0=120,1=95 only the named partitions are set, and one offset alone is for a topic with one partition.

It is refused while the group has active members. Stop all instances that run the route before, also where it is paused, because a paused instance stays a member of its group.

A side effect of a record that is handled again happens once only where the handler uses the ledger, as campaigns and the kinds of "once" do. All others happen again. The retry topic and the dead letters of the route are not touched.

--dry-run says per partition how many records would be handled again or skipped. These numbers count offsets, and some of them may belong to no record: markers of transactions, and what compaction has removed.`,
			Examples: []string{"routes reset orders --config settings.yaml --to 2h --dry-run", `routes reset orders --config settings.yaml --to 2h --why "ticket 7"`},
			Fields: []operate.Field{
				{Name: "route", Help: "the `name` of the route", Required: true, Arguments: true},
				{Name: "to", Help: "`place`: a time, an age such as 2h, oldest, newest, or offsets: 0=120,1=95", Required: true},
			},
			Validate: func(in operate.Input) error {
				_, err := parsePlace(in.Text("to"), time.Now())
				return err
			},
		},
		Danger:   operate.Irreversible,
		Role:     operate.Operator,
		Audited:  true,
		Recorded: true,
		Preview: func(ctx context.Context, reg *pipeline.Registry, in operate.Input) (operate.Answer, error) {
			return p.reset(ctx, reg, in, nil)
		},
		Do: func(ctx context.Context, reg *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
			return p.reset(ctx, reg, in, &use)
		},
	}
}

// reset sets the commits of the route that the input names. Without a use it only says what it would set.
func (p *Plugin) reset(ctx context.Context, reg *pipeline.Registry, in operate.Input, use *operate.Use) (operate.Answer, error) {
	route, err := routeToReset(reg, in.Text("route"))
	if err != nil {
		return operate.Answer{}, err
	}
	to, err := parsePlace(in.Text("to"), time.Now())
	if err != nil {
		return operate.Answer{}, err
	}
	at := route.From.Describe()
	ctx, done, err := groupSource{p, at.Name, at.Group}.Connect(ctx)
	if err != nil {
		return operate.Answer{}, err
	}
	defer done()
	live, _ := ctx.Value(sharedConnection{}).(*connection)
	plan, err := live.planReset(at.Name, at.Group, to)
	switch _, wrong := errors.AsType[*operate.InputError](err); {
	case wrong:
		return operate.Answer{}, err
	case errors.Is(err, sarama.ErrUnknownTopicOrPartition):
		return operate.Answer{}, fmt.Errorf("%w: the topic %s of route %s does not exist", ErrTopicMissing, at.Name, route.Name)
	case err != nil:
		return operate.Answer{}, answered(err)
	}
	r := plan.report
	r.DryRun, r.Route = use == nil, route.Name
	answer := r.answer(reg, route, to, plan.short)
	if len(r.Members) > 0 {
		answer.Checks = append(answer.Checks, r.refusal())
	}
	if use == nil || !r.Changed || len(r.Members) > 0 {
		return answer, nil
	}
	change := operate.Change{Who: use.Who, Why: use.Why, Action: "reset", Subject: route.Name, Detail: r.detail()}
	recorded, failed, unrecorded := operate.Record(ctx, reg, change, func() error { return live.commitReset(r) })
	if failed == nil && unrecorded != nil {
		unrecorded = fmt.Errorf("record the reset of route %s, so nothing was changed: %w", route.Name, unrecorded)
	}
	log := p.log.With(slog.String(logs.Route, route.Name), slog.String(logs.Topic, r.Topic), slog.String(logs.Group, r.Group), slog.String("who", use.Who), slog.String("why", use.Why))
	if err := errors.Join(failed, unrecorded); err != nil {
		log.Warn("kafka consumer group was not reset by an operator", logs.Err(err))
		return operate.Answer{}, err
	}
	log.Info("kafka consumer group reset by an operator", slog.String("offsets", r.detail()))
	if !recorded {
		answer.Notes = append(answer.Notes, "No plugin of this binary keeps an audit of routes, so who did it and why is in the log of this process alone.")
	}
	return answer, nil
}

// routeToReset returns the route with a name. The error says which routes can be reset, or what to do instead.
func routeToReset(reg *pipeline.Registry, name string) (pipeline.Route, error) {
	refuse := func(format string, args ...any) (pipeline.Route, error) {
		return pipeline.Route{}, &operate.InputError{Problem: fmt.Sprintf(format, args...), Field: "route"}
	}
	routes, names := reg.Routes(), []string(nil)
	for _, r := range routes {
		names = append(names, r.Name)
	}
	i := slices.Index(names, name)
	if i < 0 {
		return refuse("no route has the name %q; the routes are %s", name, strings.Join(names, ", "))
	}
	at := routes[i].From.Describe()
	switch {
	case at.Kind != Kind:
		return refuse("route %s reads %s, which is no topic of Kafka: what its group has acknowledged may be removed, so there is no earlier place to go back to. "+
			"Replay its dead letters (deadletter replay), or publish the messages again", name, at)
	case at.Group == "":
		return refuse("route %s reads %s on every instance without a consumer group, from the start of the instance on, so there is no commit to set", name, at.Name)
	case len(reg.RetriesInto(pipeline.Endpoint{Kind: Kind, Name: at.Name})) > 0:
		return refuse("route %s reads the retry topic %s, where a record may be several times: reset the route that its records come from, or replay dead letters (deadletter replay)", name, at.Name)
	}
	return routes[i], nil
}

// answer is the report for people. short are the partitions whose oldest record is later than the time.
func (r resetReport) answer(reg *pipeline.Registry, route pipeline.Route, to place, short []int32) operate.Answer {
	verb := "Set"
	if r.DryRun || len(r.Members) > 0 {
		verb = "Would set"
	}
	line := fmt.Sprintf("%s the group %s of topic %s to %s: %s handled again, and %s skipped.", verb, r.Group, r.Topic, to, operate.Are(r.Again, "record"), operate.Are(r.Skipped, "record"))
	if !r.Changed {
		line = fmt.Sprintf("The group %s of topic %s is at %s already, so nothing is changed.", r.Group, r.Topic, to)
	}
	t := operate.Table{Columns: []string{"PARTITION", "COMMITTED", "NEW", "HANDLED AGAIN", "SKIPPED"}}
	for _, one := range r.Partitions {
		t.Rows = append(t.Rows, []string{fmt.Sprint(one.Partition), one.committed(), fmt.Sprint(one.Offset), fmt.Sprint(one.Again), fmt.Sprint(one.Skipped)})
	}
	a := operate.Answer{Value: r, Lines: []string{line}, Tables: []operate.Table{t}}
	if !r.Changed {
		return a
	}
	if r.Again > 0 {
		a.Notes = append(a.Notes, "A side effect of a record that is handled again happens once only where the handler uses the ledger (once, campaigns). All others happen again.")
	}
	if r.Skipped > 0 {
		a.Notes = append(a.Notes, "Nobody handles the skipped records, unless the group is set back before retention removes them.")
	}
	if len(short) > 0 {
		a.Notes = append(a.Notes, fmt.Sprintf("Earlier records of partition %s were removed. If some of them are of the asked time, they can't be handled again.", numbers(short)))
	}
	if retry := route.Policy.Retry.To; retry != nil {
		a.Notes = append(a.Notes, fmt.Sprintf("The retry topic %s is not touched: what waits there is tried when it is due, also a record that is handled again before.", retry.Describe().Name))
	}
	for _, other := range reg.Routes() {
		if other.Name != route.Name && other.From.Describe() == route.From.Describe() {
			a.Notes = append(a.Notes, fmt.Sprintf("Route %s reads the topic with the same group, so it is reset, too.", other.Name))
		}
	}
	return a
}

func (o resetPartition) committed() string {
	if o.Committed == nil {
		return "-"
	}
	return fmt.Sprint(*o.Committed)
}

// numbers writes partitions.
func numbers(partitions []int32) string {
	return strings.ReplaceAll(strings.Trim(fmt.Sprint(partitions), "[]"), " ", ", ")
}

// shownMembers is the number of members that a refusal names. --json has all of them.
const shownMembers = 10

// refusal says who the active members are, and what to do.
func (r resetReport) refusal() operate.Check {
	var who []string
	static := false
	for _, m := range r.Members {
		static = static || m.Instance != ""
		if len(who) < shownMembers {
			who = append(who, m.String())
		}
	}
	text := fmt.Sprintf("it has %s, so its commits can't be set: %s", app.Plural(int64(len(r.Members)), "active member"), strings.Join(who, ", "))
	if more := len(r.Members) - len(who); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	remedy := `stop every instance that reads with this group, also where the route is paused ("routes pause" keeps the member in its group); then run "routes reset", and start them again`
	if static {
		remedy += "; a member with an instance_id leaves session_timeout after its instance was stopped"
	}
	return operate.Check{Name: "group " + r.Group, Level: operate.Fail, Text: text, Remedy: remedy}
}

// String says where the member runs, and what it reads.
func (m groupMember) String() string {
	text := m.Host + " (" + m.Client
	if m.Instance != "" {
		text += ", " + m.Instance
	}
	if len(m.Topics) > 0 {
		text += ", reads " + strings.Join(m.Topics, " ")
	}
	return text + ")"
}

// detailMost bounds the detail in an audit, in bytes.
const detailMost = 1000

// detail says what is changed, for the audit.
func (r resetReport) detail() string {
	text := fmt.Sprintf("group %s of %s, %d again, %d skipped", r.Group, r.Topic, r.Again, r.Skipped)
	for i, one := range r.Partitions {
		if len(text) > detailMost {
			return text + fmt.Sprintf(", and %d partitions more", len(r.Partitions)-i)
		}
		text += fmt.Sprintf(", %d: %s to %d", one.Partition, one.committed(), one.Offset)
	}
	return text
}
