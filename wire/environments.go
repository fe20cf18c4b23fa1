package wire

import (
	"io/fs"

	"github.com/millrace-io/millrace/configs/profiles"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// Profiles are the settings profiles of the service.
func Profiles() fs.FS { return profiles.Files() }

// Environments are the servers that the service can start itself. "embedded" is for a laptop:
// Kafka, Redis, and the file of the ledger and the dead letters.
func Environments() map[string]app.Environment {
	return map[string]app.Environment{"embedded": embedded.Environment(map[string]string{
		"plugins.promotion.ledger.dsn":                  "sqlite:{dir}/ledger.db",
		"plugins.deadletter.store.dsn":                  "sqlite:{dir}/ledger.db",
		"plugins.promotion.money_api.simulator.journal": "{dir}/money-api.journal",
	})}
}
