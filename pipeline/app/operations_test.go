package app_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
)

// operated is a toy with a report and an action below a command of its own.
type operated struct{ *toy }

type wheel struct {
	Name string   `json:"name"`
	Tags []string `json:"tags"`
	Size int      `json:"size"`
	Big  bool     `json:"big"`
}

func (o operated) Operations() operate.Operations {
	about := operate.About{
		Name: "wheel show", Short: "Show a wheel", Examples: []string{"wheel show"},
		Fields: []operate.Field{
			{Name: "name", Help: "the `name`", Default: "w"}, {Name: "tag", Type: operate.List, Help: "a `tag`"},
			{Name: "size", Type: operate.Number, Default: "3", Help: "the `size`"}, {Name: "big", Type: operate.Switch, Help: "it is big"},
			{Name: "mark", Help: "a `mark`"},
		},
		Validate: func(in operate.Input) error {
			if in.Number("size") < 1 {
				return app.Usage("--size must be > 0")
			}
			return nil
		},
		Register: func(r *pipeline.Registry) error {
			r.Service("wheel", toyService{&toy{order: o.order}})
			return nil
		},
	}
	read := func(_ context.Context, _ *pipeline.Registry, in operate.Input) (operate.Answer, error) {
		w := wheel{in.Text("name"), in.List("tag"), in.Number("size"), in.Switch("big")}
		a := operate.Answer{
			Value: w, Lines: []string{"A wheel" + in.Text("mark") + "."}, Notes: []string{"It turns" + in.Text("mark") + "."},
			Tables: []operate.Table{{Columns: []string{"NAME", "SIZE"}, Rows: [][]string{{w.Name, fmt.Sprint(w.Size)}}}, {Empty: "No spokes."}},
		}
		switch w.Name {
		case "broken":
			a.Checks = []operate.Check{{Name: "spoke", Level: operate.Fail, Text: "is missing", Remedy: "add one"}}
		case "away":
			return a, fmt.Errorf("%w: its hub", pipeline.ErrUnavailable)
		case "lost":
			return operate.Answer{}, errors.New("no such wheel")
		}
		return a, nil
	}
	would := func(context.Context, *pipeline.Registry, operate.Input) (operate.Answer, error) {
		return operate.Answer{Value: map[string]string{"did": "would turn"}, Lines: []string{"would turn"}}, nil
	}
	did := func(_ context.Context, _ *pipeline.Registry, in operate.Input, use operate.Use) (operate.Answer, error) {
		use.Report(1, 2)
		use.Tell("It squeaks.")
		text := strings.TrimSpace(fmt.Sprint("turned ", strings.Join(in.List("spoke"), "+"), " ", use.Who, " ", use.Why))
		return operate.Answer{Value: map[string]any{"did": text, "id": len(use.ID) > 0}, Lines: []string{text}, Tables: []operate.Table{{Rows: [][]string{{"a", "b"}}}}}, nil
	}
	turn := operate.About{Name: "wheel turn", Short: "Turn a wheel", Examples: []string{"wheel turn"}}
	mend := operate.About{Name: "wheel mend", Short: "Mend spokes", Examples: []string{"wheel mend 3"}, Fields: []operate.Field{{Name: "spoke", Type: operate.List, Arguments: true}}}
	one := operate.About{Name: "wheel spin", Short: "Spin a spoke", Examples: []string{"wheel spin front/3"}, Fields: []operate.Field{{Name: "spoke", Arguments: true, Shape: "WHEEL/SPOKE", Required: true}}}
	two := operate.About{Name: "wheel fit", Short: "Fit a spoke", Examples: []string{"wheel fit front 3"}, Fields: []operate.Field{{Name: "spoke", Type: operate.List, Arguments: true, Shape: "WHEEL SPOKE", Required: true}}}
	either := operate.About{Name: "wheel paint", Short: "Paint a spoke or all", Examples: []string{"wheel paint"}, Fields: []operate.Field{{Name: "spoke", Type: operate.List, Arguments: true, Shape: "WHEEL SPOKE"}}}
	maybe := operate.About{Name: "wheel oil", Short: "Oil a spoke or all", Examples: []string{"wheel oil"}, Fields: []operate.Field{{Name: "spoke", Arguments: true}}}
	return operate.Operations{
		Reports: []operate.Report{{About: about, Read: read}},
		Actions: []operate.Action{{About: two, Danger: operate.Safe, Preview: would, Do: did}, {About: either, Danger: operate.Safe, Preview: would, Do: did}, {About: maybe, Danger: operate.Safe, Preview: would, Do: did}, {About: one, Danger: operate.Safe, Preview: would, Do: did}, {About: turn, Danger: operate.Irreversible, Preview: would, Do: did}, {About: mend, Danger: operate.Safe, Audited: true, Preview: would, Do: did}},
	}
}

func TestOperationsAreCommands(t *testing.T) {
	t.Parallel()
	table := "A wheel.\nNAME  SIZE\nw     3\nNo spokes.\nIt turns.\n"
	for name, tc := range map[string]struct {
		args   []string
		code   int
		stdout string
		stderr string
		starts int
	}{
		"a report":                     {[]string{"show"}, app.ExitOK, table, "", 1},
		"watched as JSON":              {[]string{"show", "--json", "--watch"}, app.ExitUsage, "", "mill: --watch and --json exclude each other\n", 0},
		"as JSON":                      {[]string{"show", "--json", "--name", "x", "--tag", "a,b", "--size", "4", "--big"}, app.ExitOK, "{\n  \"name\": \"x\",\n  \"tags\": [\n    \"a\",\n    \"b\"\n  ],\n  \"size\": 4,\n  \"big\": true\n}\n", "", 1},
		"refused before anything runs": {[]string{"show", "--size", "0"}, app.ExitUsage, "", "mill: --size must be > 0\n", 0},
		"a check that failed":          {[]string{"show", "--name", "broken"}, app.ExitBad, "A wheel.\nNAME    SIZE\nbroken  3\nNo spokes.\nIt turns.\nspoke: is missing; add one\n", "", 1},
		"what is known, and an error":  {[]string{"show", "--name", "away"}, app.ExitUnavailable, "A wheel.\nNAME  SIZE\naway  3\nNo spokes.\nIt turns.\n", "its hub\n", 1},
		"controls of a terminal":       {[]string{"show", "--name", "\x1b[2J", "--mark", "\x1b[2J"}, app.ExitOK, "A wheel\ufffd[2J.\nNAME  SIZE\n\ufffd[2J  3\nNo spokes.\nIt turns\ufffd[2J.\n", "", 1},
		"an error alone":               {[]string{"show", "--name", "lost", "--json"}, app.ExitBad, "", "mill: no such wheel\n", 1},
		"an action":                    {[]string{"turn"}, app.ExitOK, "turned\na  b\n", "It squeaks.\nwheel turn: 1 of 2 (50 %)\n", 0},
		"an audited one":               {[]string{"mend", "3", "4", "--who", "ann", "--why", "broken"}, app.ExitOK, "turned 3+4 ann broken\na  b\n", "", 0},
		"without a reason":             {[]string{"mend", "3"}, app.ExitUsage, "", "mill: --why REASON required, for the audit\n", 0},
		"its preview needs none":       {[]string{"mend", "3", "--dry-run"}, app.ExitOK, "would turn\n", "", 0},
		"a use has an id":              {[]string{"turn", "--json"}, app.ExitOK, "{\n  \"did\": \"turned\",\n  \"id\": true\n}\n", "", 0},
		"an argument that none takes":  {[]string{"turn", "3"}, app.ExitUsage, "", "", 0},
		"one argument":                 {[]string{"spin", "front/3"}, app.ExitOK, "turned front/3\na  b\n", "", 0},
		"one that may be left out":     {[]string{"oil"}, app.ExitOK, "turned\na  b\n", "", 0},
		"one that may be given":        {[]string{"oil", "3"}, app.ExitOK, "turned 3\na  b\n", "", 0},
		"more than may be given":       {[]string{"oil", "3", "4"}, app.ExitUsage, "", "accepts at most 1 argument, received 2", 0},
		"one that is not given":        {[]string{"spin"}, app.ExitUsage, "", "", 0},
		"one that is empty":            {[]string{"spin", " "}, app.ExitUsage, "", "mill: WHEEL/SPOKE is required", 0},
		"one too many":                 {[]string{"spin", "3", "4"}, app.ExitUsage, "", "", 0},
		"its preview":                  {[]string{"turn", "--dry-run", "--json"}, app.ExitOK, "{\n  \"did\": \"would turn\"\n}\n", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newToy()
			p.commands = func(h *app.Host) []*cobra.Command {
				return []*cobra.Command{h.ServiceFlags(&cobra.Command{Use: "wheel", Short: "Wheels", Example: "  mill wheel show"})}
			}
			o := options(p, append([]string{"wheel"}, tc.args...)...)
			o.Plugins = []pipeline.Plugin{operated{p}}
			r := run(t.Context(), o)
			require.Equal(t, tc.code, r.code, r.stderr)
			require.Equal(t, tc.stdout, r.stdout)
			require.Contains(t, r.stderr, tc.stderr)
			started := 0
			for _, line := range p.order.all() {
				if line == "start" {
					started++
				}
			}
			require.Equal(t, tc.starts, started, "only what the report needs")
		})
	}
	below := newToy()
	below.commands = func(h *app.Host) []*cobra.Command {
		wheel, show := h.ServiceFlags(&cobra.Command{Use: "wheel"}), &cobra.Command{Use: "show"}
		show.AddCommand(&cobra.Command{Use: "parts", Short: "Show its parts", Example: "  mill wheel show parts", Run: func(cmd *cobra.Command, _ []string) { cmd.Println("a rim") }})
		wheel.AddCommand(show)
		return []*cobra.Command{wheel}
	}
	for args, want := range map[string]string{"wheel show": table, "wheel show parts": "a rim\n"} {
		o := options(below, strings.Fields(args)...)
		o.Plugins = []pipeline.Plugin{operated{below}}
		require.Equal(t, want, run(t.Context(), o).stdout, args)
	}

	p := operated{newToy()}
	o := options(p, "wheel", "turn", "--help")
	p.commands = func(h *app.Host) []*cobra.Command {
		return []*cobra.Command{h.ServiceFlags(&cobra.Command{Use: "wheel"})}
	}
	help := run(t.Context(), o).stdout
	require.Contains(t, help, "It is irreversible: it can't be undone.")
	require.NotContains(t, help, "role", "a command checks none")
	o = options(p, "wheel", "spin", "--help")
	require.Contains(t, run(t.Context(), o).stdout, "wheel spin WHEEL/SPOKE [flags]")
	for verb, use := range map[string]string{"mend": "[SPOKE…]", "fit": "WHEEL SPOKE", "paint": "[WHEEL SPOKE]"} {
		o = options(p, "wheel", verb, "--help")
		require.Contains(t, run(t.Context(), o).stdout, "wheel "+verb+" "+use+" [flags]")
	}
}

// The report about routes is part of every binary.
func TestRoutesByCommand(t *testing.T) {
	t.Parallel()
	r := run(t.Context(), options(newToy(), "routes"))
	require.Equal(t, app.ExitOK, r.code, r.stderr)
	require.Equal(t, "ROUTE  DONE/S  FAILED/S  WAITING  IN FLIGHT  OLDEST  RETRIES  DUE IN  DEAD\nshout  -       -         -        -          -       0        -       -\n", r.stdout)
}
