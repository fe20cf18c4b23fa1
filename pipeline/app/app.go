package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"strings"
	"syscall"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// Options describe a binary. Only Name is required.
type Options struct {
	// Name is what the binary is called in its help and its errors.
	Name string
	// Short is the one line that its help begins with. Empty: none.
	Short string
	// Documentation is the address that its help names. Empty: none.
	Documentation string
	// Version is shown by `version`. Empty: the module version in the build information.
	Version string
	// Plugins are built offline, downstream first. Their settings are decoded by the commands.
	Plugins []pipeline.Plugin
	// Middlewares are steps of the binary in the chain of the routes that they name, or of all
	// routes. At each place they are outside of those of plugins. Nil: none.
	Middlewares []pipeline.Middleware
	// Environments start servers inside the process, by the value of the setting `environment`.
	// "external" always exists and starts nothing.
	Environments map[string]Environment
	// Profiles holds the binary's settings profiles, NAME.yaml each. Nil: it has none.
	Profiles fs.FS
	// DefaultProfile names a profile that needs no server outside the process. Commands that try or
	// show something use it when no settings are named; `run` and the commands of a service then
	// refuse to start. Empty: there is none, and settings without a profile, a file or a variable
	// are the defaults.
	DefaultProfile string
	// EnvPrefix begins the names of the binary's environment variables: with MILL, MILL__LOG__LEVEL
	// is the setting log.level, and MILL_CONFIG names the settings file. Empty: Name in upper case,
	// with _ for all but letters and digits.
	EnvPrefix string
	// Stdout takes results, Stderr logs, progress and errors. Nil: the process's.
	Stdout, Stderr io.Writer
	// Args are the arguments without the program's name. Nil: the process's.
	Args []string
	// Environ is the environment for settings and for the service manager's socket, as os.Environ
	// returns it. Nil: the process's.
	Environ []string

	echo time.Duration // signalEcho, but in tests
}

// Tracer is implemented by a plugin that makes the process's tracer provider. Tracing is called
// after the settings were decoded and before plugins register, unless the plugin is disabled;
// instance is the name of this instance, and version that of the binary. flush is called at the end and may be nil. Only the first
// plugin that implements Tracer is used.
type Tracer interface {
	Tracing(ctx context.Context, instance, version string) (provider trace.TracerProvider, flush func(context.Context) error, err error)
}

// Commander is implemented by a plugin that has commands which are no reports or actions (see
// operate.Operated), such as one that streams. Commands is called once, before any
// settings are read: the commands themselves call Host.Load, Host.Run or Host.Services. A command with the name of
// an operation gives it the commands below it.
type Commander interface {
	Commands(h *Host) []*cobra.Command
}

// Main runs the command line and returns the exit code. It takes over SIGINT and SIGTERM while it
// runs, and returns when everything it started has ended. When ctx ends it drains as for SIGTERM.
func Main(ctx context.Context, o Options) int {
	if o.Stdout == nil {
		o.Stdout = os.Stdout
	}
	if o.Stderr == nil {
		o.Stderr = os.Stderr
	}
	program := o.Name
	if o.Args == nil {
		info, _ := debug.ReadBuildInfo()
		o.Args, program = os.Args[1:], calledAs(os.Args[0], o.Name, info)
	}
	if o.Environ == nil {
		o.Environ = os.Environ()
	}
	if o.EnvPrefix == "" {
		o.EnvPrefix = envPrefix(o.Name)
	}
	if o.echo == 0 {
		o.echo = signalEcho
	}
	ctx, stop := withSignals(ctx, o.echo, func() {
		fmt.Fprintf(o.Stderr, "%s: draining; Ctrl-C again stops at once\n", o.Name)
	})
	defer stop()

	h := &Host{opts: o, program: program}
	root := h.root() //nolint:contextcheck // the commands get it from ExecuteContextC
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !h.ran {
		err = &usageError{plainArguments(cmd, err), cmd.CommandPath()}
	}
	code := exitCode(ctx, err)
	if code == ExitInterrupted && err != nil && onlyCanceled(err) {
		err = errInterrupt
	}
	report(o, cmd, code, err)
	return code
}

// onlyCanceled reports whether err says nothing but that its context ended.
func onlyCanceled(err error) bool {
	text := err.Error()
	return strings.HasSuffix(text, context.Canceled.Error()) && !strings.Contains(text, "\n")
}

var countedArguments = regexp.MustCompile(`(\d+) arg\(s\)`)

// plainArguments replaces "1 arg(s)" in cobra's errors by "1 argument", and says which arguments the command has.
func plainArguments(cmd *cobra.Command, err error) error {
	text := countedArguments.ReplaceAllStringFunc(err.Error(), func(s string) string {
		n := strings.TrimSuffix(s, " arg(s)")
		if n == "1" {
			return "1 argument"
		}
		return n + " arguments"
	})
	if text == err.Error() {
		return err
	}
	return errors.New(text + ": " + strings.TrimSuffix(cmd.UseLine(), " [flags]"))
}

// envPrefix makes the name of a binary the beginning of a variable's name.
func envPrefix(name string) string {
	return strings.Map(func(r rune) rune {
		if r < unicode.MaxASCII && (unicode.IsLetter(r) || unicode.IsDigit(r)) {
			return unicode.ToUpper(r)
		}
		return '_'
	}, name)
}

var errInterrupt = errors.New("interrupted")

var errTerminate = errors.New("terminated")

// signalEcho is the time after the first signal during which another one has no effect. Process
// managers, shells and `timeout` signal both a process and its group.
const signalEcho = time.Second

// withSignals returns a context that ends with the first SIGINT or SIGTERM, and a function that
// ends the watching. It calls interrupted when the first one is SIGINT. A later SIGTERM changes
// nothing; a SIGINT later than echo ends the process at once.
func withSignals(parent context.Context, echo time.Duration, interrupted func()) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		var first time.Time
		for {
			select {
			case <-quit:
				return
			case s := <-signals:
				switch {
				case first.IsZero():
					first = time.Now()
					if s == syscall.SIGINT {
						interrupted()
					}
					cancel(map[os.Signal]error{syscall.SIGINT: errInterrupt, syscall.SIGTERM: errTerminate}[s])
				case s == syscall.SIGINT && time.Since(first) > echo:
					signal.Reset(syscall.SIGINT)
					if self, err := os.FindProcess(os.Getpid()); err == nil {
						_ = self.Signal(syscall.SIGINT) // without signals the drain continues
					}
				}
			}
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(quit)
		<-done
		cancel(nil)
	}
}

// Groups of commands in the help, for cobra.Command.GroupID. A plugin's command without one is in
// groupOperate.
const (
	groupService = "service"
	groupOperate = "operate"
	groupDevelop = "develop"
)

func (h *Host) root() *cobra.Command {
	long := h.opts.Short
	if h.opts.Documentation != "" {
		long = strings.TrimSpace(long + "\n\nDocumentation: " + h.opts.Documentation)
	}
	root := &cobra.Command{
		Use:           h.opts.Name,
		Short:         h.opts.Short,
		Long:          long,
		Example:       h.examples("run --config settings.yaml", "topology", "new handler invoices", "help tail"),
		SilenceErrors: true, // Main reports, once
		SilenceUsage:  true,
	}
	root.SetArgs(h.opts.Args)
	root.SetOut(h.opts.Stdout)
	root.SetErr(h.opts.Stderr)
	root.Version = h.versionLine()
	root.SetVersionTemplate("{{.Version}}\n")
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages ", fmt.Sprintf("FlagUsagesWrapped %d ", helpColumns)))
	root.AddGroup(
		&cobra.Group{ID: groupService, Title: "The service:"},
		&cobra.Group{ID: groupOperate, Title: "Operating it:"},
		&cobra.Group{ID: groupDevelop, Title: "Developing it:"},
	)
	root.SetHelpCommandGroupID(groupDevelop)
	root.SetCompletionCommandGroupID(groupDevelop)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			if c.GroupID == "" {
				c.GroupID = group
			}
			root.AddCommand(c)
		}
	}
	add(groupService, h.runCommand(), h.migrateCommand(), h.validateCommand(), h.topologyCommand())
	add(groupOperate, h.tailCommand(), h.doctorCommand())
	add(groupOperate, h.sendCommands()...)
	add(groupDevelop, h.newCommand(), h.schemaCommand(), h.versionCommand(), h.manualCommand())
	for _, p := range h.opts.Plugins {
		if c, ok := p.(Commander); ok {
			for _, cmd := range c.Commands(h) {
				annotate(cmd, ofPlugin, p.Name())
				add(groupOperate, cmd)
			}
		}
	}
	h.addOperations(root, "", operate.Operations{Reports: []operate.Report{operate.Routes()}})
	for _, p := range h.opts.Plugins {
		if o, ok := p.(operate.Operated); ok {
			h.addOperations(root, p.Name(), o.Operations())
		}
	}
	root.InitDefaultCompletionCmd(h.opts.Args...)
	if completion, _, err := root.Find([]string{"completion"}); err == nil {
		completion.Example = "  source <(" + h.opts.Name + " completion bash)"
	}
	h.prepare(root)
	return root
}

const helpColumns = 80

// wrap wraps the paragraphs of a text at helpColumns. A paragraph with an indented line stays.
func wrap(text string) string {
	paragraphs := strings.Split(text, "\n\n")
	for i, p := range paragraphs {
		if strings.HasPrefix(p, " ") || strings.Contains(p, "\n ") {
			continue
		}
		var b strings.Builder
		column := 0
		for _, word := range strings.Fields(p) {
			switch n := utf8.RuneCountInString(word); {
			case column == 0:
				column = n
			case column+1+n > helpColumns:
				b.WriteByte('\n')
				column = n
			default:
				b.WriteByte(' ')
				column += 1 + n
			}
			b.WriteString(word)
		}
		paragraphs[i] = b.String()
	}
	return strings.Join(paragraphs, "\n\n")
}

// prepare wraps the long text of every command, and makes the command mark its usage errors. It
// makes every group of commands refuse an unknown word: cobra would show the group's help and
// succeed. One that is a command itself takes no word that is none of its commands.
func (h *Host) prepare(cmd *cobra.Command) {
	for _, c := range cmd.Commands() {
		h.prepare(c)
	}
	cmd.Long = wrap(cmd.Long)
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(c *cobra.Command, args []string) error {
			h.ran = true
			return run(c, args)
		}
	}
	if run := cmd.Run; run != nil {
		cmd.Run = func(c *cobra.Command, args []string) {
			h.ran = true
			run(c, args)
		}
	}
	if !cmd.Runnable() {
		cmd.Args = knownCommand
		cmd.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
	} else if own := cmd.Args; own != nil && cmd.HasAvailableSubCommands() {
		cmd.Args = func(c *cobra.Command, args []string) error {
			if own(c, args) == nil {
				return nil
			}
			return knownCommand(c, args)
		}
	}
}

func knownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	cmd.SuggestionsMinimumDistance = 2 // cobra sets its default only where it suggests itself
	var names []string
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	suggestion := ""
	if like := Nearest(args[0], names); like != "" {
		suggestion = fmt.Sprintf("; did you mean %q?", like)
	} else if like := cmd.SuggestionsFor(args[0]); len(like) > 0 {
		suggestion = fmt.Sprintf("; did you mean %q?", like[0])
	}
	return fmt.Errorf("unknown command %q%s", args[0], suggestion)
}
