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
	return app.Environment{Settings: func(dir string) map[string]any {
		return withFiles(offline(), absolute(dir), files)
	}, Start: func(ctx context.Context, dir string, log *slog.Logger) (map[string]any, func(context.Context) error, error) {
		Private()
		dir = absolute(dir)
		servers, err := Start(ctx, Config{Dir: dir}, log)
		if err != nil {
			return nil, nil, err
		}
		if dir != "" {
			if err := createFiles(dir, files); err != nil {
				return nil, nil, errors.Join(err, servers.Stop(ctx))
			}
		}
		return withFiles(servers.Overrides(), dir, files), servers.Stop, nil
	}}
}

// absolute returns dir for a command that runs in another folder. Empty: in memory.
func absolute(dir string) string {
	if dir == "" {
		return ""
	}
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// offline are the Overrides of servers that have not started. Their ports are chosen at the start.
func offline() map[string]any {
	return (&Servers{kafkaAddrs: []string{"127.0.0.1:9092"}, redisAddr: "127.0.0.1:6379"}).Overrides()
}

// withFiles adds the settings of the files in the data folder.
func withFiles(overrides map[string]any, dir string, files map[string]string) map[string]any {
	if dir == "" {
		return overrides
	}
	for setting, value := range files {
		overrides[setting] = strings.ReplaceAll(value, "{dir}", dir)
	}
	keys, file := []map[string]string{}, filepath.Join(dir, tokenKey)
	if _, err := os.Stat(file); err == nil { // a check of the settings reads it, and the start creates it
		keys = append(keys, map[string]string{"kid": "embedded", "file": file})
	}
	overrides["plugins.token.keys"] = keys
	return overrides
}

const tokenKey = "token.pem"

// createFiles creates the key, and gives all files to their owner only.
func createFiles(dir string, files map[string]string) error {
	for _, value := range files {
		if err := protect(strings.TrimPrefix(strings.ReplaceAll(value, "{dir}", dir), "sqlite:")); err != nil {
			return err
		}
	}
	return token.CreateKey(filepath.Join(dir, tokenKey))
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
