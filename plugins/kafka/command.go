package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/IBM/sarama"
	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command {
	list := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   "topics",
		Short: "List the Kafka topics of all routes, as they are in the cluster, and what is wrong with them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withTopics(h, cmd, func(_ context.Context, live *connection, needed []neededTopic) error {
				topics, err := live.status(needed)
				if err != nil {
					return answered(err)
				}
				return report(h, cmd, topicsReport{Topics: topics})
			})
		},
	}))
	list.AddCommand(p.createCommand(h))
	return []*cobra.Command{list}
}

func (p *Plugin) createCommand(h *app.Host) *cobra.Command {
	var dryRun bool
	cmd := h.JSONFlag(&cobra.Command{
		Use:   "create",
		Short: "Create the missing Kafka topics of all routes; existing ones are not changed",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return p.withTopics(h, cmd, func(ctx context.Context, live *connection, needed []neededTopic) error {
				before, err := live.status(needed)
				if err != nil {
					return answered(err)
				}
				r := topicsReport{DryRun: dryRun, Topics: before, Created: []createdTopic{}}
				var names []string
				for _, t := range before {
					if !t.Exists {
						names = append(names, t.Name)
						r.Created = append(r.Created, live.plan(t.Name))
					}
				}
				if dryRun {
					err = live.tryCreate(names)
				} else if err = live.ensure(ctx, names...); err == nil {
					r.Topics, err = live.status(needed)
				}
				if err != nil {
					return answered(err)
				}
				return report(h, cmd, r)
			})
		},
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "let the cluster check the requests, and create nothing")
	return cmd
}

// withTopics connects to the brokers, without any route, and calls do with the topics that the routes need.
func (p *Plugin) withTopics(h *app.Host, cmd *cobra.Command, do func(context.Context, *connection, []neededTopic) error) error {
	register := func(r *pipeline.Registry) error {
		r.Service("kafka.topics", service{p}) // it does not mind missing topics
		return nil
	}
	return h.Services(cmd.Context(), cmd, app.ServicesOptions{Routes: true, Register: register}, func(ctx context.Context, running *app.Running) error {
		live, err := p.connected()
		if err != nil {
			return err
		}
		return do(ctx, live, neededTopics(running.Registry.Routes()))
	})
}

// answered marks an error as one of an unavailable server when no broker answered.
func answered(err error) error {
	if unreachable(err) {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return fmt.Errorf("kafka: %w", err)
}

// tryCreate lets the cluster check the creation of topics without carrying it out.
func (c *connection) tryCreate(names []string) error {
	admin, err := sarama.NewClusterAdminFromClient(c.client)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range names {
		if err := admin.CreateTopic(name, c.detail(name), true); err != nil {
			errs = append(errs, fmt.Errorf("topic %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// topicsReport is what the commands write with --json.
type topicsReport struct {
	DryRun  bool           `json:"dry_run,omitempty"`
	Created []createdTopic `json:"created,omitempty"` // with a dry run: would be created
	Topics  []*topicStatus `json:"topics"`
}

// createdTopic is what a topic is created with.
type createdTopic struct {
	Name            string `json:"name"`
	Partitions      int32  `json:"partitions"`
	Replication     int16  `json:"replication"`
	MaxMessageBytes int    `json:"max_message_bytes"`
}

func (c *connection) plan(topic string) createdTopic {
	return createdTopic{topic, c.config.Partitions, c.config.ReplicationFactor, c.limit(topic)}
}

// report writes r. Topics with problems make the exit code 1, except in a dry run.
func report(h *app.Host, cmd *cobra.Command, r topicsReport) error {
	if h.JSON(cmd) {
		if err := h.WriteJSON(r); err != nil {
			return err
		}
	} else if err := r.write(h); err != nil {
		return err
	}
	for _, t := range r.Topics {
		if len(t.Problems) > 0 && !r.DryRun {
			return &app.ExitError{Code: app.ExitBad}
		}
	}
	return nil
}

func (r topicsReport) write(h *app.Host) error {
	verb := "Created"
	if r.DryRun {
		verb = "Would create"
	}
	for _, t := range r.Created {
		fmt.Fprintf(h.Out(), "%s %s: %d partitions, replication factor %d, %s %d\n", verb, t.Name, t.Partitions, t.Replication, configMaxMessageBytes, t.MaxMessageBytes)
	}
	if r.DryRun {
		if len(r.Created) == 0 {
			fmt.Fprintln(h.Out(), "All topics exist.")
		}
		return nil
	}
	w := tabwriter.NewWriter(h.Out(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TOPIC\tROLE\tEXISTS\tPARTITIONS\tREPLICATION\tMAX.MESSAGE.BYTES\tCLEANUP.POLICY\tRETENTION.MS\tMIN.INSYNC.REPLICAS")
	for _, t := range r.Topics {
		row := []string{t.Name, strings.Join(t.needed.roles(), ", ")}
		if t.Exists {
			row = append(row, "yes", fmt.Sprint(t.Partitions), fmt.Sprint(t.Replication))
			for _, name := range []string{configMaxMessageBytes, configCleanupPolicy, configRetention, configMinInSync} {
				value := t.Settings[name]
				if value == "" {
					value = "-"
				}
				row = append(row, value)
			}
		} else {
			row = append(row, "no", "-", "-", "-", "-", "-", "-")
		}
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	for _, t := range r.Topics {
		for _, problem := range t.Problems {
			fmt.Fprintf(h.Out(), "%s: %s\n", t.needed, problem)
		}
	}
	return nil
}

var _ app.Commander = (*Plugin)(nil)
