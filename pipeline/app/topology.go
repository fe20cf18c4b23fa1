package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/middleware"
	"github.com/millrace-io/millrace/pipeline/migration"
)

// TopologyRoute is a route in a Topology.
type TopologyRoute struct {
	Plugin     string              `json:"-"` // which has registered it
	Name       string              `json:"name"`
	From       pipeline.Endpoint   `json:"from"`
	To         *pipeline.Endpoint  `json:"to,omitempty"`
	Outputs    []TopologyOutput    `json:"outputs,omitempty"`
	Retry      *pipeline.Endpoint  `json:"retry,omitempty"`
	MaxRetries int                 `json:"max_retries,omitempty"`
	DeadLetter *pipeline.Endpoint  `json:"dead_letter,omitempty"`
	Calls      []pipeline.Endpoint `json:"calls,omitempty"`
	Order      string              `json:"order"`
	Window     int                 `json:"window,omitempty"`
	Timeout    string              `json:"timeout,omitempty"`
	Chain      []string            `json:"chain"` // the outermost step first
}

// TopologyOutput is one of Route.Outputs, by its name.
type TopologyOutput struct {
	Output string `json:"output"`
	pipeline.Endpoint
}

// Topology is all that the plugins have registered, as the command topology shows it. The endpoints are those
// outside of routes.
type Topology struct {
	Routes    []TopologyRoute           `json:"routes"`
	Endpoints []pipeline.PluginEndpoint `json:"endpoints"`
	Off       []string                  `json:"off,omitempty"` // plugins that the settings disable
}

// NewTopology returns the topology of the plugins in a registry, which it only reads.
func NewTopology(reg *pipeline.Registry) Topology {
	out := Topology{Routes: []TopologyRoute{}, Endpoints: append([]pipeline.PluginEndpoint{}, reg.Endpoints()...), Off: reg.Env().Disabled}
	for _, r := range reg.Routes() {
		f := TopologyRoute{
			Plugin: r.Plugin(), Name: r.Name, From: r.From.Describe(), To: endpoint(r.To), Retry: endpoint(r.Policy.Retry.To),
			MaxRetries: r.Policy.Retry.Max, DeadLetter: endpoint(r.Policy.DeadLetter),
			Calls: r.Calls, Order: r.Flow.Order.String(), Window: r.Flow.Window, Chain: chain(r),
		}
		for _, o := range r.AllOutputs() {
			if o.Name != "" {
				f.Outputs = append(f.Outputs, TopologyOutput{o.Name, o.Describe()})
			}
		}
		if r.Policy.Timeout > 0 {
			f.Timeout = r.Policy.Timeout.Round(time.Millisecond).String()
		}
		out.Routes = append(out.Routes, f)
	}
	return out
}

func endpoint(s pipeline.Sink) *pipeline.Endpoint {
	if s == nil {
		return nil
	}
	e := s.Describe()
	return &e
}

func (h *Host) topologyCommand() *cobra.Command {
	var format string
	var wide bool
	var secrets allowUnset
	cmd := h.JSONFlag(h.shapeFlags(&cobra.Command{
		Use:     "topology",
		Short:   "Show all routes, HTTP endpoints and feeds, offline",
		Example: h.examples("topology --config settings.yaml", "topology --config settings.yaml --wide", "topology --format mermaid"),
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if h.JSON(cmd) {
				format = "json"
			}
			write, ok := map[string]func(Topology) error{
				"table":   func(t Topology) error { return writeBlocks(h.opts.Stdout, t) },
				"mermaid": func(t Topology) error { return writeMermaid(h.opts.Stdout, t) },
				"json":    func(t Topology) error { return h.WriteJSON(t) },
			}[format]
			if !ok {
				return &usageError{fmt.Errorf("--format must be table, mermaid or json, got %q", format), cmd.CommandPath()}
			}
			reg, err := h.offline(cmd, secrets)
			if err != nil {
				return err
			}
			if format == "table" && wide {
				return writeTable(h.opts.Stdout, NewTopology(reg))
			}
			return write(NewTopology(reg))
		},
	}))
	cmd.Flags().StringVar(&format, "format", "table", "table, mermaid or json")
	cmd.Flags().BoolVar(&wide, "wide", false, "one line per route or endpoint, wider than 100 columns")
	secrets.flag(cmd)
	_ = cmd.RegisterFlagCompletionFunc("format", cobra.FixedCompletions([]string{"table", "mermaid", "json"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// offline reads the settings and registers the plugins, and opens nothing.
func (h *Host) offline(cmd *cobra.Command, secrets allowUnset) (*pipeline.Registry, error) {
	l, err := h.read(cmd, nil)
	if l == nil {
		return nil, err
	}
	unset, err := secrets.split(err)
	if err != nil {
		return nil, err
	}
	reg, err := h.registerWithout(l, secrets, unset)
	if err == nil {
		h.warnUnset(unset)
	}
	return reg, err
}

// registerWithout registers the plugins. If files are not here, a plugin may read one of them for its routes, and what it
// would register after that is then missing.
func (h *Host) registerWithout(l *Loaded, secrets allowUnset, unset []*configs.Error) (*pipeline.Registry, error) {
	reg, err := h.register(l)
	if err != nil && len(unset) > 0 {
		_, err = secrets.split(errors.Unwrap(err))
	}
	return reg, err
}

// register returns what the plugins have registered, also with an error.
func (h *Host) register(l *Loaded) (*pipeline.Registry, error) {
	reg, err := pipeline.NewRegistry(h.env(l, nil, migration.MatchSchemas), h.withOwn(l.Plugins)...)
	if err == nil {
		err = reg.CheckMiddlewares()
	}
	if err != nil {
		err = &ExitError{ExitUsage, err}
	}
	return reg, err
}

// ofBinary is the plugin that adds the middlewares of the binary.
type ofBinary []pipeline.Middleware

// Name implements pipeline.Plugin.
func (ofBinary) Name() string { return "binary" }

// Register implements pipeline.Plugin.
func (ms ofBinary) Register(r *pipeline.Registry) error {
	r.Middleware(ms...)
	return nil
}

// withOwn returns what registers: the binary, whose middlewares are the outermost, then the plugins.
func (h *Host) withOwn(plugins []pipeline.Plugin) []pipeline.Plugin {
	if len(h.opts.Middlewares) == 0 {
		return plugins
	}
	return append([]pipeline.Plugin{ofBinary(h.opts.Middlewares)}, plugins...)
}

// writeBlocks writes one block per route, and one per plugin with endpoints outside of routes.
func writeBlocks(w io.Writer, t Topology) error {
	var b strings.Builder
	if len(t.Routes) == 0 {
		b.WriteString("No routes.\n")
	}
	for i, f := range t.Routes {
		if i > 0 {
			b.WriteByte('\n')
		}
		fmt.Fprintln(&b, f.Name)
		line := func(name string, at *pipeline.Endpoint) {
			if at == nil {
				return
			}
			fmt.Fprintf(&b, "  %-12s %s %s\n", name, at.Kind, at.Name)
			if at.Group != "" {
				fmt.Fprintf(&b, "    %-10s %s\n", "group", at.Group)
			}
		}
		line("from", &f.From)
		line("to", f.To)
		for _, o := range f.Outputs {
			line("output", &o.Endpoint)
			fmt.Fprintf(&b, "    %-10s %s\n", "name", o.Output)
		}
		line("retry", f.Retry)
		line("dead letter", f.DeadLetter)
		for _, at := range f.Calls {
			line("calls", &at)
		}
		fmt.Fprintf(&b, "  %-12s %s\n", "order", f.Order)
		fmt.Fprintf(&b, "  %-12s %s\n", "chain", strings.Join(f.Chain, " "))
	}
	plugin := ""
	for _, e := range t.Endpoints {
		if e.Plugin != plugin {
			plugin = e.Plugin
			fmt.Fprintf(&b, "\nplugin %s\n", plugin)
		}
		fmt.Fprintf(&b, "  %-12s %s %s\n", e.Use, e.Kind, e.Name)
	}
	_ = t.writeOff(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the topology: %w", err)
	}
	return nil
}

func writeTable(w io.Writer, t Topology) error {
	tab := &TableWriter{out: w} // --wide means whole lines, also on a narrow terminal
	fmt.Fprintln(tab, "ROUTE\tFROM\tTO\tRETRY\tDEAD LETTER\tORDER\tCHAIN")
	for _, f := range t.Routes {
		fmt.Fprintln(tab, strings.Join([]string{f.Name, f.From.String(), f.outputs(), show(f.Retry), show(f.DeadLetter), f.Order, strings.Join(f.Chain, " ")}, "\t"))
	}
	if len(t.Endpoints) > 0 {
		fmt.Fprintln(tab, "\nPLUGIN\tENDPOINT\tUSE")
	}
	for _, e := range t.Endpoints {
		fmt.Fprintln(tab, strings.Join([]string{e.Plugin, e.String(), e.Use}, "\t"))
	}
	err := tab.Flush()
	if err == nil {
		err = t.writeOff(w)
	}
	if err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}

// writeOff names the plugins that are off, because nothing else of them is shown.
func (t Topology) writeOff(w io.Writer) error {
	if len(t.Off) == 0 {
		return nil
	}
	_, err := fmt.Fprintf(w, "\noff (plugins.NAME.enabled: true switches one on)\n  %s\n", strings.Join(t.Off, "\n  "))
	return err
}

// chain returns the steps of a route.
func chain(r pipeline.Route) (names []string) {
	for _, s := range middleware.Steps(r) {
		names = append(names, s.String())
	}
	return names
}

// outputs returns where the messages of the handler go: To, and each of the others with its name. What the handler
// calls comes last.
func (f TopologyRoute) outputs() string {
	var list []string
	if f.To != nil {
		list = append(list, f.To.String())
	}
	for _, o := range f.Outputs {
		list = append(list, o.Output+": "+o.String())
	}
	for _, at := range f.Calls {
		list = append(list, "calls "+at.String())
	}
	return cmp.Or(strings.Join(list, ", "), "-")
}

func show(e *pipeline.Endpoint) string {
	if e == nil {
		return "-"
	}
	return e.String()
}

// writeMermaid draws endpoints as nodes, once each, and routes and plugins as nodes between them.
func writeMermaid(w io.Writer, t Topology) error {
	var b strings.Builder
	b.WriteString("flowchart LR\n")
	ids := map[string]string{}
	node := func(e pipeline.Endpoint) string {
		key := e.Kind + " " + e.Name // groups of one topic meet in it
		id, known := ids[key]
		if !known {
			id = fmt.Sprintf("e%d", len(ids)+1)
			ids[key] = id
			fmt.Fprintf(&b, "  %s[(\"%s<br/>%s\")]\n", id, mermaidText(e.Kind), mermaidText(e.Name))
		}
		return id
	}
	for i, f := range t.Routes {
		route := fmt.Sprintf("r%d", i+1)
		fmt.Fprintf(&b, "  %s[\"%s\"]\n", route, mermaidText(f.Name))
		from := node(f.From)
		if f.From.Group != "" {
			fmt.Fprintf(&b, "  %s -->|\"%s\"| %s\n", from, mermaidText(f.From.Group), route)
		} else {
			fmt.Fprintf(&b, "  %s --> %s\n", from, route)
		}
		arrow := func(line string, at *pipeline.Endpoint) {
			if at != nil {
				to := node(*at)
				fmt.Fprintf(&b, "  %s %s %s\n", route, line, to)
			}
		}
		arrow("-->", f.To)
		for _, o := range f.Outputs {
			arrow(`-->|"`+mermaidText(o.Output)+`"|`, &o.Endpoint)
		}
		arrow("-.->|retry|", f.Retry)
		arrow("-.->|dead letter|", f.DeadLetter)
		for _, at := range f.Calls {
			arrow("-->|calls|", &at)
		}
	}
	plugin, plugins := "", 0
	for _, e := range t.Endpoints {
		if e.Plugin != plugin {
			plugin = e.Plugin
			plugins++
			fmt.Fprintf(&b, "  p%d[\"%s\"]\n", plugins, mermaidText(plugin))
		}
		from, to := node(e.Endpoint), fmt.Sprintf("p%d", plugins)
		if e.Use == pipeline.UseWrites || e.Use == pipeline.UseCalls {
			from, to = to, from
		}
		fmt.Fprintf(&b, "  %s -->|%s| %s\n", from, mermaidText(e.Use), to)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("write the diagram: %w", err)
	}
	return nil
}

// mermaidText escapes what would end a quoted label or begin a tag.
func mermaidText(s string) string {
	return strings.NewReplacer(`"`, "#quot;", "<", "#lt;", ">", "#gt;").Replace(s)
}
