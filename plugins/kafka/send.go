package kafka

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
)

const (
	sendBatch   = 500      // records per publish call
	longestLine = 16 << 20 // bytes
)

// sendCommand publishes records that an operator writes.
type sendCommand struct {
	p       *Plugin
	h       *app.Host
	file    string
	format  string
	line    app.Line // key and headers of every record
	headers []string
	by      app.By
}

// Commands implements app.Commander.
func (p *Plugin) Commands(h *app.Host) []*cobra.Command { return []*cobra.Command{p.sendCommand(h)} }

func (p *Plugin) sendCommand(h *app.Host) *cobra.Command {
	s := &sendCommand{p: p, h: h}
	cmd := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   "send TOPIC [VALUE…]",
		Short: "Publish records to a Kafka topic",
		Long: "Publish records to a Kafka topic: one per VALUE, or one per line of --file or standard input.\n\n" +
			"A topic with records that cause payments needs --why; the audit of the ledger keeps it.",
		Example: fmt.Sprintf(`  %[1]s send orders '{"id":1}' --profile embedded
  %[1]s send orders '{"id":1}' --key 1 --header source=shop
  %[1]s send orders --file orders.ndjson
  %[1]s tail orders --count 9 --json | %[1]s send copies --format json`, h.Name()),
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return s.run(cmd, args[0], args[1:]) },
	}))
	flags := cmd.Flags()
	flags.StringVar(&s.line.Key, "key", "", "key of the records")
	flags.StringArrayVar(&s.headers, "header", nil, "`name=value` of a header; may be repeated")
	flags.StringVar(&s.file, "file", "", "file with one record per line; - is standard input")
	flags.StringVar(&s.format, "format", "text", "of a line: text (the value) or json (as tail --json writes it)")
	s.by.Flags(cmd)
	return cmd
}

func (s *sendCommand) run(cmd *cobra.Command, topic string, values []string) error {
	audit := s.h.SendAudit(topic)
	switch {
	case !topicName.MatchString(topic):
		return app.Usage("TOPIC must be the name of a Kafka topic, got %q", topic)
	case len(values) > 0 && s.file != "":
		return app.Usage("give either VALUE or --file")
	case s.format != "text" && s.format != "json":
		return app.Usage("--format must be text or json, got %q", s.format)
	case audit != nil:
		if err := s.by.Check(); err != nil {
			return fmt.Errorf("%w: a record of %s causes a payment", err, topic)
		}
	}
	s.line.Headers = map[string]string{}
	for _, header := range s.headers {
		name, value, found := strings.Cut(header, "=")
		if !found {
			return app.Usage("--header must be name=value, got %q", header)
		}
		s.line.Headers[name] = value
	}
	input, err := s.input(cmd)
	if err != nil {
		return err
	}
	defer func() { _ = input.Close() }()
	lines := readLines(input)
	if len(values) > 0 {
		lines = func(yield func(string, error) bool) {
			for _, v := range values {
				if !yield(v, nil) {
					return
				}
			}
		}
	}
	register := func(r *pipeline.Registry) error {
		s.p.log = r.Env().Logger.With("component", pluginName)
		r.Service("kafka.send", service{s.p})
		if audit != nil {
			return audit.Register(r)
		}
		return nil
	}
	return s.h.Services(cmd.Context(), cmd, app.ServicesOptions{Register: register, Routes: audit == nil}, func(ctx context.Context, running *app.Running) error {
		n, err := s.publish(ctx, topic, lines, audit)
		if err != nil {
			return fmt.Errorf("after %s: %w", app.Plural(n, "record"), err)
		}
		if audit == nil && !isRead(running.Registry, topic) {
			fmt.Fprintf(s.h.Err(), "No route of these settings reads %s: it waits for another reader.\n", topic)
		}
		if s.h.JSON(cmd) {
			return s.h.WriteJSON(map[string]any{"topic": topic, "sent": n})
		}
		_, err = fmt.Fprintf(s.h.Out(), "%s sent to %s.\n", app.Plural(n, "record"), topic)
		return err
	})
}

// isRead reports whether a route reads topic.
func isRead(r *pipeline.Registry, topic string) bool {
	return slices.ContainsFunc(r.Routes(), func(route pipeline.Route) bool {
		from := route.From.Describe()
		return from.Kind == Kind && from.Name == topic
	})
}

func (s *sendCommand) input(cmd *cobra.Command) (io.ReadCloser, error) {
	if s.file == "" || s.file == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	file, err := os.Open(s.file)
	if err != nil {
		return nil, app.Usage("--file: %w", err)
	}
	return file, nil
}

func readLines(from io.Reader) iter.Seq2[string, error] {
	return func(yield func(string, error) bool) {
		lines := bufio.NewScanner(from)
		lines.Buffer(nil, longestLine)
		for lines.Scan() {
			if !yield(lines.Text(), nil) {
				return
			}
		}
		if err := lines.Err(); err != nil {
			yield("", err)
		}
	}
}

// publish sends the lines and returns the number of durable records.
func (s *sendCommand) publish(ctx context.Context, topic string, lines iter.Seq2[string, error], audit *app.SendAudit) (n int64, err error) {
	var batch []*message.Message
	flush := func() error {
		err := s.p.Sink(topic).Publish(ctx, batch...)
		if partial, ok := errors.AsType[*pipeline.PartialError](err); ok {
			n += int64(partial.Size - len(partial.Failed))
		} else if err == nil {
			n += int64(len(batch))
		}
		batch = batch[:0]
		return err
	}
	for line, err := range lines {
		if err != nil {
			return n, err
		}
		m, err := s.message(line)
		if err == nil && audit != nil {
			err = audit.Record(ctx, m.Payload, s.by)
		}
		if err != nil {
			return n, err
		}
		if batch = append(batch, m); len(batch) == sendBatch {
			if err := flush(); err != nil {
				return n, err
			}
		}
	}
	return n, flush()
}

func (s *sendCommand) message(text string) (*message.Message, error) {
	line := app.Line{Value: text}
	if s.format == "json" {
		line = app.Line{}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			return nil, app.Usage("a line is no JSON object with key, value and headers: %w", err)
		}
	}
	payload := []byte(line.Value)
	if line.Bytes != nil {
		payload = line.Bytes
	}
	m := message.NewMessage(watermill.NewULID(), payload)
	for _, headers := range []map[string]string{line.Headers, s.line.Headers} {
		for name, value := range headers {
			m.Metadata.Set(name, value)
		}
	}
	for _, key := range []string{line.Key, s.line.Key} {
		if key != "" {
			m.Metadata.Set(pipeline.MetaKey, key)
		}
	}
	return m, nil
}

var _ app.Commander = (*Plugin)(nil)
