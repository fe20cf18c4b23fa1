package kafka

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/IBM/sarama"
	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	list := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:     "topics",
		Short:   "List the Kafka topics of all routes, and their problems",
		Example: fmt.Sprintf("  %[1]s topics --config settings.yaml\n  %[1]s topics create --config settings.yaml", h.Name()),
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.topics(h, cmd, false, false) },
	}))
	var dryRun bool
	create := h.JSONFlag(&cobra.Command{
		Use:     "create",
		Short:   "Create the missing Kafka topics; change no existing one",
		Example: fmt.Sprintf("  %[1]s topics create --config settings.yaml --dry-run\n  %[1]s topics create --config settings.yaml", h.Name()),
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.topics(h, cmd, true, dryRun) },
	})
	create.Flags().BoolVar(&dryRun, "dry-run", false, "let the cluster check the requests, and create nothing")
	list.AddCommand(create)
	return []*cobra.Command{list, p.sendCommand(h)}
}

// topics connects to the brokers, without any route, and reports the topics that the routes need.
// Before that it may create the missing ones.
func (p *Plugin) topics(h *app.Host, cmd *cobra.Command, create, dryRun bool) error {
	register := func(r *pipeline.Registry) error {
		r.Service("kafka.topics", service{p}) // it does not mind missing topics
		return nil
	}
	return h.Services(cmd.Context(), cmd, app.ServicesOptions{Routes: true, Register: register}, func(ctx context.Context, running *app.Running) error {
		live, err := p.connected()
		if err != nil {
			return err
		}
		needed := neededTopics(running.Registry.Routes())
		r := topicsReport{DryRun: dryRun}
		if r.Topics, err = live.status(needed); err != nil {
			return answered(err)
		}
		if create {
			live.createMissing(ctx, &r)
		}
		if create && !dryRun {
			var after []*topicStatus
			if after, err = live.status(needed); err == nil {
				r.Topics = after
			}
		}
		reported := report(h, cmd, r)
		if err != nil {
			return answered(err)
		}
		return reported
	})
}

// answered marks an error as one of an unavailable server when no broker answered.
func answered(err error) error {
	if unreachable(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("kafka: %w", err)
}

// createMissing creates the topics of the report that do not exist, or lets the cluster check that
// in a dry run. One that is refused does not stop the others.
func (c *connection) createMissing(ctx context.Context, r *topicsReport) {
	create := func(name string) error { return c.ensure(ctx, name) }
	if r.DryRun {
		create = func(name string) error { return c.create(name, true) }
	}
	for _, t := range r.Topics {
		if t.Exists {
			continue
		}
		err := create(t.Name)
		if err == nil {
			r.Created = append(r.Created, c.plan(t.Name))
			continue
		}
		r.Failed = append(r.Failed, failedTopic{t.Name, err.Error()})
		if refusal := sarama.KError(0); !errors.As(err, &refusal) {
			return // no broker answers
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

// report writes r. Topics that were not created make the exit code 1, and so do topics with
// problems, except in a dry run.
func report(h *app.Host, cmd *cobra.Command, r topicsReport) error {
	if h.JSON(cmd) {
		if err := h.WriteJSON(r); err != nil {
			return err
		}
	} else if err := r.write(h); err != nil {
		return err
	}
	problems := slices.ContainsFunc(r.Topics, func(t *topicStatus) bool { return len(t.Problems) > 0 })
	if len(r.Failed) > 0 || problems && !r.DryRun {
		return &app.ExitError{Code: app.ExitBad}
	}
	return nil
}

func (r topicsReport) write(h *app.Host) error {
	verb := "Created"
	if r.DryRun {
		verb = "Would create"
	}
	for _, t := range r.Created {
		fmt.Fprintf(h.Out(), "%s %s: %d partitions, replication factor %d", verb, t.Name, t.Partitions, t.Replication)
		for _, name := range slices.Sorted(maps.Keys(t.Settings)) {
			fmt.Fprintf(h.Out(), ", %s %s", name, t.Settings[name])
		}
		fmt.Fprintln(h.Out())
	}
	for _, t := range r.Failed {
		fmt.Fprintf(h.Out(), "Not created: %s: %s\n", t.Name, t.Error)
	}
	if r.DryRun {
		if len(r.Created)+len(r.Failed) == 0 {
			fmt.Fprintln(h.Out(), "All topics exist.")
		}
		return nil
	}
	w := app.Table(h.Out())
	fmt.Fprintln(w, "TOPIC\tROLE\tEXISTS\tPARTITIONS\tREPLICATION\t"+strings.ToUpper(strings.Join(listedSettings(), "\t")))
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
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	if absent {
		fmt.Fprintln(h.Out(), "The topics that do not exist are created on first use (plugins.kafka.create_topics).")
	}
	for _, t := range r.Topics {
		for _, problem := range t.Problems {
			fmt.Fprintf(h.Out(), "%s: %s\n", t.neededTopic, problem)
		}
	}
	return nil
}

var _ app.Commander = (*Plugin)(nil)
