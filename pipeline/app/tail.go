package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
)

// Tailer is implemented by a transport whose messages `tail` shows.
type Tailer interface {
	// Tail returns a source of the messages of a topic or stream, from the oldest, or those that
	// are published after Open. It needs no service, belongs to no group and creates nothing. The
	// result is nil for a name that the transport can't have.
	Tail(name string, oldest bool) pipeline.Source
}

// Ender is implemented by a source of Tailer that can end. ToEnd returns a source of the messages
// that are there when it is opened: the channel of its subscription is closed after the last of
// them, and Close returns what kept it from reading all.
type Ender interface {
	ToEnd() pipeline.Source
}

// Line is a message as `tail --json` writes it, one per line, and `send --format json` reads it.
type Line struct {
	Position string            `json:"position,omitempty"` // where tail has read it
	Key      string            `json:"key,omitempty"`
	Value    string            `json:"value"`
	Bytes    []byte            `json:"bytes,omitempty"` // the value in base64, if it is not UTF-8
	Headers  map[string]string `json:"headers,omitempty"`
}

func lineOf(m *message.Message) Line {
	l := Line{Position: pipeline.DeliveryFrom(m.Context()).String(), Key: m.Metadata[pipeline.MetaKey], Headers: map[string]string{}}
	maps.Copy(l.Headers, m.Metadata)
	delete(l.Headers, pipeline.MetaKey)
	if utf8.Valid(m.Payload) {
		l.Value = string(m.Payload)
	} else {
		l.Bytes = m.Payload
	}
	return l
}

type tailFlags struct {
	from, plugin string
	count        int
	headers      bool
	follow       bool
}

// ends says whether the command ends where the topic ends now. Whoever wants the oldest messages of a
// topic, and not more than some, has no use for waiting until it has so many.
func (f tailFlags) ends(followSet bool) bool {
	return followSet && !f.follow || !followSet && f.from == "oldest" && f.count > 0
}

func (h *Host) tailCommand() *cobra.Command {
	var f tailFlags
	cmd := h.ServiceFlags(&cobra.Command{
		Use:   "tail TOPIC|STREAM",
		Short: "Show messages of a topic or a Redis stream as they arrive",
		Long: "Show the messages of a Kafka topic or a Redis stream as they arrive, until Ctrl-C.\n\n" +
			"It joins no consumer group, commits nothing, and takes no message from another reader.\n" +
			"With --from oldest --count it ends at the present end when there are fewer messages, unless --follow is given;\n" +
			"--from oldest --follow=false shows all that are there.\n" +
			"A name that Kafka allows is a topic; --plugin redis reads a stream of such a name.",
		Example: h.examples("tail orders --profile embedded", "tail orders-dead --from oldest --headers", "tail orders --from oldest --count 10 --json",
			"tail orders --from oldest --follow=false --json > orders.ndjson",
			"tail campaign-promotion-stream:POINT:12345"),
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return h.tail(cmd, args[0], f) },
	})
	flags := cmd.Flags()
	flags.StringVar(&f.from, "from", "newest", "newest (messages published from now on) or oldest")
	flags.StringVar(&f.plugin, "plugin", "", "`name` of the transport, if several can have the name")
	flags.IntVar(&f.count, "count", 0, "end after `n` messages; 0: any number")
	flags.BoolVar(&f.follow, "follow", true, "wait for new messages at the present end")
	flags.BoolVar(&f.headers, "headers", false, "show the headers too")
	flags.Bool("json", false, "write one JSON object per message")
	return cmd
}

func (h *Host) tail(cmd *cobra.Command, name string, f tailFlags) error {
	if f.from != "newest" && f.from != "oldest" {
		return Usage("--from must be newest or oldest, got %q", f.from)
	}
	followSet := cmd.Flags().Changed("follow")
	if followSet && !f.follow && f.from == "newest" {
		return Usage("--follow=false needs --from oldest: there are no newest messages yet")
	}
	return h.open(cmd.Context(), cmd, nil, nil, true, func(l *Loaded, _ trace.TracerProvider) error {
		l.command = true
		if _, err := h.register(l); err != nil { // the plugins get their logger, and say what they wait for
			return err
		}
		var source pipeline.Source
		var hidden []string           // transports without Tailer
		for _, p := range l.Plugins { // the last one counts: Redis allows every name
			if f.plugin != "" && f.plugin != p.Name() {
				continue
			}
			t, ok := p.(Tailer)
			if !ok {
				if _, ok := p.(pipeline.Topics); ok {
					hidden = append(hidden, p.Name())
				}
				continue
			}
			if s := t.Tail(name, f.from == "oldest"); s != nil {
				source = s
			}
		}
		switch {
		case source == nil && len(hidden) > 0:
			return Usage("the messages of %q can't be shown: plugin %s is a transport without app.Tailer", name, strings.Join(hidden, ", "))
		case source == nil:
			return Usage("no enabled transport has a topic or stream with the name %q", name)
		}
		if f.ends(followSet) {
			ender, ok := source.(Ender)
			if !ok {
				return Usage("%s can't be read to its end: use --follow", source.Describe())
			}
			source = ender.ToEnd()
		}
		return h.showAll(cmd, l, source, f)
	})
}

// showAll shows the messages of a source until there are f.count, the source ends, or a signal comes.
func (h *Host) showAll(cmd *cobra.Command, l *Loaded, source pipeline.Source, f tailFlags) (err error) {
	ctx := cmd.Context()
	var s pipeline.Subscription
	err = startWithin(ctx, l, func(ctx context.Context) (err error) {
		s, err = source.Open(ctx, pipeline.Flow{})
		return err
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	messages, err := s.Subscribe(ctx, "")
	if err != nil {
		return err
	}
	var failed <-chan error
	if failer, ok := s.(pipeline.Failer); ok {
		failed = failer.Failed()
	}
	n := 0
	defer func() { fmt.Fprintf(h.opts.Stderr, "%s of %s.\n", Plural(int64(n), "message"), source.Describe()) }()
	for f.count == 0 || n < f.count {
		select {
		case m, ok := <-messages:
			if !ok {
				select {
				case err := <-failed:
					return err
				default:
					return nil // Close has the error of a source that ended
				}
			}
			if err := h.showLine(lineOf(m), h.JSON(cmd), f.headers); err != nil {
				return err
			}
			m.Ack()
			n++
		case err := <-failed:
			return err
		}
	}
	return nil
}

func (h *Host) showLine(l Line, asJSON, headers bool) error {
	if asJSON {
		enc := json.NewEncoder(h.opts.Stdout)
		enc.SetEscapeHTML(false)
		return enc.Encode(l)
	}
	value := l.Value
	if l.Bytes != nil {
		value = fmt.Sprintf("%d bytes, not UTF-8", len(l.Bytes))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s  %s  %s\n", l.Position, Printable(l.Key), Printable(value))
	for _, name := range slices.Sorted(maps.Keys(l.Headers)) {
		if headers {
			fmt.Fprintf(&b, "  %s: %s\n", Printable(name), Printable(l.Headers[name]))
		}
	}
	_, err := fmt.Fprint(h.opts.Stdout, b.String())
	return err
}
