package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/IBM/sarama"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Operations implements operate.Operated.
func (p *Plugin) Operations() operate.Operations {
	register := func(r *pipeline.Registry) error {
		r.Service("kafka.topics", service{p}) // it does not mind missing topics
		return nil
	}
	return operate.Operations{
		Reports: []operate.Report{{
			About: operate.About{
				Name: "topics", Short: "List the Kafka topics of all plugins, and their problems",
				Examples: []string{"topics --config settings.yaml", "topics create --config settings.yaml"},
				Register: register,
			},
			Read: func(_ context.Context, reg *pipeline.Registry, _ operate.Input) (operate.Answer, error) {
				return p.topics(reg, topicsReport{}, nil)
			},
		}},
		Actions: []operate.Action{{
			About: operate.About{
				Name: "topics create", Short: "Create the missing Kafka topics; change no existing one",
				Long:     "Create the missing Kafka topics; change no existing one.\n\nWith --dry-run the cluster checks the requests and creates nothing. Where the brokers check rights, the user in plugins.kafka.sasl needs Create and DescribeConfigs for these topics.\n\nEach topic has its row in the audit before it is created, so a topic that can't be recorded is not created.",
				Examples: []string{"topics create --config settings.yaml --dry-run", `topics create --config settings.yaml --why "ticket 7"`},
				Register: register,
			},
			Danger:   operate.Safe,
			Role:     operate.Admin,
			Audited:  true,
			Recorded: true,
			Preview: func(_ context.Context, reg *pipeline.Registry, _ operate.Input) (operate.Answer, error) {
				check := func(c *connection, name string) error { return c.create(name, true) }
				return p.topics(reg, topicsReport{DryRun: true}, check)
			},
			Do: func(ctx context.Context, reg *pipeline.Registry, _ operate.Input, use operate.Use) (operate.Answer, error) {
				a := &auditedTopics{ctx: ctx, reg: reg, use: use, log: p.log}
				defer a.close()
				answer, err := p.topics(reg, topicsReport{}, a.create)
				if a.onlyLogged {
					answer.Notes = append(answer.Notes, "No plugin of this binary keeps an audit of topics, so who did it and why is in the log of this process alone.")
				}
				return answer, errors.Join(a.unrecorded, err)
			},
		}, p.resetAction()},
	}
}

// auditedTopics creates topics, each after its row in the audit.
type auditedTopics struct {
	ctx context.Context
	reg *pipeline.Registry
	use operate.Use
	log *slog.Logger

	closeIt    func() // the connection of all rows; nil: there is none yet
	onlyLogged bool   // a topic was created, and no plugin keeps an audit
	unrecorded error  // why rows are missing
}

// connect connects to the audit before the first row.
func (a *auditedTopics) connect() error {
	if a.closeIt != nil {
		return nil
	}
	ctx, closeIt, err := operate.Recording(a.ctx, a.reg)
	if err == nil {
		a.ctx, a.closeIt = ctx, closeIt
	}
	return err
}

func (a *auditedTopics) close() {
	if a.closeIt != nil {
		a.closeIt()
	}
}

// create creates a topic.
func (a *auditedTopics) create(c *connection, name string) error {
	change := operate.Change{Who: a.use.Who, Why: a.use.Why, Action: "create topic", Subject: name, Detail: c.plan(name).String()}
	recorded, failed, unrecorded := false, error(nil), a.connect()
	if unrecorded == nil {
		recorded, failed, unrecorded = operate.Record(a.ctx, a.reg, change, func() error { return c.ensure(a.ctx, name) })
	}
	if failed == nil && unrecorded != nil {
		unrecorded = fmt.Errorf("record the creation of topic %s, so it was not created: %w", name, unrecorded)
	}
	a.unrecorded = errors.Join(a.unrecorded, unrecorded)
	log := a.log.With(slog.String(logs.Topic, name), slog.String("who", a.use.Who), slog.String("why", a.use.Why))
	if err := errors.Join(failed, unrecorded); err != nil {
		log.Warn("kafka topic was not created by an operator", logs.Err(err))
		return err
	}
	a.onlyLogged = a.onlyLogged || !recorded
	log.Info("kafka topic created by an operator", slog.String("settings", change.Detail))
	return nil
}

// topics reports the topics that the routes and plugins need. Before that it calls create, unless it is nil, for
// the missing ones.
func (p *Plugin) topics(reg *pipeline.Registry, r topicsReport, create func(*connection, string) error) (operate.Answer, error) {
	live, err := p.connected()
	if err != nil {
		return operate.Answer{}, err
	}
	needed := neededTopics(reg)
	if r.Topics, err = live.status(needed); err != nil {
		return operate.Answer{}, answered(err)
	}
	if create != nil {
		live.createMissing(&r, create)
	}
	if create != nil && !r.DryRun {
		after, err := live.status(needed)
		if err != nil {
			return r.answer(), answered(err)
		}
		r.Topics = after
	}
	return r.answer(), nil
}

// answered marks an error as one of an unavailable server when no broker answered.
func answered(err error) error {
	if unreachable(err) {
		return fmt.Errorf("%w: %w", errUnavailable, err)
	}
	return fmt.Errorf("kafka: %w", err)
}

// createMissing calls create for the topics of the report that do not exist. One that the cluster refuses
// does not stop the others.
func (c *connection) createMissing(r *topicsReport, create func(*connection, string) error) {
	for _, t := range r.Topics {
		if t.Exists {
			continue
		}
		err := create(c, t.Name)
		if err == nil {
			r.Created = append(r.Created, c.plan(t.Name))
			continue
		}
		r.Failed = append(r.Failed, failedTopic{t.Name, err.Error()})
		if refusal := sarama.KError(0); !errors.As(err, &refusal) {
			return // no broker answers, or no audit takes its row
		}
	}
}

// topicsReport is what the commands write with --json.
type topicsReport struct {
	DryRun  bool           `json:"dry_run,omitempty"`
	Created []createdTopic `json:"created,omitempty"` // with a dry run: would be created
	Failed  []failedTopic  `json:"failed,omitempty"`
	Topics  []*topicStatus `json:"topics"`
}

// createdTopic is what a topic is created with. Settings that are not listed are the cluster's
// defaults.
type createdTopic struct {
	Name        string            `json:"name"`
	Partitions  int32             `json:"partitions"`
	Replication int16             `json:"replication"`
	Settings    map[string]string `json:"settings"` // by Kafka's names
}

// String says what the topic is created with.
func (t createdTopic) String() string {
	text := fmt.Sprintf("%d partitions, replication factor %d", t.Partitions, t.Replication)
	for _, name := range slices.Sorted(maps.Keys(t.Settings)) {
		text += fmt.Sprintf(", %s %s", name, t.Settings[name])
	}
	return text
}

// failedTopic is a topic that was not created.
type failedTopic struct {
	Name  string `json:"name"`
	Error string `json:"error"`
}

func (c *connection) plan(topic string) createdTopic {
	d := c.detail(topic)
	t := createdTopic{topic, d.NumPartitions, d.ReplicationFactor, map[string]string{}}
	for name, value := range d.ConfigEntries {
		t.Settings[name] = *value
	}
	return t
}

// answer returns the report for people, too. A topic that was not created is a check that failed, and
// so is a problem of a topic, except in a dry run.
func (r topicsReport) answer() operate.Answer {
	a := operate.Answer{Value: r}
	verb := "Created"
	if r.DryRun {
		verb = "Would create"
	}
	for _, t := range r.Created {
		a.Lines = append(a.Lines, fmt.Sprintf("%s %s: %s", verb, t.Name, t))
	}
	for _, t := range r.Failed {
		a.Checks = append(a.Checks, operate.Check{Name: t.Name, Level: operate.Fail, Text: "not created: " + t.Error})
	}
	if r.DryRun {
		if len(r.Created)+len(r.Failed) == 0 {
			a.Lines = append(a.Lines, "All topics exist.")
		}
		return a
	}
	table := operate.Table{Columns: append([]string{"TOPIC", "ROLE", "EXISTS", "PARTITIONS", "REPLICATION"},
		strings.Fields(strings.ToUpper(strings.Join(listedSettings(), " ")))...)}
	absent := false // a topic that is created on first use
	for _, t := range r.Topics {
		exists, partitions, replication := "yes", fmt.Sprint(t.Partitions), fmt.Sprint(t.Replication)
		if !t.Exists {
			exists, partitions, replication = "no", "-", "-"
			absent = absent || len(t.Problems) == 0
		}
		row := []string{t.Name, strings.Join(t.roles(), ", "), exists, partitions, replication}
		for _, name := range listedSettings() {
			row = append(row, cmp.Or(t.Settings[name], "-"))
		}
		table.Rows = append(table.Rows, row)
		for _, problem := range t.Problems {
			a.Checks = append(a.Checks, operate.Check{Name: t.String(), Level: operate.Fail, Text: problem})
		}
	}
	a.Tables = []operate.Table{table}
	if absent {
		a.Notes = append(a.Notes, "The topics that do not exist are created on first use (plugins.kafka.create_topics).")
	}
	return a
}

var _ operate.Operated = (*Plugin)(nil)
