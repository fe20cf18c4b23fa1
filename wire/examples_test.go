package wire_test

import (
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/wire"
)

// withoutExample are the commands whose help has no example yet. The list only shrinks.
var withoutExample = []string{
	"deadletter discard", "deadletter list", "deadletter prune", "deadletter replay", "deadletter show",
}

func TestEveryCommandOfAPluginHasAnExample(t *testing.T) {
	t.Parallel()
	var missing []string
	var check func(c *cobra.Command)
	check = func(c *cobra.Command) {
		if !c.HasSubCommands() && c.Example == "" {
			missing = append(missing, c.CommandPath())
		}
		for _, sub := range c.Commands() {
			check(sub)
		}
	}
	for _, p := range wire.New().Plugins {
		if commander, ok := p.(app.Commander); ok {
			for _, c := range commander.Commands(&app.Host{}) {
				check(c)
			}
		}
	}
	for _, command := range missing {
		require.Contains(t, withoutExample, command, "a command needs an example in its help")
	}
}
