//go:build !noembedded

package wire

import (
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// Environments are the servers that the service can start itself. "embedded" is for a laptop:
// Kafka, Redis, and the file of the ledger and the dead letters. A build with the tag noembedded
// leaves it out.
func Environments() map[string]app.Environment {
	return map[string]app.Environment{"embedded": embedded.Environment(map[string]string{
		"plugins.promotion.ledger.dsn":                  "sqlite:{dir}/ledger.db",
		"plugins.deadletter.store.dsn":                  "sqlite:{dir}/ledger.db",
		"plugins.once.ledger.dsn":                       "sqlite:{dir}/once.db",
		"plugins.promotion.money_api.simulator.journal": "{dir}/money-api.journal",
	})}
}
