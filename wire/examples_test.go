package wire_test

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/operate"
	"github.com/millrace-io/millrace/wire"
)

// helpIsWide matches a line of more than 80 columns.
var helpIsWide = regexp.MustCompile(`(?m)^.{81,}$`)

// helpOf returns the help of a command of the binary.
func helpOf(t *testing.T, path string) string {
	t.Helper()
	var out bytes.Buffer
	require.Zero(t, app.Main(t.Context(), app.Options{
		Name: "millrace", Short: "Bring events to handlers", Documentation: "example.com/docs", Plugins: wire.New().Plugins(), Profiles: wire.Profiles(), DefaultProfile: "embedded",
		Args: append(strings.Fields(path), "--help"), Environ: []string{}, Stdout: &out, Stderr: &out,
	}), out.String())
	return out.String()
}

func TestHelpFits80Columns(t *testing.T) {
	t.Parallel()
	var check func(path string, commands []*cobra.Command)
	check = func(path string, commands []*cobra.Command) {
		text := helpOf(t, path)
		require.Empty(t, helpIsWide.FindAllString(text, -1), path)
		require.Contains(t, text, "Examples:", path)
		for _, c := range commands {
			check(path+" "+c.Name(), c.Commands())
		}
	}
	commands := []*cobra.Command{{Use: "run"}, {Use: "topology"}, {Use: "validate"}, {Use: "tail"}, {Use: "new"}, {Use: "completion"}}
	for _, p := range wire.New().Plugins() {
		if commander, ok := p.(app.Commander); ok {
			commands = append(commands, commander.Commands(&app.Host{})...)
		}
	}
	check("", commands)
	operations := []operate.About{operate.Routes().About}
	for _, p := range wire.New().Plugins() {
		if operated, ok := p.(operate.Operated); ok {
			operations = append(operations, abouts(operated.Operations())...)
		}
	}
	for _, about := range operations {
		text := helpOf(t, about.Name)
		require.Empty(t, helpIsWide.FindAllString(text, -1), about.Name)
		require.Contains(t, text, "Examples:", about.Name)
	}
	require.Contains(t, helpOf(t, ""), "/docs\n", "where the documentation is")
}

// abouts returns what people read of operations.
func abouts(o operate.Operations) (all []operate.About) {
	for _, r := range o.Reports {
		all = append(all, r.About)
	}
	for _, a := range o.Actions {
		all = append(all, a.About)
	}
	return all
}

// withoutExample returns c and its subcommands whose help has no example.
func withoutExample(c *cobra.Command) (missing []string) {
	if c.Example == "" {
		missing = append(missing, c.CommandPath())
	}
	for _, sub := range c.Commands() {
		missing = append(missing, withoutExample(sub)...)
	}
	return missing
}

func TestEveryCommandOfAPluginHasAnExample(t *testing.T) {
	t.Parallel()
	bad := &cobra.Command{Use: "topics"}
	bad.AddCommand(&cobra.Command{Use: "create"})
	require.Equal(t, []string{"topics", "topics create"}, withoutExample(bad))
	for _, p := range wire.New().Plugins() {
		if commander, ok := p.(app.Commander); ok {
			for _, c := range commander.Commands(&app.Host{}) {
				require.Empty(t, withoutExample(c), "a command needs an example in its help")
			}
		}
		if operated, ok := p.(operate.Operated); ok {
			for _, about := range abouts(operated.Operations()) {
				require.NotEmpty(t, about.Examples, "the command %s needs an example in its help", about.Name)
			}
		}
	}
}
