package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
)

// DemoFlags are the flags of each demo.
type DemoFlags struct{ Keep, Verbose bool }

// Flags adds the flags.
func (f *DemoFlags) Flags(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.Keep, "keep", false, "keep running after the report, until Ctrl-C")
	cmd.Flags().BoolVar(&f.Verbose, "verbose", false, "show the log")
}

// Apply adds the settings that follow from the flags. The log is hidden unless it shall be shown, and a demo
// that keeps running has a console, at a free port because another process may have the usual one.
func (f DemoFlags) Apply(h *Host, settings map[string]any) {
	if !f.Verbose {
		settings["log.level"] = "error"
	}
	if h.hasPlugin(consolePlugin) {
		settings["plugins."+consolePlugin+".enabled"] = f.Keep
		settings["plugins."+consolePlugin+".listen"] = "127.0.0.1:0"
	}
}

// Demo is a demo of a handler. Its plugins run in this process, and in Processes.
type Demo[R any] struct {
	DemoFlags
	// Settings returns those of this process, dotted path to value. The folder is removed at the
	// end.
	Settings func(dir string) (map[string]any, error)
	// Off are plugins that all processes switch off, with all plugins that need them.
	Off []string
	// Run returns the report. Its context ends when a process fails.
	Run func(context.Context, *Processes) (R, error)
	// Text writes the report for a person.
	Text func(io.Writer, R) error
	// Verdict returns what is wrong. It is nil if all is well.
	Verdict func(R) error
	// Next says what to try after a good verdict.
	Next string
}

// RunDemo runs a demo in a folder of its own, shows its report, and returns its verdict.
func RunDemo[R any](h *Host, cmd *cobra.Command, d Demo[R]) error {
	dir, err := os.MkdirTemp("", h.Name()+"-demo-")
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	settings, err := d.Settings(dir)
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	settings["data_dir"] = filepath.Join(dir, "data")
	settings["plugins.telemetry.listen"] = ""
	d.Apply(h, settings)
	off := h.withDependents(d.Off)
	switchOff(settings, off)
	return h.Run(cmd.Context(), cmd, RunOptions{Demo: true, Overrides: settings, Ready: func(ctx context.Context, running *Running) error {
		processes := h.processes(dir, off...)
		defer processes.stop()
		report, err := during(ctx, processes, d.Run)
		if err != nil {
			return err
		}
		if err := h.Show(cmd, report, func(w io.Writer) error { return d.Text(w, report) }); err != nil {
			return err
		}
		verdict := d.Verdict(report)
		switch {
		case d.Keep:
			fmt.Fprintf(h.Err(), "\nStill running; Ctrl-C ends it.\n")
			if address := consoleOf(running.Plugins); address != "" {
				fmt.Fprintf(h.Err(), "See it at %s\n", address)
			}
			<-ctx.Done()
		case verdict == nil && !h.JSON(cmd):
			fmt.Fprintf(h.Err(), "\nNext: %s\n", d.Next)
		}
		return verdict
	}})
}

// consolePlugin is the name of the plugin with the pages, which a binary may lack.
const consolePlugin = "console"

func (h *Host) hasPlugin(name string) bool {
	return slices.ContainsFunc(h.opts.Plugins, func(p pipeline.Plugin) bool { return p.Name() == name })
}

// consoleOf returns the address of the console. It is empty without one.
func consoleOf(plugins []pipeline.Plugin) string {
	for _, p := range plugins {
		if a, ok := p.(Announcer); ok && p.Name() == consolePlugin {
			return a.Announce()[consolePlugin]
		}
	}
	return ""
}

// during calls run with a context that ends when a process fails.
func during[R any](ctx context.Context, processes *Processes, run func(context.Context, *Processes) (R, error)) (R, error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	go func() {
		select {
		case err := <-processes.failed:
			stop(fmt.Errorf("demo: %w", err))
		case <-ctx.Done():
		}
	}()
	report, err := run(ctx, processes)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return report, err
}

// withDependents returns the names of plugins, and of those that need one of them.
func (h *Host) withDependents(names []string) []string {
	names = slices.Clone(names)
	isOff := func(name string) bool { return slices.Contains(names, name) }
	for before := 0; before < len(names); {
		before = len(names)
		for _, p := range h.opts.Plugins {
			if d, ok := p.(pipeline.Dependent); ok && !isOff(p.Name()) && slices.ContainsFunc(d.Needs(), isOff) {
				names = append(names, p.Name())
			}
		}
	}
	return names
}

func switchOff(settings map[string]any, plugins []string) {
	for _, name := range plugins {
		settings["plugins."+name+".enabled"] = false
	}
}
