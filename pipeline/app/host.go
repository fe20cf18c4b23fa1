package app

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// Host is what commands use of the binary they run in. One command runs in the life of a Host.
type Host struct {
	opts    Options
	program string
	ran     bool // a command's own code was reached: what fails now is no usage error
}

// Name returns the name of the binary.
func (h *Host) Name() string { return h.opts.Name }

// Program returns what calls the binary in the shell that has called this process, such as millrace,
// bin/millrace or go run ./cmd/millrace.
func (h *Host) Program() string { return h.program }

// runByGo matches the executables of go run: new ones, and those that Go has kept from an earlier run.
var runByGo = regexp.MustCompile(`[/\\](go-build\d+[/\\]b\d+[/\\]exe|[0-9a-f]{64}-d)[/\\][^/\\]+$`)

// calledAs returns Program for the path that a process was started with. info may be nil.
func calledAs(path, name string, info *debug.BuildInfo) string {
	switch {
	case !runByGo.MatchString(path):
		return path
	case info == nil || !strings.Contains(info.Path, "/"): // the files of a command were named
		return name
	}
	folder, ours := strings.CutPrefix(info.Path, info.Main.Path)
	if stat, err := os.Stat("." + folder); ours && err == nil && stat.IsDir() {
		return "go run ." + folder
	}
	return "go run " + info.Path
}

// Variable returns the name of the environment variable that is the setting at path.
func (h *Host) Variable(path string) string {
	return h.opts.EnvPrefix + "__" + strings.ToUpper(strings.ReplaceAll(path, ".", "__"))
}

// examples returns the Example of a command: lines with the name of the binary before them.
func (h *Host) examples(lines ...string) string {
	return "  " + h.opts.Name + " " + strings.Join(lines, "\n  "+h.opts.Name+" ")
}

// Out takes the results of a command.
func (h *Host) Out() io.Writer { return h.opts.Stdout }

// Err takes everything except the results: logs, progress.
func (h *Host) Err() io.Writer { return h.opts.Stderr }

// IsTerminal reports whether a person reads what is written to w.
func (h *Host) IsTerminal(w io.Writer) bool { return isTerminal(w) }

// Colors reports whether a person reads what is written to w, on a terminal with colors, and wants them
// (https://no-color.org).
func (h *Host) Colors(w io.Writer) bool { return isTerminal(w) && showsColors(h.opts.Environ) }

// JSONFlag adds --json to a command and returns the command.
func (h *Host) JSONFlag(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().Bool("json", false, "write one JSON object, for scripts")
	return cmd
}

// JSON reports whether --json was given; false for a command without that flag.
func (h *Host) JSON(cmd *cobra.Command) bool {
	on, err := cmd.Flags().GetBool("json")
	return err == nil && on
}

// Show writes v as JSON with --json, and text otherwise.
func (h *Host) Show(cmd *cobra.Command, v any, text func(io.Writer) error) error {
	if h.JSON(cmd) {
		return h.WriteJSON(v)
	}
	return text(h.opts.Stdout)
}

// WriteJSON writes v to Out, indented, with a newline.
func (h *Host) WriteJSON(v any) error {
	enc := json.NewEncoder(h.opts.Stdout)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write the result: %w", err)
	}
	return nil
}
