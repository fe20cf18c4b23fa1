package app

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
)

// Sender is implemented by a transport to whose topics `send` publishes. A binary has the command if
// one of its plugins is a Sender, and the first one is used.
type Sender interface {
	// Send returns how records are published to a topic. Its error says why the transport can't have
	// a topic of that name.
	Send(topic string) (Sending, error)
}

// Sending is how records are published to one topic.
type Sending struct {
	Sink pipeline.Sink
	// Register adds the services that the sink needs.
	Register func(*pipeline.Registry) error
}

const (
	sendBatch   = 500      // records per publish call
	longestLine = 16 << 20 // bytes
)

// sendCommand publishes records that an operator writes.
type sendCommand struct {
	h       *Host
	sender  Sender
	file    string
	format  string
	line    Line // key and headers of every record
	headers []string
	by      By
}

// sendCommands returns the command send of the first plugin that is a Sender.
func (h *Host) sendCommands() []*cobra.Command {
	for _, p := range h.opts.Plugins {
		if sender, ok := p.(Sender); ok {
			cmd := h.sendCommand(sender)
			annotate(cmd, ofPlugin, p.Name())
			return []*cobra.Command{cmd}
		}
	}
	return nil
}

func (h *Host) sendCommand(sender Sender) *cobra.Command {
	s := &sendCommand{h: h, sender: sender}
	cmd := h.JSONFlag(h.ServiceFlags(&cobra.Command{
		Use:   "send TOPIC [VALUE…]",
		Short: "Publish records to a Kafka topic",
		Long: "Publish records to a Kafka topic: one per VALUE, or one per line of --file or standard input.\n\n" +
			"A record that asks for a side effect, such as a payment, needs --why; the audit of its ledger keeps it.",
		Example: h.examples(`send orders '{"id":1}' --profile embedded`, `send orders '{"id":1}' --key 1 --header source=shop`,
			"send orders --file orders.ndjson", "tail orders --count 9 --json | "+h.Name()+" send copies --format json"),
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
	sending, err := s.sender.Send(topic)
	switch {
	case err != nil:
		return Usage("%w", err)
	case len(values) > 0 && s.file != "":
		return Usage("give either VALUE or --file")
	case s.format != "text" && s.format != "json":
		return Usage("--format must be text or json, got %q", s.format)
	}
	s.line.Headers = map[string]string{}
	for _, header := range s.headers {
		name, value, found := strings.Cut(header, "=")
		if !found {
			return Usage("--header must be name=value, got %q", header)
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
	var audit *SendAudit
	register := func(r *pipeline.Registry) error {
		if audit = s.h.sendAudit(r, topic); audit != nil {
			if err := s.by.Check(); err != nil {
				return fmt.Errorf("%w: a record of %s asks for a side effect", err, topic)
			}
			if err := audit.Register(r); err != nil {
				return err
			}
		}
		return sending.Register(r)
	}
	return s.h.Services(cmd.Context(), cmd, ServicesOptions{Register: register, Routes: true}, func(ctx context.Context, running *Running) error {
		n, err := s.publish(ctx, sending.Sink, lines, audit)
		if err != nil {
			return fmt.Errorf("after %s: %w", Plural(n, "record"), err)
		}
		if !isRead(running.Registry, sending.Sink.Describe()) {
			fmt.Fprintf(s.h.Err(), "No route of these settings reads %s: it waits for another reader.\n", topic)
		}
		if s.h.JSON(cmd) {
			return s.h.WriteJSON(map[string]any{"topic": topic, "sent": n})
		}
		_, err = fmt.Fprintf(s.h.Out(), "%s sent to %s.\n", Plural(n, "record"), topic)
		return err
	})
}

// isRead reports whether a route reads what is published there.
func isRead(r *pipeline.Registry, to pipeline.Endpoint) bool {
	return slices.ContainsFunc(r.Routes(), func(route pipeline.Route) bool {
		from := route.From.Describe()
		return from.Kind == to.Kind && from.Name == to.Name
	})
}

func (s *sendCommand) input(cmd *cobra.Command) (io.ReadCloser, error) {
	if s.file == "" || s.file == "-" {
		return io.NopCloser(cmd.InOrStdin()), nil
	}
	file, err := os.Open(s.file)
	if err != nil {
		return nil, Usage("--file: %w", err)
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
func (s *sendCommand) publish(ctx context.Context, sink pipeline.Sink, lines iter.Seq2[string, error], audit *SendAudit) (n int64, err error) {
	var batch []*message.Message
	flush := func() error {
		err := sink.Publish(ctx, batch...)
		if partial, ok := errors.AsType[*pipeline.PartialError](err); ok {
			n += int64(partial.Size - len(partial.Failed))
		} else if err == nil {
			n += int64(len(batch))
		}
		batch = batch[:0]
		return err
	}
	for line, err := range lines {
		var m *message.Message
		if err == nil {
			m, err = s.message(line)
		}
		if err == nil && audit != nil {
			err = audit.Record(ctx, m.Payload, s.by)
		}
		if err != nil {
			err = errors.Join(err, flush()) // the audit has what is before it
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
	line := Line{Value: text}
	if s.format == "json" {
		line = Line{}
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			return nil, Usage("a line is no JSON object with key, value and headers: %w", err)
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
