package e2e

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/module"
	"golang.org/x/mod/zip"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// What a module of somebody else may cost that imports the framework, both transports and dead
// letters: the modules of `go list -m all` and the lines of its go.mod.
const (
	maxModules = 160
	maxLines   = 60
)

const emptyMain = `package main

import (
	"context"
	"os"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/plugins/deadletter"
	"github.com/millrace-io/millrace/plugins/kafka"
	"github.com/millrace-io/millrace/plugins/redis"
)

func main() {
	k, r := kafka.New(), redis.New()
	os.Exit(app.Main(context.Background(), app.Options{Name: "empty", Plugins: []pipeline.Plugin{r, k, deadletter.New(k, r)}}))
}
`

// The checkout is served as v0.1.0 from a folder. An empty module gets it like any other, and the
// command that it installs writes a handler into another one.
func TestGoGet(t *testing.T) {
	tier.Rest(t, tier.Pipeline, tier.Kafka, tier.Redis, tier.DeadLetter, tier.CLI)
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	var environ []string
	in := func(dir, name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(ctx, name, args...)
		var said strings.Builder
		cmd.Dir, cmd.Stderr, cmd.Env = dir, &said, append(os.Environ(), environ...)
		out, err := cmd.Output()
		require.NoError(t, err, "%s %v: %s%s", name, args, out, &said)
		return strings.TrimSpace(string(out))
	}
	env := strings.Split(in("..", "go", "env", "GOROOT", "GOMODCACHE", "GOPROXY"), "\n")
	root, cache, remote := env[0], env[1], env[2]
	millrace := module.Version{Path: "github.com/millrace-io/millrace", Version: "v0.1.0"}
	proxy := serve(t, millrace, strings.Split(in("..", "git", "ls-files", "--cached", "--others", "--exclude-standard"), "\n"))

	// A module cache of its own, because v0.1.0 is another one each time. The other modules are in the
	// cache of the checkout, nearly always.
	own := t.TempDir()
	environ = []string{
		"GOTOOLCHAIN=local", "GOWORK=off", "GOFLAGS=-modcacherw -trimpath", "GOSUMDB=off", "GOMODCACHE=" + own,
		"GOPROXY=file://" + proxy + ",file://" + filepath.Join(cache, "cache", "download") + "," + remote,
	}
	tool, dir := filepath.Join(root, "bin", "go"), t.TempDir()
	in(dir, tool, "mod", "init", "example.com/empty")
	in(dir, tool, "get", millrace.String())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte(emptyMain), 0o600))
	in(dir, tool, "mod", "tidy")
	require.Contains(t, in(dir, tool, "run", ".", "validate"), "The settings are valid")

	// What the README says about a module of one's own.
	bin := t.TempDir()
	environ = append(environ, "GOBIN="+bin)
	in(dir, tool, "install", millrace.Path+"/cmd/millrace@latest")
	shop := t.TempDir()
	in(shop, tool, "mod", "init", "example.com/shop")
	in(shop, filepath.Join(bin, "millrace"), "new", "handler", "greetings")
	in(shop, tool, "mod", "tidy")
	in(shop, tool, "test", "./handlers/greetings")
	require.Contains(t, in(shop, tool, "run", "./cmd/shop", "validate", "--profile", "embedded"), "The settings are valid")

	modules := strings.Split(in(dir, tool, "list", "-m", "all"), "\n")
	file, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	require.NoError(t, err)
	lines := strings.Count(string(file), "\n")
	t.Logf("%d modules, %d lines of go.mod", len(modules), lines)
	require.LessOrEqual(t, len(modules), maxModules, "%s", modules)
	require.LessOrEqual(t, lines, maxLines, "%s", file)
}

// serve makes a module proxy in a folder, which has the files of the checkout as one version.
func serve(t *testing.T, version module.Version, names []string) (folder string) {
	t.Helper()
	folder = t.TempDir()
	at := filepath.Join(folder, version.Path, "@v")
	require.NoError(t, os.MkdirAll(at, 0o750))
	put := func(name, text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(filepath.Join(at, name), []byte(text), 0o600))
	}
	put("list", version.Version+"\n")
	put(version.Version+".info", `{"Version":"`+version.Version+`","Time":"2026-01-01T00:00:00Z"}`)
	text, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	put(version.Version+".mod", string(text))

	var files []zip.File // those of nested modules are left out
	for _, name := range names {
		if _, err := os.Lstat(filepath.Join("..", name)); err == nil { // one may have been removed
			files = append(files, checkedOut(name))
		}
	}
	archive, err := os.Create(filepath.Join(at, version.Version+".zip"))
	require.NoError(t, err)
	require.NoError(t, zip.Create(archive, version, files))
	require.NoError(t, archive.Close())
	return folder
}

// checkedOut is a file of the checkout.
type checkedOut string

func (f checkedOut) Path() string                 { return string(f) }
func (f checkedOut) Lstat() (os.FileInfo, error)  { return os.Lstat(filepath.Join("..", string(f))) }
func (f checkedOut) Open() (io.ReadCloser, error) { return os.Open(filepath.Join("..", string(f))) }
