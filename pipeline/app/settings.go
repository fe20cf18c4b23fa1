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
)

// Settings are the settings of the process itself, the top level of the settings file.
type Settings struct {
	// Home is where the servers are: real (elsewhere, at the configured addresses) or a name of Options.Homes.
	Home string `yaml:"home"`
	// DataDir is where a home inside the process keeps its data. Empty: in memory only.
	DataDir string `yaml:"data_dir"`
	// InstanceID names this instance among all others; it must be unique. Empty: hostname-pid.
	InstanceID string `yaml:"instance_id"`
	// StartTimeout is how long the start waits for absent servers, all together.
	StartTimeout time.Duration `yaml:"start_timeout"`
	// StopTimeout bounds draining and stopping, all together. A quarter of it, at most 5s, is kept for the services.
	StopTimeout time.Duration `yaml:"stop_timeout"`
	// MaxStuckHandlers is how many handlers may be over their longest hold at once before the process
	// ends with that reason.
	MaxStuckHandlers int `yaml:"max_stuck_handlers"`
	// Log says how much is logged, and in which form.
	Log LogSettings `yaml:"log"`
}

// LogSettings say how much is logged, and in which form.
type LogSettings struct {
	// Level is debug, info, warn or error.
	Level slog.Level `yaml:"level"`
	// Format is text, json, or auto: text on a terminal, otherwise JSON.
	Format string `yaml:"format"`
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings {
	return Settings{
		Home:             realHome,
		DataDir:          ".millrace",
		StartTimeout:     60 * time.Second,
		StopTimeout:      30 * time.Second,
		MaxStuckHandlers: 8,
		Log:              LogSettings{Format: "auto"},
	}
}

const (
	realHome     = "real"
	embeddedHome = "embedded"
)

// validate reports every mistake at once; homes are those that the binary can start.
func (s *Settings) validate(homes map[string]Home) error {
	var errs []error
	bad := func(path, format string, args ...any) {
		errs = append(errs, &pipeline.FieldError{Path: path, Problem: fmt.Sprintf(format, args...)})
	}
	known := append(slices.Sorted(maps.Keys(homes)), realHome)
	if !slices.Contains(known, s.Home) {
		bad("home", "must be %s, got %q", strings.Join(known, " or "), s.Home)
	}
	if strings.ContainsFunc(s.InstanceID, func(r rune) bool { return r <= ' ' }) {
		bad("instance_id", "must not contain spaces, got %q", s.InstanceID)
	}
	if s.StartTimeout <= 0 {
		bad("start_timeout", "must be > 0, got %s", s.StartTimeout)
	}
	if s.StopTimeout <= 0 {
		bad("stop_timeout", "must be > 0, got %s", s.StopTimeout)
	}
	if s.MaxStuckHandlers <= 0 {
		bad("max_stuck_handlers", "must be > 0, got %d", s.MaxStuckHandlers)
	}
	if !slices.Contains([]string{"auto", "text", "json"}, s.Log.Format) {
		bad("log.format", "must be auto, text or json, got %q", s.Log.Format)
	}
	return errors.Join(errs...)
}

// instance returns the name of this instance.
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

// Sections returns everything that a settings file of a binary with these plugins can hold, with the
// defaults: what configs.Schema wants.
func Sections(plugins ...pipeline.Plugin) map[string]any {
	top := DefaultSettings()
	sections := map[string]any{"": &top}
	for _, p := range plugins {
		if c, ok := p.(pipeline.Configurable); ok {
			sections["plugins."+p.Name()] = c.Settings()
		}
	}
	return sections
}

// Loaded is what Host.Load read.
type Loaded struct {
	Settings Settings          // the process's own; the plugins' are in the plugins
	Document *configs.Document // where each value came from
	Logger   *slog.Logger      // as the settings want it
}

// SettingsFlags adds --config and --profile to a command and those below it, and returns the command.
// Commands that call Load, Run or Services need it on themselves or on their parent.
func (h *Host) SettingsFlags(cmd *cobra.Command) *cobra.Command {
	otherwise := ""
	if d := h.defaultProfile(); d != "" {
		otherwise = " (without --config: " + d + ")"
	}
	return addSettingsFlags(cmd, otherwise)
}

// ServiceFlags is SettingsFlags for commands that ask about a service, or change what it has: they assume no
// profile. Without settings an operator would be told of the empty home in the folder that he happens to be in.
func (h *Host) ServiceFlags(cmd *cobra.Command) *cobra.Command {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations[ofService] = "yes"
	return addSettingsFlags(cmd, "; without any, "+configVariable+" names the file")
}

// configVariable names the settings file of the service that ServiceFlags commands ask, when no flag does. What brings a
// service or a campaign into being wants to be told where: run, demo.
const configVariable = "MILLRACE_CONFIG"

func environment(environ []string, name string) string {
	for _, v := range environ {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

// ofService marks the commands of ServiceFlags.
const ofService = "millrace/service"

func asksService(cmd *cobra.Command) bool {
	for c := cmd; c != nil; c = c.Parent() {
		if c.Annotations[ofService] != "" {
			return true
		}
	}
	return false
}

func addSettingsFlags(cmd *cobra.Command, otherwise string) *cobra.Command {
	flags := cmd.PersistentFlags()
	flags.String("config", "", "settings `file` (YAML), laid over the profile")
	flags.String("profile", "", "built-in `profile`: "+strings.Join(configs.Profiles(), ", ")+otherwise)
	// It fails only for a flag that doesn't exist.
	_ = cmd.RegisterFlagCompletionFunc("profile", cobra.FixedCompletions(configs.Profiles(), cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

func (h *Host) defaultProfile() string {
	if _, ok := h.o.Homes[embeddedHome]; ok {
		return embeddedHome
	}
	return ""
}

// Load reads the settings that the command's --config and --profile, the environment and the overrides
// (dotted path to value) say, decodes them into the plugins and validates all. Its error holds every
// mistake at once, as *configs.Error. It starts nothing.
func (h *Host) Load(cmd *cobra.Command, overrides map[string]any) (*Loaded, error) {
	l, err := h.decode(cmd, overrides)
	if l == nil {
		return nil, err
	}
	if err := both(err, h.validate(l)); err != nil {
		return nil, err
	}
	return l, nil
}

// both joins the mistakes of decoding and those of the validation after it. What could not be decoded has
// its default, and what the validation says about that would send a person looking for a second mistake.
func both(decoding, validation error) error {
	undecoded := map[string]bool{}
	for _, e := range configs.Flatten(decoding) {
		undecoded[e.Path] = true
	}
	errs := []error{decoding}
	for _, e := range configs.Flatten(validation) {
		if !undecoded[e.Path] {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
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
	options := configs.Options{Profile: profile, DefaultProfile: h.defaultProfile(), File: file, Environ: h.o.Environ, Overrides: overrides}
	asks := asksService(cmd)
	if asks {
		options.DefaultProfile = ""
		if file == "" && profile == "" {
			options.File = environment(h.o.Environ, configVariable)
		}
	}
	doc, err := configs.Load(options)
	if err != nil {
		return nil, err
	}
	if asks && h.defaultProfile() != "" && len(doc.Layers()) == 0 {
		return nil, &usageError{command: cmd.CommandPath(), err: fmt.Errorf(
			"which service is meant? Give --config FILE, --profile NAME (%s is the home in this folder), or set %s",
			h.defaultProfile(), configVariable)}
	}
	l = &Loaded{Settings: DefaultSettings(), Document: doc}
	errs := []error{doc.Decode("", &l.Settings)}
	for _, p := range h.o.Plugins {
		if c, ok := p.(pipeline.Configurable); ok {
			errs = append(errs, doc.Decode("plugins."+p.Name(), c.Settings()))
		}
	}
	errs = append(errs, doc.Unclaimed())
	l.Logger = newLogger(h.o.Stderr, l.Settings.Log)
	return l, errors.Join(errs...)
}

func (h *Host) validate(l *Loaded) error {
	errs := []error{place(l.Document, "", l.Settings.validate(h.o.Homes))}
	for _, p := range h.o.Plugins {
		c, ok := p.(pipeline.Configurable)
		if !ok {
			continue
		}
		if v, ok := c.Settings().(interface{ Validate() error }); ok {
			errs = append(errs, place(l.Document, "plugins."+p.Name(), v.Validate()))
		}
	}
	return errors.Join(errs...)
}

// place turns what a Validate method found wrong in the section at path into errors with file and line.
func place(doc *configs.Document, path string, err error) error {
	if path != "" {
		err = pipeline.FieldErrorsUnder(path, err)
	}
	switch e := err.(type) { //nolint:errorlint // the tree itself is walked
	case nil:
		return nil
	case *pipeline.FieldError:
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
