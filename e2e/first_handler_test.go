package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/app"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

var (
	block = regexp.MustCompile("(?ms)^```(\\w+)\n(.*?)^```$")
	// startsService is the command that starts the binary.
	startsService = regexp.MustCompile(`^bin/(millrace|shop) run `)
	// listed is the id of the first dead letter of a list.
	listed = regexp.MustCompile(`(?m)^([0-9a-f]{16}) +open `)
)

// pageID is the id of the dead letter on the page.
const pageID = "15183961ad668aab"

// The page of the first handler runs from top to bottom, in a copy of the repository.
func TestTheFirstHandlerPage(t *testing.T) {
	tier.Rest(t, tier.CLI, tier.Pipeline)
	write := func(t *testing.T, dir, _, text string) {
		file := filepath.Join(dir, "handlers/greetings/handler.go")
		generated, err := os.ReadFile(file)
		require.NoError(t, err)
		_, rest, found := strings.Cut(string(generated), "// Plugin")
		require.True(t, found, "the page names a line of the generated file")
		require.NoError(t, os.WriteFile(file, []byte(text+"\n// Plugin"+rest), 0o600))
	}
	const texts = 7
	repository := copyOfTheRepository(t)
	before, own, after := ownModuleIn(t, pageOf(t, "first-handler.md"), "\n### ")
	readme, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	require.Contains(t, string(readme), block.FindString(own), "the README has the same commands")

	t.Run("in this repository", func(t *testing.T) { runPage(t, before+after, repository, texts, write) })
	t.Run("in a module of its own", func(t *testing.T) { runInOwnModule(t, own, after, repository, texts, write) })
}

// The page of the first effect does, too. In a module of one's own it has other commands at its beginning and
// another binary afterwards, and shows the same.
func TestTheFirstEffectPage(t *testing.T) {
	tier.Rest(t, tier.CLI, tier.Promotion)
	page, repository := pageOf(t, "first-effect.md"), copyOfTheRepository(t)
	write := func(t *testing.T, dir, kind, text string) {
		require.Equal(t, "yaml", kind)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "invoice.yaml"), []byte(text), 0o600))
	}
	const texts = 14
	before, own, after := ownModuleIn(t, page, "\n## ")

	t.Run("in this repository", func(t *testing.T) { runPage(t, before+after, repository, texts, write) })
	t.Run("in a module of its own", func(t *testing.T) { runInOwnModule(t, own, after, repository, texts, write) })
}

// ownModuleIn returns the part of a page about a module of one's own, which ends with the next heading, and what is
// before and after it.
func ownModuleIn(t *testing.T, page, heading string) (before, own, after string) {
	t.Helper()
	before, rest, found := strings.Cut(page, "\n### In a module of your own\n")
	require.True(t, found)
	own, after, found = strings.Cut(rest, heading)
	require.True(t, found)
	return before, own, heading + after
}

// runInOwnModule runs a page in a new module on the repository.
func runInOwnModule(t *testing.T, own, after, repository string, texts int, write func(t *testing.T, dir, kind, text string)) {
	t.Helper()
	own = strings.ReplaceAll(own, "../millrace", repository)
	after = strings.NewReplacer("./cmd/millrace", "./cmd/shop", "bin/millrace", "bin/shop").Replace(after)
	runPage(t, own+after, t.TempDir(), texts, write)
}

func pageOf(t *testing.T, name string) string {
	t.Helper()
	if testing.Short() {
		t.Skip("compiles a copy of the repository")
	}
	page, err := os.ReadFile(filepath.Join("../docs", name))
	require.NoError(t, err)
	return string(page)
}

// runPage runs the commands of a page in the folder dir, and the last one before a text block until it prints
// the text, of which the page has texts. write gets the blocks of other kinds. A command that runs the binary
// of a server stays until the end.
func runPage(t *testing.T, page, dir string, texts int, write func(t *testing.T, dir, kind, text string)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	id := pageID
	command := func(line string) *exec.Cmd {
		cmd := exec.CommandContext(ctx, "bash", "-c", "exec "+strings.ReplaceAll(line, pageID, id))
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOFLAGS=-buildvcs=false -trimpath",
			"MILLRACE__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0", "SHOP__PLUGINS__TELEMETRY__LISTEN=127.0.0.1:0")
		return cmd
	}
	var run *exec.Cmd
	var ended chan struct{}
	var log pipelinetest.Buffer
	var last, printed string
	var lastErr error
	compared := 0
	for _, b := range block.FindAllStringSubmatch(page, -1) {
		switch kind, text := b[1], b[2]; kind {
		case "sh":
			for line := range strings.Lines(text) {
				require.NoError(t, lastErr, "%s: %s", last, printed)
				last = strings.TrimSpace(line)
				switch {
				case startsService.MatchString(last):
					run = command(last)
					run.Stdout, run.Stderr = &log, &log
					var err error
					ended, err = startBound(run)
					require.NoError(t, err)
					require.Eventually(t, func() bool { return strings.Contains(log.String(), `"msg":"running"`) },
						2*time.Minute, 10*time.Millisecond, "it runs")
					continue
				case strings.Contains(last, " once simulator "):
					api := command(last)
					stopped, err := startBound(api)
					require.NoError(t, err)
					t.Cleanup(func() { _ = api.Process.Kill(); <-stopped })
					continue
				}
				var out []byte
				out, lastErr = command(last).CombinedOutput()
				printed = string(out)
			}
		case "text":
			want := strings.TrimSpace(text)
			require.Eventually(t, func() bool {
				if lastErr == nil && strings.Contains(printed, want) {
					return true
				}
				out, err := command(last).CombinedOutput()
				printed, lastErr = string(out), err
				return false
			}, 2*time.Minute, 50*time.Millisecond, "%s does not print %s", last, want)
			if found := listed.FindStringSubmatch(printed); found != nil {
				id = found[1]
			}
			compared++
		default:
			write(t, dir, kind, text)
		}
	}
	require.NoError(t, lastErr, "%s: %s", last, printed)
	require.Equal(t, texts, compared, "text blocks")
	require.NotNil(t, run, "the page starts the binary")
	require.NoError(t, run.Process.Signal(syscall.SIGINT))
	select {
	case <-ended:
	case <-time.After(2 * time.Minute):
		require.FailNow(t, "an interrupt does not end it")
	}
	require.Equal(t, app.ExitInterrupted, run.ProcessState.ExitCode(), log.String())
}
