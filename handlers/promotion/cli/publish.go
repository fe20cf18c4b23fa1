package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"strconv"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/handlers/promotion/campaign"
	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

type publishFlags struct {
	campaign  publication
	csv       string
	targets   int
	typeName  string
	seed      uint64
	noStarted bool
}

func (c commands) publish() *cobra.Command {
	var f publishFlags
	cmd := c.h.JSONFlag(&cobra.Command{
		Use:   "publish",
		Short: "Publish a campaign's records to Kafka, from a file or generated",
		Example: `  millrace campaign publish --promotion 12345 --csv targets.csv
  zcat targets.csv.gz | millrace campaign publish --promotion 12345 --csv -
  millrace campaign publish --promotion 12345 --targets 1000 --type POINT`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, remove, err := f.source(cmd)
			if err != nil {
				return err
			}
			defer remove()
			return c.with(cmd, campaign.Services{Kafka: true}, func(ctx context.Context) error { return c.runPublish(ctx, cmd, f, source) })
		},
	})
	flags := cmd.Flags()
	flags.Int64Var(&f.campaign.promotion, "promotion", 0, "promotion `id`")
	flags.Int64Var(&f.campaign.summary, "summary", 1, "promotion summary `id`")
	flags.StringVar(&f.csv, "csv", "", csvUsage("publish"))
	flags.IntVar(&f.targets, "targets", 0, "publish `n` generated targets per type")
	flags.StringVar(&f.typeName, "type", "", "generate targets of this type only; default: all types")
	flags.Uint64Var(&f.seed, "seed", 1, "determines the values of generated targets")
	flags.BoolVar(&f.noStarted, "no-started", false, "do not publish the started event")
	_ = cmd.MarkFlagRequired("promotion") // it exists
	return cmd
}

func (c commands) schema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema TYPE|STARTED",
		Short: "Write the JSON Schema of a type's records, or of the started event",
		Example: `  millrace campaign schema POINT > point.schema.json
  millrace campaign schema STARTED`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			text := promotiontype.StartedSchema()
			if !strings.EqualFold(args[0], "STARTED") {
				t, err := campaign.TypeNamed("TYPE", args[0])
				if err != nil {
					return err
				}
				text = t.RecordSchema()
			}
			_, err := io.WriteString(c.h.Out(), text)
			return err
		},
	}
}

// source checks the flags and returns the targets. The caller calls remove in the end.
func (f publishFlags) source(cmd *cobra.Command) (s targetSource, remove func(), err error) {
	remove = func() {}
	switch {
	case f.campaign.promotion <= 0 || f.campaign.summary <= 0:
		return s, remove, app.Usage("--promotion and --summary must be > 0, got %d and %d", f.campaign.promotion, f.campaign.summary)
	case (f.csv == "") == (f.targets == 0):
		return s, remove, app.Usage("give either --csv or --targets")
	case f.targets < 0:
		return s, remove, app.Usage("--targets must be > 0, got %d", f.targets)
	}
	types := promotiontype.All()
	if f.typeName != "" {
		t, err := campaign.TypeNamed("--type", f.typeName)
		if err != nil {
			return s, remove, err
		}
		types = []promotiontype.Type{t}
	}
	if f.csv == "" {
		return generatedSource(f.targets, f.seed, types...), remove, nil
	}
	return readSource(cmd, f.csv)
}

// readSource returns the targets of a campaign file; - is standard input. The caller calls remove
// in the end.
func readSource(cmd *cobra.Command, path string) (s targetSource, remove func(), err error) {
	remove = func() {}
	if path == "-" {
		if path, remove, err = spoolStdin(cmd.InOrStdin()); err != nil {
			return s, func() {}, err
		}
	}
	if s, err = fileSource(path); err != nil {
		remove()
		return s, func() {}, &app.ExitError{Code: app.ExitUsage, Err: err}
	}
	return s, remove, nil
}

func (c commands) runPublish(ctx context.Context, cmd *cobra.Command, f publishFlags, source targetSource) error {
	start, total := time.Now(), source.total()
	for _, note := range source.notes {
		fmt.Fprintln(cmd.ErrOrStderr(), note)
	}
	if !f.noStarted {
		for name, n := range source.counts {
			if err := f.campaign.announce(ctx, c.Kafka, name, n); err != nil {
				return err
			}
		}
	}
	bar := c.h.Progress(total, "published")
	n, err := f.campaign.publish(ctx, c.Kafka, source.targets, bar.Set)
	bar.Done()
	if err != nil {
		return fmt.Errorf("after %d of %s (publishing them again is harmless): %w", n, app.Plural(total, "record"), err)
	}
	seconds := time.Since(start).Seconds()
	return c.showLine(cmd, map[string]any{"promotion": f.campaign.promotion, "published": n, "seconds": seconds},
		"Promotion %d: %s published in %.1f s.", f.campaign.promotion, app.Plural(n, "record"), seconds)
}

const publishBatch = 500

type topics interface {
	Sink(topic string) pipeline.Sink
}

// publication is a promotion to publish: the same id and summary for each type.
type publication struct {
	promotion, summary int64
}

// announce publishes the started event of a type. totalCount sizes the streams.
func (c publication) announce(ctx context.Context, to topics, typeName string, totalCount int64) error {
	payload, err := json.Marshal(promotiontype.Started{PromotionID: c.promotion, PromotionType: typeName, TotalCount: totalCount})
	if err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewULID(), payload)
	msg.Metadata.Set(pipeline.MetaKey, strconv.FormatInt(c.promotion, 10))
	if err := to.Sink(promotiontype.StartedTopic).Publish(ctx, msg); err != nil {
		return fmt.Errorf("publish to %s: %w", promotiontype.StartedTopic, err)
	}
	return nil
}

// publish publishes the records of the targets. After each batch it calls published with the number
// of durable records. It returns that number, also with an error.
func (c publication) publish(ctx context.Context, to topics, targets iter.Seq2[target, error], published func(int64)) (int64, error) {
	var total int64
	batches := map[string][]*message.Message{} // by topic
	flush := func(topic string) error {
		if err := to.Sink(topic).Publish(ctx, batches[topic]...); err != nil {
			return fmt.Errorf("publish to %s: %w", topic, err)
		}
		total += int64(len(batches[topic]))
		batches[topic] = batches[topic][:0]
		published(total)
		return nil
	}
	for t, err := range targets {
		if err != nil {
			return total, err
		}
		msg, err := c.record(t)
		if err != nil {
			return total, err
		}
		topic := t.of.PublishTopic()
		if batches[topic] = append(batches[topic], msg); len(batches[topic]) == publishBatch {
			if err := flush(topic); err != nil {
				return total, err
			}
		}
	}
	for topic, rest := range batches {
		if len(rest) > 0 {
			if err := flush(topic); err != nil {
				return total, err
			}
		}
	}
	return total, nil
}

func (c publication) record(t target) (*message.Message, error) {
	payload, err := t.of.Encode(c.promotion, c.summary, t.id, t.value)
	if err != nil {
		return nil, fmt.Errorf("target %d: %w", t.id, err)
	}
	msg := message.NewMessage(watermill.NewULID(), payload)
	msg.Metadata.Set(pipeline.MetaKey, strconv.FormatInt(t.id, 10))
	return msg, nil
}
