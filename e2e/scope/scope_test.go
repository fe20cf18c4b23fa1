package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// checkout is a small repository with the module's name.
type checkout struct {
	t   *testing.T
	top string
}

func (c checkout) git(args ...string) string {
	c.t.Helper()
	cmd := exec.CommandContext(c.t.Context(), "git", args...)
	cmd.Dir = c.top
	cmd.Env = append(os.Environ(), "GIT_AUTHOR_NAME=a", "GIT_AUTHOR_EMAIL=a@example.org", "GIT_COMMITTER_NAME=a", "GIT_COMMITTER_EMAIL=a@example.org")
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%s", out)
	return strings.TrimSpace(string(out))
}

func (c checkout) commit(files map[string]string) string {
	c.t.Helper()
	for name, text := range files {
		file := filepath.Join(c.top, name)
		require.NoError(c.t, os.MkdirAll(filepath.Dir(file), 0o755))
		require.NoError(c.t, os.WriteFile(file, []byte(text), 0o600))
	}
	c.git("add", "-A")
	c.git("commit", "-q", "-m", "change")
	return c.git("rev-parse", "HEAD")
}

func (c checkout) scope(args ...string) (code int, out string) {
	var o bytes.Buffer
	code = run(c.t.Context(), c.top, args, &o, &o)
	return code, o.String()
}

func newCheckout(t *testing.T) checkout {
	for name, value := range map[string]string{
		"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@example.org", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@example.org",
		"GOWORK": "", "GOFLAGS": "-buildvcs=false -trimpath",
	} {
		t.Setenv(name, value)
	}
	c := checkout{t, t.TempDir()}
	c.git("init", "-q", "-b", "main")
	c.commit(map[string]string{
		"go.mod": "module " + module + "\n\ngo 1.26\n", "go.work": "go 1.26\n\nuse .\nuse ./e2e\n", ".ci/run": "",
		"e2e/go.mod": "module " + module + "/e2e\n\ngo 1.26\n", "e2e/doc.go": "package e2e\n",
		"plugins/web/web.go": "package web\n", "plugins/web/pages/page.html": "", "plugins/kafka/kafka.go": "package kafka\n",
		"handlers/shop/shop.go": "package shop\n\nimport _ \"" + module + "/plugins/web\"\n",
	})
	return c
}

func TestARoundPerChange(t *testing.T) {
	c := newCheckout(t)
	first := c.git("rev-parse", "HEAD")
	code, out := c.scope("round")
	require.Equal(t, 1, code)
	require.Contains(t, out, "name the commit that was submitted last")

	c.commit(map[string]string{"plugins/kafka/kafka.go": "package kafka // a\n"})
	code, out = c.scope("env")
	require.Equal(t, 1, code)
	require.Contains(t, out, "run `make round BASE=COMMIT`")
	code, out = c.scope("round", first)
	require.Zero(t, code, out)
	code, out = c.scope("env")
	require.Zero(t, code, out)
	require.Contains(t, out, "MILLRACE_AREAS='kafka'\n")
	require.Contains(t, out, "MILLRACE_PACKAGES='plugins/kafka'\n")
	require.Contains(t, out, "MILLRACE_QUARTERS=1\n")

	code, out = c.scope("round")
	require.Equal(t, 1, code)
	require.Contains(t, out, "nothing was committed since")
	// A further commit belongs to the same change, whether the counter is raised again from the same base or not.
	c.commit(map[string]string{"plugins/web/web.go": "package web // b\n"})
	code, out = c.scope("round", first)
	require.Zero(t, code, out)
	require.Contains(t, out, "round 1 was raised already")
	code, out = c.scope("env")
	require.Zero(t, code, out)
	require.Contains(t, out, "MILLRACE_AREAS='kafka,web'\n")
	require.Contains(t, out, "MILLRACE_QUARTERS=1\n")

	// The next change: a page of a package, and who imports it.
	c.commit(map[string]string{"plugins/web/pages/the page.html": "x", "README.md": "x"})
	require.NoError(t, os.WriteFile(filepath.Join(c.top, "left"), nil, 0o600))
	code, out = c.scope("round")
	require.Equal(t, 1, code)
	require.Contains(t, out, "?? left")
	require.NoError(t, os.Remove(filepath.Join(c.top, "left")))
	code, out = c.scope("round")
	require.Zero(t, code, out)
	code, out = c.scope("env")
	require.Zero(t, code, out)
	require.Contains(t, out, "MILLRACE_AREAS='web'\n")
	require.Contains(t, out, "MILLRACE_PACKAGES='handlers/shop,plugins/web'\n")
	require.Contains(t, out, "MILLRACE_QUARTERS=2\n")

	// A clone without the history.
	shallow := checkout{t, t.TempDir()}
	shallow.git("clone", "-q", "--depth", "1", "file://"+c.top, ".")
	code, out = shallow.scope("env")
	require.Zero(t, code, out)
	require.Contains(t, out, everything)

	// A number that was written by hand.
	c.commit(map[string]string{".ci/round": "9 " + first + "\n"})
	code, out = c.scope("env")
	require.Equal(t, 1, code)
	require.Contains(t, out, "want 1")
	require.Equal(t, 2, func() int { code, _ := c.scope("what"); return code }())
}

func TestTheAreasOfAChange(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(top, "e2e"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(top, "e2e/a_test.go"), []byte("\ttier.Rest(t, tier.Room, tier.Redis)\n\t_ = tier.Kafka\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(top, "e2e/b_run_test.go"), []byte("func start() {}\n"), 0o600))
	for want, files := range map[string][]string{
		"":                {"README.md", "plugins/kafka/README.md", "e2e/gone_test.go"},
		"redis room":      {"e2e/a_test.go"},
		"everything room": {"e2e/b_run_test.go", "handlers/waitingroom/x.go"},
		"cli pipeline":    {"pipeline/app/run.go", "pipeline/route.go"},
		"promotion":       {"handlers/promotion/ledger/lua/x.lua", "e2e/faults/plan.go", "plugins/once/key.go"},
		"pipeline redis":  {"plugins/telemetry/ready.go", "plugins/streams/x.go", "internal/failpoint/a.go"},
		"redis":           {"internal/redis/poll/x.go"},
	} {
		got, err := repository{top: top}.areas(files)
		require.NoError(t, err)
		require.Equal(t, want, strings.Join(got, " "), files)
	}
	for _, file := range []string{"go.mod", "go.work", "e2e/go.sum", "Makefile", ".ci/run", "e2e/services/main.go", "pipeline/pipelinetest/tier/tier.go"} {
		require.Equal(t, everything, areaOf(file), file)
	}
}

// The packaging runs for what it builds, and in one of four rounds.
func TestThePackagingFollowsTheBinary(t *testing.T) {
	c := newCheckout(t)
	c.commit(map[string]string{"packaging/go.mod": "module " + packaging + "\n\ngo 1.26\n", "packaging/image/main.go": "package main\n", "cmd/millrace/main.go": "package main\n"})
	base := c.git("rev-parse", "HEAD")
	other, image, binary, makefile, stack := "plugins/kafka/kafka.go", "packaging/image/main.go", "cmd/millrace/main.go", "Makefile", "compose.yaml"
	// Of two rounds in a row, one is in another quarter.
	for n, file := range []string{other, other, other, other, image, image, binary, binary, makefile, makefile, stack, stack} {
		c.commit(map[string]string{file: fmt.Sprintf("package main // %d\n", n)})
		code, out := c.scope("round", base)
		require.Zero(t, code, out)
		base = c.git("rev-parse", "HEAD")
		code, out = c.scope("env")
		require.Zero(t, code, out)
		if file != other || (n+1)%4 == tier.Quarter(packaging) {
			require.Contains(t, out, "PACKAGING_PKGS='./...'\n", file)
		} else {
			require.Contains(t, out, "PACKAGING_PKGS=''\n", file)
		}
	}
}

// Four rounds in a row have run everything.
func TestFourQuartersAreTheWhole(t *testing.T) {
	t.Setenv("MILLRACE_TEST", "rest")
	t.Setenv("MILLRACE_AREAS", "room")
	t.Setenv("MILLRACE_PACKAGES", "plugins/web")
	for _, name := range []string{"TestA", "TestB/x", "kill/drain", "TestLong"} {
		ran := 0
		for _, quarter := range []string{"0", "1", "2", "3"} {
			t.Setenv("MILLRACE_QUARTERS", quarter)
			if tier.Selected(name, tier.Kafka) {
				ran++
			}
			require.True(t, tier.Selected(name, tier.Kafka, tier.Room), "its area is touched")
		}
		require.Equal(t, 1, ran, name)
	}
	t.Setenv("MILLRACE_PACKAGES", "e2e/scope")
	require.True(t, tier.Selected("TestA"), "its package is touched")
}

// Two rounds in a row have run everything, and neither of them all of it.
func TestAChangeOfEverythingHasHalfOfTheRest(t *testing.T) {
	t.Setenv("MILLRACE_TEST", "rest")
	for name, change := range map[string]map[string]string{
		"a file that everything depends on": {"Makefile": "all:\n"},
		"five areas": {
			"plugins/kafka/kafka.go": "package kafka // b\n", "plugins/web/web.go": "package web // b\n", "handlers/shop/shop.go": "package shop\n",
			"handlers/waitingroom/room.go": "package waitingroom\n", "handlers/promotion/promotion.go": "package promotion\n",
		},
	} {
		c := newCheckout(t)
		base := c.git("rev-parse", "HEAD")
		ran := map[string]int{}
		for n := range 2 {
			for file, text := range change {
				c.commit(map[string]string{file: fmt.Sprintf("%s// %d\n", text, n)})
			}
			code, out := c.scope("round", base)
			require.Zero(t, code, out)
			base = c.git("rev-parse", "HEAD")
			code, out = c.scope("env")
			require.Zero(t, code, out)
			for line := range strings.Lines(out) {
				if name, value, found := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "="); found && strings.HasPrefix(name, "MILLRACE_") {
					t.Setenv(name, strings.Trim(value, "'"))
				}
			}
			require.Contains(t, []string{"1,3", "2,0"}, os.Getenv("MILLRACE_QUARTERS"), name)
			for i := range 100 {
				if test := fmt.Sprint("Test", i); tier.Selected(test, tier.Kafka, tier.Room) {
					ran[test]++
				}
			}
			for _, pkg := range []string{"plugins/kafka", "plugins/web"} {
				if strings.Contains(out, "RACE_PKGS='") && strings.Contains(out, module+"/"+pkg) {
					ran[pkg]++
				}
			}
		}
		require.Len(t, ran, 102, name)
		for test, times := range ran {
			require.Equal(t, 1, times, test)
		}
	}
}
