package packaging_test

import (
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"encoding/json"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// budget is what the binary of one platform may weigh, in bytes. It is a decision to raise it: say in
// the commit what made the binary grow. The last MiB: rates of all instances, lookups, files of requests and streams for others in once.
const budget = 59 << 20

var platforms = []string{"linux-amd64", "linux-arm64"}

func hashOf(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

func TestTwoBuildsAreOneFile(t *testing.T) {
	a := release(t)
	b, err := second()
	require.NoError(t, err)
	require.Equal(t, a.commit, b.commit)
	for _, platform := range platforms {
		require.Equal(t, hashOf(t, a.path("dist", platform, "millrace")), hashOf(t, b.path("dist", platform, "millrace")), platform)
	}
	require.NotEqual(t, hashOf(t, a.path("dist", platforms[0], "millrace")), hashOf(t, a.path("dist", platforms[1], "millrace")))
	require.Equal(t, hashOf(t, a.path("dist/image/index.json")), hashOf(t, b.path("dist/image/index.json")), "it names the digest of the image")
}

// unfit returns what keeps a binary from running everywhere, or makes it larger than it must be.
func unfit(t *testing.T, file string) []string {
	t.Helper()
	executable, err := elf.Open(file)
	require.NoError(t, err)
	defer executable.Close()
	var wrong []string
	for _, part := range executable.Progs {
		if part.Type == elf.PT_INTERP {
			wrong = append(wrong, "needs an interpreter")
		}
	}
	for _, section := range executable.Sections {
		if section.Name == ".symtab" || strings.HasPrefix(section.Name, ".debug_") || strings.HasPrefix(section.Name, ".zdebug_") {
			wrong = append(wrong, "has the section "+section.Name)
		}
	}
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	if home, err := os.UserHomeDir(); err == nil && home != "/" && strings.Contains(string(text), home+"/") {
		wrong = append(wrong, "names a folder of its builder")
	}
	return wrong
}

func TestTheBinaryNeedsNothing(t *testing.T) {
	c := release(t)
	for _, platform := range platforms {
		file := c.path("dist", platform, "millrace")
		require.Empty(t, unfit(t, file), platform)
		info, err := os.Stat(file)
		require.NoError(t, err)
		t.Logf("%s: %.1f MB", platform, float64(info.Size())/(1<<20))
		require.LessOrEqual(t, info.Size(), int64(budget), "%s is larger than its budget", platform)
	}
	self, err := os.Executable() // go test has built it with all of that
	require.NoError(t, err)
	require.NotEmpty(t, unfit(t, self))
}

func TestTheVersionNamesTagCommitAndToolchain(t *testing.T) {
	c := release(t)
	mod, err := os.ReadFile("../go.mod")
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(mod), "\ntoolchain ")
	require.True(t, found)
	toolchain, _, _ := strings.Cut(rest, "\n")
	for _, platform := range platforms {
		info, err := buildinfo.ReadFile(c.path("dist", platform, "millrace"))
		require.NoError(t, err)
		require.Equal(t, tag, info.Main.Version, platform)
		require.Equal(t, toolchain, info.GoVersion, platform)
		require.Equal(t, c.commit, setting(info, "vcs.revision"), platform)
		require.Equal(t, "false", setting(info, "vcs.modified"), platform)
	}
	out, err := exec.Command(c.path("dist", "linux-"+runtime.GOARCH, "millrace"), "version", "--json").Output()
	require.NoError(t, err)
	var version map[string]any
	require.NoError(t, json.Unmarshal(out, &version))
	require.Equal(t, map[string]any{
		"name": "millrace", "version": tag, "commit": c.commit, "go": toolchain, "platform": "linux/" + runtime.GOARCH,
	}, version)
}

func setting(info *buildinfo.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

func dependencies(t *testing.T, file string) []string {
	t.Helper()
	info, err := buildinfo.ReadFile(file)
	require.NoError(t, err)
	var paths []string
	for _, m := range info.Deps {
		paths = append(paths, m.Path)
	}
	return paths
}

// The tag leaves out the servers that a laptop uses, with their code.
func TestABinaryWithoutTheEmbeddedEnvironment(t *testing.T) {
	c := release(t)
	require.NoError(t, c.make(nil, "binary", "TAGS=noembedded", "DIST="+c.path("dist/production")))
	small := c.path("dist/production", "linux-"+runtime.GOARCH, "millrace")
	whole := c.path("dist", "linux-"+runtime.GOARCH, "millrace")
	for _, server := range []string{"github.com/twmb/franz-go/pkg/kfake", "github.com/alicebob/miniredis/v2", "github.com/yuin/gopher-lua"} {
		require.True(t, slices.Contains(dependencies(t, whole), server), server)
		require.False(t, slices.Contains(dependencies(t, small), server), server)
	}
	out, err := exec.Command(small, "run", "--profile", "embedded").CombinedOutput()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 2, exit.ExitCode(), "%s", out)
	require.Contains(t, string(out), `environment: must be external, got "embedded"`)
	out, err = exec.Command(small, "topology", "--profile", "router").CombinedOutput()
	require.NoError(t, err, "%s", out)
}
