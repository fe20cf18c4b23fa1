package app

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"
)

func TestEveryCommandHasAnExampleAndAGroup(t *testing.T) {
	t.Parallel()
	root := (&Host{opts: Options{Name: "mill"}}).root()
	for _, c := range root.Commands() {
		require.NotEmpty(t, c.GroupID, c.CommandPath())
	}
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			check(sub)
		}
		if !c.HasSubCommands() && c.Name() != "help" && c.Parent().Name() != "completion" {
			require.Contains(t, c.Example, "  mill "+c.Name(), c.CommandPath())
		}
	}
	for _, c := range root.Commands() {
		if c.Name() == "new" {
			require.Contains(t, c.Commands()[0].Example, "mill new handler")
			continue
		}
		check(c)
	}
}

func TestVersionFlag(t *testing.T) {
	t.Parallel()
	for _, flag := range []string{"--version", "-v"} {
		var out, errs bytes.Buffer
		require.Zero(t, Main(t.Context(), Options{Name: "mill", Version: "1.2", Args: []string{flag}, Environ: []string{}, Stdout: &out, Stderr: &errs}))
		require.Contains(t, out.String(), "mill 1.2")
		require.Empty(t, errs.String())
	}
}

func TestArgumentErrorsCountInWords(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"new", "handler"}, {"new", "handler", "a", "b"}} {
		var out, errs bytes.Buffer
		require.Equal(t, ExitUsage, Main(t.Context(), Options{Name: "mill", Args: args, Environ: []string{}, Stdout: &out, Stderr: &errs}))
		require.Contains(t, errs.String(), "accepts 1 argument, received")
	}
}

// A suggestion is the command that a person meant: transposed letters are one mistake.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{"tial": `; did you mean "tail"?`, "rnu": `; did you mean "run"?`, "topolgy": `; did you mean "topology"?`, "zzz": ""} {
		var out, errs bytes.Buffer
		require.Equal(t, ExitUsage, Main(t.Context(), Options{Name: "mill", Args: []string{word}, Environ: []string{}, Stdout: &out, Stderr: &errs}))
		require.Equal(t, `mill: unknown command "`+word+`"`+want+"\nRun 'mill --help' for usage.\n", errs.String())
	}
	require.Equal(t, "send", Nearest("sned", []string{"new", "send"}))
}
