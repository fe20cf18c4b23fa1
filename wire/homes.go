package wire

import (
	"context"
	"log/slog"
	"path/filepath"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// Homes are the servers the service can bring along. The embedded home is a laptop's: Kafka, Redis and
// the file of ledger and dead letters, all inside the process.
func Homes() map[string]app.Home {
	return map[string]app.Home{"embedded": func(ctx context.Context, dir string, log *slog.Logger) (map[string]any, func(context.Context) error, error) {
		home, err := embedded.Start(ctx, embedded.Config{Dir: dir}, log)
		if err != nil {
			return nil, nil, err
		}
		overrides := home.Overrides()
		if dir != "" { // empty: Kafka and Redis are in memory, and files stay where the settings say
			overrides["plugins.promotion.ledger.dsn"] = "sqlite:" + filepath.Join(dir, "ledger.db")
			overrides["plugins.deadletter.store.dsn"] = "sqlite:" + filepath.Join(dir, "ledger.db")
			overrides["plugins.promotion.money_api.simulator.book"] = filepath.Join(dir, "money-api.book")
		}
		return overrides, home.Stop, nil
	}}
}
