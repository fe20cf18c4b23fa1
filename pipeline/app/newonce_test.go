package app_test

import (
	"bytes"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

func TestNewOncePassesItsOwnTest(t *testing.T) {
	t.Parallel()
	dir := foreignModule(t)
	for _, args := range []string{"invoice --repeat key --key-ttl 23h", "parcel-label --repeat lookup --under-way 90s", "mail --repeat never", "log-line --repeat always"} {
		r := run(t.Context(), options(newToy(), append([]string{"new", "once", "--dir", dir}, strings.Fields(args)...)...))
		require.Zero(t, r.code, r.stderr)
		if strings.HasPrefix(args, "invoice") {
			golden(t, "newonce.txt", strings.ReplaceAll(r.stdout, dir, "shop"))
		} else {
			require.Contains(t, r.stdout, ".New(ledger)\n")
		}
		if strings.HasPrefix(args, "parcel-label") {
			golden(t, "newonce_second.txt", strings.ReplaceAll(r.stdout, dir, "shop"))
		}
	}
	invoice := filepath.Join(dir, "handlers", "invoice", "invoice.go")
	text, err := os.ReadFile(invoice)
	require.NoError(t, err)
	require.Contains(t, string(text), "p.config.Effects.KeyTTL = 23 * time.Hour")
	label, err := os.ReadFile(filepath.Join(dir, "handlers", "parcel-label", "parcellabel.go"))
	require.NoError(t, err)
	require.Contains(t, string(label), "p.config.Effects.UnderWay = 90 * time.Second")
	require.LessOrEqual(t, bytes.Count(text, []byte("\n")), 100, "a first effect fits on two screens")

	if testing.Short() {
		t.Skip("compiles a module")
	}
	tier.Rest(t)
	out, err := goTool(t, dir, "test", "./handlers/...")
	require.NoError(t, err, out)
	for _, name := range []string{"invoice", "parcel-label", "mail", "log-line"} {
		require.Contains(t, out, "ok  \texample.com/shop/handlers/"+name)
	}
	out, err = goTool(t, dir, "vet", "./...")
	require.NoError(t, err, out)
	out, err = goTool(t, dir, "run", "./cmd/shop", "topology")
	require.NoError(t, err, out)
	require.Contains(t, out, "invoice.accept\n  from         kafka invoice\n    group      millrace-invoice")

	require.Equal(t, []string{
		"plugins.deadletter.store.dsn", "plugins.invoice.api.token", "plugins.kafka.sasl.password", "plugins.once.ledger.dsn",
	}, missingInProduction(t, dir))

	slow := filepath.Join(dir, "slow.yaml")
	require.NoError(t, os.WriteFile(slow, []byte("environment: embedded\nplugins:\n  invoice:\n    enabled: true\n    api: {url: 'http://localhost:1'}\n    effects: {call_timeout: 30s}\n"), 0o600))
	out, err = goTool(t, dir, "run", "./cmd/shop", "validate", "--config", slow)
	require.Error(t, err)
	require.Contains(t, out, "plugins.invoice.api.call_timeout: must be >= effects.call_timeout (30s), because it ends the same call, got 3s")

	// The test it comes with must be able to fail.
	broken := bytes.Replace(text, []byte(`Receipt: []string{"id"}`), []byte(`Receipt: []string{"number"}`), 1)
	require.NotEqual(t, text, broken)
	require.NoError(t, os.WriteFile(invoice, broken, 0o600))
	out, err = goTool(t, dir, "test", "-run", "TestAnAnswerThatIsLost", "./handlers/invoice")
	require.Error(t, err)
	require.Contains(t, out, "--- FAIL: TestAnAnswerThatIsLost")
}

// The facts about the API have no default, so off a terminal they must be given.
func TestNewOnceAsksForFacts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/shop\n"), 0o600))
	for args, want := range map[string]string{
		"invoice":                                   "--repeat must be given, because it is a fact about the API",
		"invoice --repeat twice":                    `--repeat must be key, lookup, never or always, got "twice"`,
		"invoice --repeat key":                      "--key-ttl must be given",
		"invoice --repeat lookup":                   "--under-way must be given",
		"invoice --repeat key --key-ttl -1h":        "--key-ttl must be > 0, got -1h0m0s",
		"in_voice --repeat never":                   "NAME must be up to 31 lower-case letters and digits",
		"ledger --repeat never":                     `NAME can't be "ledger"`,
		strings.Repeat("x", 32) + " --repeat never": "NAME must be up to 31",
	} {
		r := run(t.Context(), options(newToy(), append([]string{"new", "once", "--dir", dir}, strings.Fields(args)...)...))
		require.Equal(t, app.ExitUsage, r.code, args)
		require.Contains(t, r.stderr, want, args)
		require.NoDirExists(t, filepath.Join(dir, "handlers"), args)
	}
}

// In a module that does not know the framework yet, `go mod tidy` would look for a release. The command names the
// copy that it was compiled from.
func TestNewNamesTheCopyOfTheFramework(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/shop\n"), 0o600))
	top, err := filepath.Abs("../..")
	require.NoError(t, err)
	r := run(t.Context(), options(newToy(), "new", "once", "invoice", "--repeat", "never", "--dir", dir))
	require.Zero(t, r.code, r.stderr)
	copied := top
	if _, file, _, _ := runtime.Caller(0); !filepath.IsAbs(file) {
		copied = "../millrace  # where your copy of it is" // compiled with -trimpath
	}
	require.Contains(t, r.stdout, "\n\tgo mod edit -replace github.com/millrace-io/millrace="+copied+"\n\tgo mod tidy\n")

	main, err := os.ReadFile(filepath.Join(dir, "cmd", "shop", "main.go"))
	require.NoError(t, err)
	for _, plugin := range []string{"effects.New(ledger, server)", "web.New(tokens, streams)", "console.New()", "invoice.New(ledger)"} {
		require.Contains(t, string(main), plugin)
	}
}

// A binary that `new handler` has written has no ledger. The printed lines are the whole change: with them it has
// the kind of effects, and without the ledger among its plugins it does not start.
func TestNewOnceAddsToABinaryOfNewHandler(t *testing.T) {
	t.Parallel()
	dir := foreignModule(t)
	require.Zero(t, run(t.Context(), options(newToy(), "new", "handler", "greetings", "--dir", dir)).code)
	r := run(t.Context(), options(newToy(), "new", "once", "invoice", "--repeat", "key", "--key-ttl", "23h", "--dir", dir))
	require.Zero(t, r.code, r.stderr)
	golden(t, "newonce_added.txt", strings.ReplaceAll(r.stdout, dir, "shop"))
	readme, err := os.ReadFile(filepath.Join(dir, "handlers", "invoice", "README.md"))
	require.NoError(t, err)
	require.Contains(t, string(readme), "`shop once problems` lists")
	require.NotContains(t, string(readme), "`millrace ")

	if testing.Short() {
		t.Skip("compiles a module")
	}
	tier.Rest(t)
	printed := func(after, until string) string {
		t.Helper()
		_, text, found := strings.Cut(r.stdout, after)
		require.True(t, found, after)
		text, _, found = strings.Cut(text, until)
		require.True(t, found, until)
		return text
	}
	folder := filepath.Join(dir, "cmd", "shop")
	change := func(name string, pairs ...string) {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(folder, name))
		require.NoError(t, err)
		for i := 0; i < len(pairs); i += 2 {
			require.Contains(t, string(text), pairs[i])
			text = bytes.Replace(text, []byte(pairs[i]), []byte(pairs[i+1]), 1)
		}
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), text, 0o600))
	}
	imports := "\timport " + printed("\timport ", "\tledger :=")
	change("main.go",
		"import (\n", strings.ReplaceAll(imports, "\t", "")+"\nimport (\n",
		"\tos.Exit(", "\tledger :="+printed("\tledger :=", "\n")+"\n\tos.Exit(",
		"(topics, dead)}", "(topics, dead), "+printed("Plugins: …, ", "\n")+"}",
		"deadletters.db\",\n", "deadletters.db\",\n"+printed("embedded.Environment: …, ", "\n")+",\n")
	change("embedded.yaml", "plugins:\n", strings.ReplaceAll(printed("have:\n\n", "\n\nNext"), "\t", "")+"\n")
	out, err := goTool(t, dir, "run", "./cmd/shop", "validate", "--profile", "embedded")
	require.NoError(t, err, out)
	out, err = goTool(t, dir, "run", "./cmd/shop", "topology")
	require.NoError(t, err, out)
	require.Contains(t, out, "invoice.accept\n")

	change("main.go", ", ledger, invoice", ", invoice")
	out, err = goTool(t, dir, "run", "./cmd/shop", "validate", "--profile", "embedded")
	require.Error(t, err)
	require.Contains(t, out, "plugin invoice needs once, which this binary does not have: add it to app.Options.Plugins")
}
