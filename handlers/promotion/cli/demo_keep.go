package cli

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Connections are the addresses of a running process.
type Connections struct {
	KafkaBrokers, RedisAddrs []string
}

// showAddresses shows the addresses of a demo that keeps running, and commands to try.
func (c commands) showAddresses(show demoOutput, r DemoReport) error {
	connections, flags, program := c.Connections(), "", c.h.Name()
	for _, name := range []string{"profile", "config"} {
		if value, _ := show.cmd.Flags().GetString(name); value != "" {
			flags += " --" + name + " " + value
		}
	}
	if flags == "" {
		flags = " --profile " + show.running.Document.Profile()
	}
	w := app.Table(c.h.Err())
	fmt.Fprintf(w, "\nStill running; Ctrl-C ends it.\n\n")
	fmt.Fprintf(w, "  Kafka\t%s\n  Redis\t%s\n  Money API\t%s\n", strings.Join(connections.KafkaBrokers, ","),
		strings.Join(connections.RedisAddrs, ","), c.Resources.MoneyURL())
	for _, p := range show.running.Plugins {
		if a, ok := p.(app.Announcer); ok {
			addresses := a.Announce()
			for _, name := range slices.Sorted(maps.Keys(addresses)) {
				fmt.Fprintf(w, "  %s\t%s\n", name, addresses[name])
			}
		}
	}
	if show.running.Settings.Environment != "external" {
		fmt.Fprintf(w, "  data folder\t%s (kept)\n", show.running.Settings.DataDir)
		if show.flags.data != "" {
			program = c.h.Variable("data_dir") + "=" + show.running.Settings.DataDir + " " + program
		}
	}
	first := fmt.Sprintf("%s:%d", promotiontype.Names()[0], r.Promotion)
	fmt.Fprintf(w, "\nTry in another terminal:\n")
	for _, command := range []string{"campaign list", "campaign explain " + first + ":1", "campaign reconcile " + first} {
		fmt.Fprintf(w, "  %s %s%s\n", program, command, flags)
	}
	return w.Flush()
}
