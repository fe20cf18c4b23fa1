package wire_test

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/wire"
)

// withoutExample returns c and its subcommands whose help has no example.
func withoutExample(c *cobra.Command) (missing []string) {
	if !c.HasSubCommands() && c.Example == "" {
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
	require.Equal(t, []string{"topics create"}, withoutExample(bad))
	for _, p := range wire.New().Plugins {
		if commander, ok := p.(app.Commander); ok {
			for _, c := range commander.Commands(&app.Host{}) {
				require.Empty(t, withoutExample(c), "a command needs an example in its help")
			}
		}
	}
}
