package embedded

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/token"
)

// Environment returns the environment of a binary, for app.Options.Environments: Kafka, Redis, and
// the settings in files. files has the path of a setting and its value, in which {dir} is the data
// folder, such as sqlite:{dir}/orders.db. Dead letters are stored if plugins.deadletter.store.dsn is
// one of them. The key of plugins/token is in token.pem. Without a data folder the files stay where
// the settings say.
//
// A binary may lack the plugins kafka, redis, deadletter and token.
func Environment(files map[string]string) app.Environment {
	return func(ctx context.Context, dir string, log *slog.Logger) (map[string]any, func(context.Context) error, error) {
		Private()
		if dir != "" {
			var err error
			if dir, err = filepath.Abs(dir); err != nil { // a command may run in another folder
				return nil, nil, err
			}
		}
		servers, err := Start(ctx, Config{Dir: dir}, log)
		if err != nil {
			return nil, nil, err
		}
		overrides := servers.Overrides()
		for setting, value := range files {
			if dir == "" {
				break
			}
			value = strings.ReplaceAll(value, "{dir}", dir)
			if err := protect(strings.TrimPrefix(value, "sqlite:")); err != nil {
				return nil, nil, errors.Join(err, servers.Stop(ctx))
			}
			overrides[setting] = value
		}
		if dir != "" {
			file := filepath.Join(dir, "token.pem")
			if err := token.CreateKey(file); err != nil {
				return nil, nil, errors.Join(err, servers.Stop(ctx))
			}
			overrides["plugins.token.keys"] = []map[string]string{{"kid": "embedded", "file": file}}
		}
		return overrides, servers.Stop, nil
	}
}

// protect gives a file of an earlier version, and the files that SQLite has next to it, to their
// owner only.
func protect(file string) error {
	for _, suffix := range []string{"", "-wal", "-shm"} {
		if err := os.Chmod(file+suffix, 0o600); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
