package cli

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace-io/millrace/handlers/promotion/promotiontype"
	"github.com/millrace-io/millrace/pipeline/app"
)

// Connections are the addresses of a running process.
type Connections struct {
	KafkaBrokers, RedisAddrs []string
	LedgerDSN, DeadLetterDSN string
}

// settingsFile is the file in the data folder that leads commands to a running demo.
const settingsFile = "commands.yaml"

// settings are the settings of a command that reaches the connections.
func (c Connections) settings(moneyURL string) map[string]any {
	return map[string]any{"plugins": map[string]any{
		"kafka":      map[string]any{"brokers": c.KafkaBrokers},
		"redis":      map[string]any{"addrs": c.RedisAddrs},
		"deadletter": map[string]any{"store": map[string]any{"dsn": absolute(c.DeadLetterDSN)}},
		"promotion": map[string]any{
			"ledger":    map[string]any{"dsn": absolute(c.LedgerDSN)},
			"money_api": map[string]any{"url": moneyURL},
		},
	}}
}

// absolute makes the path of a SQLite DSN independent of the current folder.
func absolute(dsn string) string {
	if path, found := strings.CutPrefix(dsn, "sqlite:"); found {
		if full, err := filepath.Abs(path); err == nil {
			return "sqlite:" + full
		}
	}
	return dsn
}

// showAddresses shows the addresses of a demo that keeps running, and commands to try. For servers
// inside the process it writes a settings file that leads commands to them.
func (c commands) showAddresses(show demoOutput, r DemoReport) error {
	connections, flags := c.Connections(), ""
	for _, name := range []string{"profile", "config"} {
		if value, _ := show.cmd.Flags().GetString(name); value != "" {
			flags += " --" + name + " " + value
		}
	}
	dir, err := filepath.Abs(show.dir)
	if err != nil {
		return err
	}
	embedded := show.running.Settings.Environment != "external"
	if embedded {
		text, err := json.MarshalIndent(connections.settings(c.Resources.MoneyURL()), "", "  ") // JSON is YAML
		if err != nil {
			return err
		}
		path := filepath.Join(dir, settingsFile)
		if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		flags = " --config " + path
	}
	w := table(c.h.Err())
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
	if embedded {
		kept := "kept"
		if show.flags.data == "" {
			kept = "removed at the end; --data FOLDER keeps it"
		}
		fmt.Fprintf(w, "  data folder\t%s (%s)\n", dir, kept)
	}
	first := fmt.Sprintf("%s:%d", promotiontype.Names()[0], r.Promotion)
	fmt.Fprintf(w, "\nTry in another terminal:\n  %s campaign list%s\n  %s campaign explain %s:1%s\n  %s campaign reconcile %s%s\n",
		c.h.Name(), flags, c.h.Name(), first, flags, c.h.Name(), first, flags)
	return w.Flush()
}
