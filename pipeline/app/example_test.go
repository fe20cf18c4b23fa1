package app_test

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
)

// greeter is a handler plugin with a command of its own.
type greeter struct{ from pipeline.Source }

func (greeter) Name() string { return "greeter" }

func (g greeter) Register(r *pipeline.Registry) error {
	r.Route(pipeline.Route{Name: "greet", From: g.from, Handle: pipeline.JSON(func(context.Context, string) error { return nil }), Policy: pipeline.Policy{DeadLetter: pipeline.Drop}})
	return nil
}

func (greeter) Commands(h *app.Host) []*cobra.Command {
	return []*cobra.Command{h.JSONFlag(&cobra.Command{
		Use: "greet",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if h.JSON(cmd) {
				return h.WriteJSON(map[string]string{"greeting": "hello"})
			}
			_, err := fmt.Fprintln(h.Out(), "hello")
			return err
		},
	})}
}

// The main function of a binary of one's own is os.Exit(app.Main(…)) with these options.
func ExampleMain() {
	code := app.Main(context.Background(), app.Options{
		Name:    "mine",
		Plugins: []pipeline.Plugin{greeter{pipelinetest.NewFeed("names")}},
		Stdout:  os.Stdout,
		Args:    []string{"topology"}, // left out: the process's
		Environ: []string{},           // left out: the process's
	})
	fmt.Println("exit code", code)
	// Output:
	// greet
	//   from         feed names
	//   dead letter  drop messages
	//   order        none
	//   chain        metrics trace owner failure refuse hold publish correlation recover timeout
	// exit code 0
}

func ExampleCommander() {
	code := app.Main(context.Background(), app.Options{
		Name: "mine", Plugins: []pipeline.Plugin{greeter{pipelinetest.NewFeed("names")}}, Args: []string{"greet", "--json"},
	})
	fmt.Println("exit code", code)
	// Output:
	// {
	//   "greeting": "hello"
	// }
	// exit code 0
}
