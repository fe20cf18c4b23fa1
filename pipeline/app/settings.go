package app

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/configs"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/setting"
)

// Settings are the settings of the process itself, the top level of the settings file.
type Settings struct {
	// Environment is where the servers are: external (at the configured addresses) or a name of
	// Options.Environments.
	Environment string `yaml:"environment"`
	// DataDir is the data folder of an environment inside the process. Empty: in memory only.
	DataDir string `yaml:"data_dir"`
	// InstanceID names this instance among all others; it must be unique. Empty: hostname-pid.
	InstanceID string `yaml:"instance_id"`
	// Migrate makes `run` bring the schemas of the plugins' stores up to date. Without it `run`
	// refuses a schema that is too old, and needs no right to change tables. `migrate` then brings
	// the schemas up to date, with the rights of another role.
	Migrate bool `yaml:"migrate"`
	// StartTimeout is how long the start of `run`, of `migrate` and of a demo waits for absent
	// servers, all together.
	StartTimeout time.Duration `yaml:"start_timeout"`
	// CommandWait is that limit for all other commands, where it is shorter: a person or a script
	// waits for their answer.
	CommandWait time.Duration `yaml:"command_wait"`
	// StopTimeout bounds draining and stopping, all together. A quarter of it, at most 5s, is kept
	// for the services.
	StopTimeout time.Duration `yaml:"stop_timeout"`
	// PublishTimeout bounds each publish of a route: of what its handler returned, of a retry
	// record, of a dead letter. A transport's own limit counts where it is shorter.
	PublishTimeout time.Duration `yaml:"publish_timeout"`
	// MaxStuckHandlers is how many handlers may be over their longest hold at once before the
	// process ends with that reason.
	MaxStuckHandlers int `yaml:"max_stuck_handlers"`
	// Log says how much is logged, and in which form.
	Log LogSettings `yaml:"log"`
}

// LogSettings say how much is logged, and in which form.
type LogSettings struct {
	// Level is debug, info, warn or error.
	Level slog.Level `yaml:"level"`
	// Format is text, json, or auto: short lines for people on a terminal, otherwise JSON. NO_COLOR
	// and TERM=dumb take the colors from a terminal.
	Format string `yaml:"format"`
}

func defaultSettings(name string) Settings {
	return Settings{
		Environment:      external,
		DataDir:          "." + name,
		Migrate:          true,
		StartTimeout:     60 * time.Second,
		CommandWait:      5 * time.Second,
		StopTimeout:      30 * time.Second,
		PublishTimeout:   10 * time.Second,
		MaxStuckHandlers: 8,
		Log:              LogSettings{Format: "auto"},
	}
}

const external = "external"

// validate reports every mistake at once; environments are those that the binary can start.
func (s *Settings) validate(environments map[string]Environment) error {
	var p setting.Problems
	known := append(slices.Sorted(maps.Keys(environments)), external)
	p.Check(slices.Contains(known, s.Environment), "environment", "must be %s, got %q", strings.Join(known, " or "), s.Environment)
	spaces := strings.ContainsFunc(s.InstanceID, func(r rune) bool { return r <= ' ' })
	p.Check(!spaces, "instance_id", "must not contain spaces, got %q", s.InstanceID)
	p.Positive("start_timeout", s.StartTimeout)
	p.Positive("command_wait", s.CommandWait)
	p.Positive("stop_timeout", s.StopTimeout)
	p.Positive("publish_timeout", s.PublishTimeout)
	p.Check(s.MaxStuckHandlers > 0, "max_stuck_handlers", "must be > 0, got %d", s.MaxStuckHandlers)
	p.Check(slices.Contains([]string{"auto", "text", "json"}, s.Log.Format), "log.format", "must be auto, text or json, got %q", s.Log.Format)
	return p.Err()
}

func (s *Settings) instance() string {
	if s.InstanceID != "" {
		return s.InstanceID
	}
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	return fmt.Sprintf("%s-%d", host, os.Getpid())
}

// Sections returns everything that a settings file of a binary of that name with these plugins can
// hold, with the defaults, for configs.Schema.
func Sections(name string, plugins ...pipeline.Plugin) map[string]any {
	top := defaultSettings(name)
	sections := map[string]any{"": &top}
	for _, p := range plugins {
		sections[section(p)] = settingsOf(p)
	}
	return sections
}

func section(p pipeline.Plugin) string { return "plugins." + p.Name() }

// settingsOf returns what a plugin's settings are decoded into.
func settingsOf(p pipeline.Plugin) any {
	if c, ok := p.(pipeline.Configurable); ok {
		return c.Settings()
	}
	return &struct{}{}
}

// Loaded is what Host.Load read.
type Loaded struct {
	Settings Settings          // the process's own; the plugins' are in the plugins
	Document *configs.Document // where each value came from
	Logger   *slog.Logger      // as configured
	Plugins  []pipeline.Plugin // those of the binary that are enabled, in their order
	Disabled []string          // the names of the others; their settings are not validated

	layers    []string         // those of Document that the command did not add
	logLevel  *slog.LevelVar   // of Logger
	addresses map[string]any   // of the environment; nil without one
	command   bool             // it is not for `run`, `migrate` or a demo
	missing   []*configs.Error // secrets without a value, which the command must not use
}

// secretsUsed returns the mistakes about secrets that have no value and were asked for, or nil.
func (l *Loaded) secretsUsed() error {
	var errs []error
	for _, e := range l.missing {
		if m, ok := errors.AsType[*setting.MissingError](e); ok && m.Used() {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// takeMissing returns the mistakes of err, which may be nil, without those about secrets that have no value here, and
// about other files that can't be opened here, such as the key of a server that a command does not start.
func takeMissing(err error) (missing []*configs.Error, rest error) {
	var errs []error
	for _, e := range configs.Flatten(err) {
		if _, ok := errors.AsType[*setting.MissingError](e); ok || setting.NotHere(e.Problem) || setting.NotReadable(e.Problem) {
			missing = append(missing, e)
		} else {
			errs = append(errs, e)
		}
	}
	return missing, errors.Join(errs...)
}

// wait returns how long a start waits for absent servers, and the setting that says so.
func (l *Loaded) wait() (limit time.Duration, setting string) {
	if l.command && l.Settings.CommandWait <= l.Settings.StartTimeout {
		return l.Settings.CommandWait, "command_wait"
	}
	return l.Settings.StartTimeout, "start_timeout"
}

// SettingsFlags adds --config and --profile to a command and those below it, and returns the
// command. Commands that call Load, Run or Services need it on themselves or on their parent.
func (h *Host) SettingsFlags(cmd *cobra.Command) *cobra.Command {
	otherwise := ""
	if d := h.opts.DefaultProfile; d != "" {
		otherwise = " (without --config: " + d + ")"
	}
	return h.addSettingsFlags(cmd, otherwise)
}

// ServiceFlags is SettingsFlags for commands that read or change a service. They assume no profile:
// without settings an operator would read an empty environment of the current folder.
func (h *Host) ServiceFlags(cmd *cobra.Command) *cobra.Command {
	annotate(cmd, ofService, settingsRequired)
	return h.addSettingsFlags(cmd, "; without any, "+h.configVariable()+" names the file")
}

// shapeFlags is ServiceFlags for commands that open nothing and may show the default profile
// instead.
func (h *Host) shapeFlags(cmd *cobra.Command) *cobra.Command {
	annotate(cmd, ofService, settingsOptional)
	return h.addSettingsFlags(cmd, "; without any, "+h.configVariable()+" names the file")
}

func annotate(cmd *cobra.Command, key, value string) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[key] = value
}

// annotation returns what cmd, or the nearest command above it, is annotated with.
func annotation(cmd *cobra.Command, key string) string {
	for c := cmd; c != nil; c = c.Parent() {
		if value := c.Annotations[key]; value != "" {
			return value
		}
	}
	return ""
}

// configVariable names the settings file of ServiceFlags commands when no flag does. A demo does
// not read it: the demo makes a campaign, and the variable may name a real service.
func (h *Host) configVariable() string { return h.opts.EnvPrefix + "_CONFIG" }

func environment(environ []string, name string) string {
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// Annotations of commands.
const (
	ofService = "millrace/service" // the settings are those of a service: required or optional
	ofPlugin  = "millrace/plugin"  // the plugin that the command belongs to

	settingsRequired = "required"
	settingsOptional = "optional"
)

func (h *Host) addSettingsFlags(cmd *cobra.Command, otherwise string) *cobra.Command {
	flags, profiles := cmd.PersistentFlags(), configs.Profiles(h.opts.Profiles)
	flags.String("config", "", "settings `file` (YAML), laid over the profile")
	flags.String("profile", "", "built-in `profile`: "+strings.Join(profiles, ", ")+otherwise)
	// Both fail only for a flag that doesn't exist.
	if len(profiles) == 0 {
		_ = flags.MarkHidden("profile")
	}
	_ = cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions(profiles, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// Load reads the settings from the command's --config and --profile, the environment and the
// overrides (dotted path to value). It decodes them into the plugins and validates all, but starts
// nothing; of the environment that they name, it takes Environment.Settings. Its error holds every
// mistake at once, as *configs.Error.
func (h *Host) Load(cmd *cobra.Command, overrides map[string]any) (*Loaded, error) {
	l, err := h.read(cmd, overrides)
	if err != nil {
		return nil, err
	}
	return l, nil
}

// read is Load that also returns what it has read of settings with mistakes. l is nil only when the layers themselves
// can't be read.
func (h *Host) read(cmd *cobra.Command, overrides map[string]any) (l *Loaded, err error) {
	l, err = h.decode(cmd, overrides)
	if l == nil {
		return nil, err
	}
	if addresses := h.opts.Environments[l.Settings.Environment].Settings; addresses != nil {
		layers := l.layers
		var again error
		if l, again = h.decode(cmd, withAddresses(overrides, h.ofPlugins(addresses(l.Settings.DataDir)))); l == nil {
			return nil, again
		}
		l.layers = layers
		if err == nil { // `run` needs settings without such mistakes before it starts the environment
			err = again
		}
	}
	return l, both(err, h.validate(l))
}

// loadFor is Load for a command whose environment has started. With unused, a secret that has no value here is no
// mistake until the command asks for it.
func (h *Host) loadFor(cmd *cobra.Command, overrides map[string]any, unused bool) (*Loaded, error) {
	l, err := h.decode(cmd, overrides)
	if l == nil {
		return nil, err
	}
	err = both(err, h.validate(l))
	missing, rest := takeMissing(err)
	if rest != nil || err != nil && !unused {
		return nil, err
	}
	for _, e := range missing {
		if m, ok := errors.AsType[*setting.MissingError](e); ok {
			m.Forget()
		}
	}
	l.missing = missing
	return l, nil
}

// both joins the mistakes of decoding and those of the validation after it. A setting that could
// not be decoded has its default, and so has all below it. The validation's mistakes about those
// are left out.
func both(decoding, validation error) error {
	undecoded := map[string]bool{}
	for _, e := range configs.Flatten(decoding) {
		undecoded[e.Path] = true
	}
	errs := []error{decoding}
	for _, e := range configs.Flatten(validation) {
		if !within(e.Path, undecoded) {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// within reports whether paths has path, or one above it.
func within(path string, paths map[string]bool) bool {
	for path != "" {
		if paths[path] {
			return true
		}
		path = path[:max(0, strings.LastIndexByte(path, '.'))]
	}
	return false
}

// decode is Load without the validation. l is nil only when the layers themselves can't be read.
func (h *Host) decode(cmd *cobra.Command, overrides map[string]any) (l *Loaded, err error) {
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return nil, fmt.Errorf("command %s has no settings flags: %w", cmd.CommandPath(), err)
	}
	profile, err := cmd.Flags().GetString("profile")
	if err != nil {
		return nil, fmt.Errorf("command %s has no settings flags: %w", cmd.CommandPath(), err)
	}
	options := configs.Options{
		Profiles: h.opts.Profiles, Profile: profile, DefaultProfile: h.opts.DefaultProfile, File: file,
		EnvPrefix: h.opts.EnvPrefix, Environ: h.opts.Environ, Overrides: overrides,
	}
	service := annotation(cmd, ofService)
	if service != "" && file == "" && profile == "" {
		options.File = environment(h.opts.Environ, h.configVariable())
	}
	if service == settingsRequired {
		options.DefaultProfile = ""
	}
	doc, err := configs.Load(options)
	if err != nil {
		return nil, err
	}
	if service == settingsRequired && h.opts.DefaultProfile != "" && len(doc.Layers()) == 0 {
		return nil, &usageError{command: cmd.CommandPath(), err: fmt.Errorf(
			"no settings: give --config FILE or --profile NAME, or set %s (--profile %s starts all servers in this process; nothing in it is real)",
			h.configVariable(), h.opts.DefaultProfile)}
	}
	l = &Loaded{Settings: defaultSettings(h.opts.Name), Document: doc, layers: doc.Layers()}
	var errs []error
	for _, p := range h.opts.Plugins {
		enabled, err := doc.Enabled(section(p), settingsOf(p))
		wrong := doc.Decode(section(p), settingsOf(p))
		if enabled {
			l.Plugins = append(l.Plugins, p)
		} else {
			l.Disabled = append(l.Disabled, p.Name())
			_, wrong = takeMissing(wrong) // nothing reads its secrets, such as those of the profile
		}
		errs = append(errs, err, wrong)
	}
	// After the plugins: a plugin's section that was written at the top is then known as one. Its
	// mistakes are reported first.
	errs = append([]error{doc.Decode("", &l.Settings)}, errs...)
	errs = append(errs, doc.Unclaimed(), h.checkEnabled(l, annotation(cmd, ofPlugin)))
	l.Logger, l.logLevel = newLogger(h.opts.Stderr, l.Settings.Log, h.opts.Environ)
	return l, errors.Join(errs...)
}

func (h *Host) validate(l *Loaded) error {
	errs := []error{place(l.Document, "", l.Settings.validate(h.opts.Environments))}
	neededBy := map[string][]string{}
	for _, p := range l.Plugins {
		if d, ok := p.(pipeline.Dependent); ok {
			for _, name := range d.Needs() {
				neededBy[name] = append(neededBy[name], p.Name())
			}
		}
	}
	for _, p := range l.Plugins {
		if v, ok := settingsOf(p).(interface{ Validate() error }); ok {
			errs = append(errs, place(l.Document, section(p), v.Validate()))
		}
		if v, ok := p.(Placed); ok {
			errs = append(errs, place(l.Document, section(p), v.ValidateIn(Where{
				Environment: l.Settings.Environment, Profile: l.Document.Profile(),
				StopTimeout: l.Settings.StopTimeout, NeededBy: neededBy[p.Name()],
			})))
		}
	}
	return errors.Join(errs...)
}

// Where describes the process to a plugin before it runs.
type Where struct {
	Environment string // external, or the name of an environment inside the process
	Profile     string // empty: none
	StopTimeout time.Duration
	NeededBy    []string // the enabled plugins whose Needs contain the plugin
}

// Placed is implemented by a plugin with settings that are right in some places only. ValidateIn is
// called after all settings were decoded, and after Validate; its errors are reported like those of
// Validate.
type Placed interface {
	ValidateIn(where Where) error
}

// checkEnabled reports plugins that are switched off, or not in the binary, although an enabled plugin needs
// them, and plugin owner if it is switched off although the command belongs to it.
func (h *Host) checkEnabled(l *Loaded, owner string) error {
	off := map[string]bool{}
	for _, p := range h.opts.Plugins {
		off[p.Name()] = true
	}
	for _, p := range l.Plugins {
		off[p.Name()] = false
	}
	var errs []error
	problem := func(name, format string, args ...any) {
		errs = append(errs, l.Document.Problem("plugins."+name+".enabled", fmt.Sprintf(format, args...)))
	}
	if off[owner] {
		problem(owner, "must be true: the command is part of this plugin")
	}
	for _, p := range l.Plugins {
		d, ok := p.(pipeline.Dependent)
		if !ok {
			continue
		}
		for _, name := range d.Needs() {
			switch isOff, exists := off[name]; {
			case !exists:
				errs = append(errs, l.Document.Problem(section(p), fmt.Sprintf(
					"plugin %s needs %s, which this binary does not have: add it to app.Options.Plugins", p.Name(), name)))
			case isOff:
				problem(name, "must be true: plugin %s needs it; switch it on, or set %s.enabled: false as well", p.Name(), section(p))
			}
		}
	}
	return errors.Join(errs...)
}

// place turns what a Validate method found wrong in the section at path into errors with file and
// line.
func place(doc *configs.Document, path string, err error) error {
	if path != "" {
		err = setting.FieldErrorsUnder(path, err)
	}
	switch e := err.(type) { //nolint:errorlint // the tree itself is walked
	case nil:
		return nil
	case *setting.FieldError:
		return doc.Problem(e.Path, e.Problem)
	case interface{ Unwrap() []error }:
		var errs []error
		for _, one := range e.Unwrap() {
			errs = append(errs, place(doc, "", one))
		}
		return errors.Join(errs...)
	default:
		return doc.Problem(path, err.Error())
	}
}
