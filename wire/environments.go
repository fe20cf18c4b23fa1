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

// Environments are the servers that the service can start itself. "embedded" is for a laptop:
// Kafka, Redis and the file of the ledger and the dead letters, all inside the process.
func Environments() map[string]app.Environment {
	return map[string]app.Environment{"embedded": func(ctx context.Context, dir string, log *slog.Logger) (map[string]any, func(context.Context) error, error) {
		if err := protect(dir); err != nil {
			return nil, nil, err
		}
		servers, err := embedded.Start(ctx, embedded.Config{Dir: dir}, log)
		if err != nil {
			return nil, nil, err
		}
		overrides := servers.Overrides()
		if dir != "" { // empty: Kafka and Redis are in memory, and files stay where the settings say
			overrides["plugins.promotion.ledger.dsn"] = "sqlite:" + filepath.Join(dir, ledgerFile)
			overrides["plugins.deadletter.store.dsn"] = "sqlite:" + filepath.Join(dir, ledgerFile)
			overrides["plugins.promotion.money_api.simulator.journal"] = filepath.Join(dir, "money-api.book")
		}
		return overrides, servers.Stop, nil
	}}
}

const ledgerFile = "ledger.db"

// protect makes the files of the environment readable by their owner only: new files, and the
// ledger of an earlier version.
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
