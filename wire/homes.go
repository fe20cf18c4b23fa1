package wire

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/millrace-io/millrace/configs/profiles"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/embedded"
)

// Profiles are the settings profiles of the service.
func Profiles() fs.FS { return profiles.Files() }

// Homes are the servers the service can bring along. The embedded home is a laptop's: Kafka, Redis and
// the file of ledger and dead letters, all inside the process.
func Homes() map[string]app.Home {
	return map[string]app.Home{"embedded": func(ctx context.Context, dir string, log *slog.Logger) (map[string]any, func(context.Context) error, error) {
		if err := protect(dir); err != nil {
			return nil, nil, err
		}
		home, err := embedded.Start(ctx, embedded.Config{Dir: dir}, log)
		if err != nil {
			return nil, nil, err
		}
		overrides := home.Overrides()
		if dir != "" { // empty: Kafka and Redis are in memory, and files stay where the settings say
			overrides["plugins.promotion.ledger.dsn"] = "sqlite:" + filepath.Join(dir, ledgerFile)
			overrides["plugins.deadletter.store.dsn"] = "sqlite:" + filepath.Join(dir, ledgerFile)
			overrides["plugins.promotion.money_api.simulator.book"] = filepath.Join(dir, "money-api.book")
		}
		return overrides, home.Stop, nil
	}}
}

const ledgerFile = "ledger.db"

// protect keeps the files of the environment from all but their owner: those that will be made, and the ledger of an
// earlier run that did not.
func protect(dir string) error {
	embedded.Private()
	if dir == "" {
		return nil
	}
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Chmod(filepath.Join(dir, ledgerFile+suffix), 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
