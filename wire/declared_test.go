package wire_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
)

// undeclared are the plugins that write for others to read and declare nothing, with the reason.
func undeclared() map[string]string {
	return map[string]string{
		"deadletter": "the routes declare their dead letters, and a replay goes to the source of a route",
		"reclaim":    "bookkeeping of streams that routes declare",
		"redis":      "the streams of routes with their bookkeeping, and the presence of instances",
		"streams":    "the streams of routes, with their bookkeeping",
	}
}

// write matches product code that writes a key or a stream of Redis, or publishes. What a database has is not
// for others to read, so statements of SQL are left out.
var write = regexp.MustCompile(`(?i:redis\.p?call\('(?:xadd|set|hset|hsetnx|zadd|sadd|mset|hincrby|incrby?|rpush|lpush)')|` +
	`Command\("(?:XADD|SET|HSET|HSETNX|ZADD|SADD|MSET|HINCRBY|INCR|INCRBY)"|\.XAdd\(ctx|\.Publish\(ctx`)

// Every plugin that writes outside of its routes says what, for the command topology and the graph.
func TestEveryPluginDeclaresWhatItWrites(t *testing.T) {
	t.Parallel()
	declares := map[string]bool{}
	for _, e := range registered(t, withAllRoutes, "MILLRACE__PLUGINS__PROMOTION__RESULTS__ENABLED=true", "MILLRACE__PLUGINS__WAITINGROOM__ENABLED=true",
		"MILLRACE__PLUGINS__WAITINGROOM__ADMIN_TOKENS__ANN=the-token-of-operators", "MILLRACE__PLUGINS__WAITINGROOM__EVENT_SERVICE__URL=https://events.example",
		"MILLRACE__PLUGINS__WEB__AUTH__HEADER=X-User", "MILLRACE__PLUGINS__WEB__TRUSTED_PROXIES=127.0.0.1").Endpoints() {
		declares[e.Plugin] = declares[e.Plugin] || e.Use == pipeline.UseWrites
	}
	excepted, writers := undeclared(), []string{}
	for _, dir := range pluginFolders(t) {
		name, place := filepath.Base(dir), firstWrite(t, dir)
		reason, exception := excepted[name]
		if place == "" {
			require.False(t, exception, "the plugin %s writes nothing: take it off undeclared", name)
			continue
		}
		writers = append(writers, name)
		require.NotEqual(t, exception, declares[name], "the plugin %s writes, as in %s. It must name the place in its Register with Registry.Endpoint(pipeline.UseWrites, …), "+
			"or be in undeclared with a reason, and not both: %q", name, place, reason)
	}
	require.Subset(t, writers, []string{"eventrouter", "promotion", "waitingroom"}, "the signs of a write still match")
	for name := range excepted {
		require.Contains(t, writers, name, "there is no such plugin")
	}
}

// pluginFolders returns the folders of the plugins, which have their names.
func pluginFolders(t *testing.T) (list []string) {
	t.Helper()
	for _, parent := range []string{"../plugins", "../handlers"} {
		entries, err := os.ReadDir(parent)
		require.NoError(t, err)
		for _, e := range entries {
			if e.IsDir() {
				list = append(list, filepath.Join(parent, e.Name()))
			}
		}
	}
	return list
}

// firstWrite returns a place in product code below a folder that writes, or nothing. Commands, demos and what
// is for tests only run on the word of a person.
func firstWrite(t *testing.T, dir string) (place string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if e.IsDir() {
			if slices.Contains([]string{"cli", "demo", "testdata"}, e.Name()) || strings.HasSuffix(e.Name(), "test") {
				return fs.SkipDir
			}
			return nil
		}
		if ext := filepath.Ext(path); ext != ".lua" && (ext != ".go" || strings.HasSuffix(path, "_test.go")) {
			return nil
		}
		text, err := os.ReadFile(path)
		if found := write.Find(text); found != nil && place == "" {
			place = path + ": " + string(found)
		}
		return err
	}))
	return place
}
