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
	"github.com/millrace-io/millrace/pipeline/operate"
)

// declared is a use of places outside of routes, which every plugin that has it must declare.
type declared struct {
	use  string
	sign *regexp.Regexp // of product code
	// byRoute reports whether a route declares it for its plugin.
	byRoute func(pipeline.Route) bool
	// excepted are the plugins that do it and declare nothing, with the reason.
	excepted map[string]string
	// some are plugins that do it, so that the signs still match.
	some []string
}

func allDeclared() []declared {
	return []declared{
		{
			use: pipeline.UseWrites, some: []string{"eventrouter", "promotion", "waitingroom"},
			// What a database has is not for others to read, so statements of SQL are left out.
			sign: regexp.MustCompile(`(?i:redis\.p?call\('(?:xadd|set|hset|hsetnx|zadd|sadd|mset|hincrby|incrby?|rpush|lpush)')|` +
				`Command\("(?:XADD|SET|HSET|HSETNX|ZADD|SADD|MSET|HINCRBY|INCR|INCRBY)"|\.XAdd\(ctx|\.Publish\(ctx`),
			byRoute: func(pipeline.Route) bool { return false },
			excepted: map[string]string{
				"deadletter": "the routes declare their dead letters, and a replay goes to the source of a route",
				"once":       "the plugin that has a kind with results declares their topic",
				"reclaim":    "bookkeeping of streams that routes declare",
				"redis":      "the streams of routes with their bookkeeping, and the presence of instances",
				"streams":    "the streams of routes, with their bookkeeping",
			},
		},
		{
			use: pipeline.UseFollows, some: []string{"eventrouter", "promotion"},
			sign:    regexp.MustCompile(`(?i:redis\.p?call\('xread')|Command\("XREAD"|\.XRead\(ctx|"XREAD"|\.Follow\(|\.Broadcast\(|openBroadcast\(`),
			byRoute: func(r pipeline.Route) bool { return r.From.Describe().Group == "" },
			excepted: map[string]string{
				"kafka": "the broadcasts of routes, and a command",
				"redis": "what the plugin that calls Follow declares",
			},
		},
		{
			use: pipeline.UseCalls, some: []string{"effects", "promotion", "telemetry", "waitingroom", "web", "webhook"},
			sign: regexp.MustCompile(`httpclient\.New|http\.Client\{|oncehttp\.Post\(|signin\.NewKeys\(|otlptracehttp\.New\(`),
			byRoute: func(r pipeline.Route) bool {
				return slices.ContainsFunc(r.Calls, func(e pipeline.Endpoint) bool { return e.Kind == pipeline.KindServer })
			},
			excepted: map[string]string{
				"once": "the plugin that registers its client declares it",
			},
		},
	}
}

// withEveryUse are the settings with which each plugin uses all that it may.
var withEveryUse = []string{
	"MILLRACE__PLUGINS__PROMOTION__RESULTS__ENABLED=true", "MILLRACE__PLUGINS__WAITINGROOM__ENABLED=true",
	"MILLRACE__PLUGINS__WAITINGROOM__ADMIN_TOKENS__ANN=the-token-of-operators", "MILLRACE__PLUGINS__WAITINGROOM__EVENT_SERVICE__URL=https://events.example",
	"MILLRACE__PLUGINS__WEB__AUTH__JWKS_URL=https://login.example/keys", "MILLRACE__PLUGINS__WEB__AUTH__ISSUER=login", "MILLRACE__PLUGINS__WEB__AUTH__AUDIENCE=shop",
	"MILLRACE__PLUGINS__CONSOLE__AUTH__JWKS_URL=https://login.example/keys", "MILLRACE__PLUGINS__CONSOLE__AUTH__ISSUER=login", "MILLRACE__PLUGINS__CONSOLE__AUTH__AUDIENCE=ops",
	"MILLRACE__PLUGINS__CONSOLE__ROLES__ANN=admin", "MILLRACE__PLUGINS__WEBHOOK__ENABLED=true", "MILLRACE__PLUGINS__WEBHOOK__URL=https://hooks.example",
	"MILLRACE__PLUGINS__WEBHOOK__SECRET=of-at-least-thirty-two-characters-1",
	"MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__REPEAT=never", "MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__KEY=id", "MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__GROUP=group",
	"MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__REQUEST__PATH=/notices", "MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__ANSWERS__RECEIPT=id",
	"MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__API__URL=https://notices.example", "MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__EFFECTS__TOPIC=notices",
	"MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__EFFECTS__RESULTS=notices-settled",
	"MILLRACE__PLUGINS__TELEMETRY__OTLP_ENDPOINT=https://traces.example",
}

// withTokens are the settings of every client that fetches tokens, by the plugin that has it.
var withTokens = map[string]string{
	"console":     "MILLRACE__PLUGINS__CONSOLE__AUTH__JWKS_CLIENT__OAUTH2__",
	"effects":     "MILLRACE__PLUGINS__EFFECTS__KINDS__NOTICE__API__OAUTH2__",
	"promotion":   "MILLRACE__PLUGINS__PROMOTION__MONEY_API__OAUTH2__",
	"waitingroom": "MILLRACE__PLUGINS__WAITINGROOM__EVENT_SERVICE__OAUTH2__",
	"web":         "MILLRACE__PLUGINS__WEB__AUTH__JWKS_CLIENT__OAUTH2__",
	"webhook":     "MILLRACE__PLUGINS__WEBHOOK__OAUTH2__",
}

// A server that gives tokens is one that the plugin calls, like the API that wants them.
func TestEveryPluginDeclaresTheServerOfItsTokens(t *testing.T) {
	t.Parallel()
	schema, err := os.ReadFile("../configs/millrace.schema.json")
	require.NoError(t, err)
	require.Len(t, regexp.MustCompile(`"token_url": \{`).FindAll(schema, -1), len(withTokens), "every setting of a server of tokens is tried here")
	env := slices.Clone(withEveryUse)
	env = append(env, "MILLRACE__PLUGINS__PROMOTION__MONEY_API__SIMULATOR__ENABLED=false", "MILLRACE__PLUGINS__PROMOTION__MONEY_API__URL=https://money.example")
	for plugin, prefix := range withTokens {
		env = append(env, prefix+"TOKEN_URL=https://tokens-of-"+plugin+".example/token", prefix+"CLIENT_ID=millrace", prefix+"CLIENT_SECRET=a-secret-of-the-test")
	}
	registry := registered(t, withAllRoutes, env...)
	called := map[string]string{}
	for _, e := range registry.Endpoints() {
		if e.Use == pipeline.UseCalls {
			called[e.Name] = e.Plugin
		}
	}
	for _, r := range registry.Routes() {
		for _, e := range r.Calls {
			called[e.Name] = r.Plugin()
		}
	}
	for plugin := range withTokens {
		require.Equal(t, plugin, called["https://tokens-of-"+plugin+".example"])
	}
	require.Equal(t, "telemetry", called["https://traces.example"])

	// Doctor connects to each of them.
	examined := map[string]bool{}
	for _, e := range operate.Examinations(registry) {
		_, server, _ := strings.Cut(e.Place, " https://")
		examined["https://"+server] = true
	}
	for server, plugin := range called {
		require.Equal(t, strings.HasPrefix(server, "https://"), examined[server], "%s of %s", server, plugin)
	}
}

// Every plugin says what it writes, follows and calls outside of its routes, for the command topology and the graph.
func TestEveryPluginDeclaresWhatItUses(t *testing.T) {
	t.Parallel()
	registry := registered(t, withAllRoutes, withEveryUse...)
	for _, one := range allDeclared() {
		t.Run(one.use, func(t *testing.T) {
			t.Parallel()
			declares := map[string]bool{}
			for _, e := range registry.Endpoints() {
				declares[e.Plugin] = declares[e.Plugin] || e.Use == one.use
			}
			for _, r := range registry.Routes() {
				declares[r.Plugin()] = declares[r.Plugin()] || one.byRoute(r)
			}
			users := []string{}
			for _, dir := range pluginFolders(t) {
				name, place := filepath.Base(dir), firstPlace(t, dir, one.sign)
				reason, exception := one.excepted[name]
				if place == "" {
					require.False(t, exception, "the plugin %s %s nothing: take it off the exceptions", name, one.use)
					continue
				}
				users = append(users, name)
				require.NotEqual(t, exception, declares[name], "the plugin %s %s something, as in %s. It must name the place in its Register with "+
					"Registry.Endpoint, or be an exception with a reason, and not both: %q", name, one.use, place, reason)
			}
			require.Subset(t, users, one.some, "the signs still match")
			for name := range one.excepted {
				require.Contains(t, users, name, "there is no such plugin")
			}
		})
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

// firstPlace returns a place in product code below a folder that has a sign, or nothing. Commands, demos and what
// is for tests only run on the word of a person.
func firstPlace(t *testing.T, dir string, sign *regexp.Regexp) (place string) {
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
		if found := sign.Find(text); found != nil && place == "" {
			place = path + ": " + string(found)
		}
		return err
	}))
	return place
}
