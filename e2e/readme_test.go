package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// commands returns the command lines of the README's shell blocks, without comments.
func commands(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	var lines []string
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```sh"
		case inside && line != "":
			line, _, _ = strings.Cut(line, "#")
			lines = append(lines, strings.TrimSpace(line))
		}
	}
	require.NotEmpty(t, lines)
	return lines
}

// What the README says runs: offline commands as they stand, the demo with fewer targets, and of those that need
// servers or take long the words are checked by their help.
func TestTheCommandsOfTheReadme(t *testing.T) {
	run := func(args ...string) string {
		cmd := exec.Command(binary(t), args...)
		cmd.Env = append(os.Environ(), "MILLRACE__INSTANCE_ID=readme")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "millrace %s: %s", strings.Join(args, " "), out)
		return string(out)
	}
	seen := map[string]bool{}
	for _, line := range commands(t) {
		args, ours := strings.CutPrefix(line, "go run ./cmd/millrace ")
		if !ours {
			args, ours = strings.CutPrefix(line, "millrace ")
		}
		if name, ok := strings.CutPrefix(line, "export MILLRACE_CONFIG="); ok && name != "" {
			asksTheServiceNamed(t)
			continue
		}
		if !ours {
			require.True(t, strings.HasPrefix(line, "make ") || line == "go test ./handlers/greetings", "nobody runs %q", line)
			if target, ok := strings.CutPrefix(line, "make "); ok {
				out, err := exec.Command("make", "-C", "..", "-n", target).CombinedOutput()
				require.NoError(t, err, "%s: %s", line, out)
			}
			continue
		}
		words := strings.Fields(args)
		seen[words[0]] = true
		switch {
		case args == "demo":
			require.Contains(t, run("demo", "--targets", "50"), "The books balance: nothing lost, nothing paid twice.")
		case words[0] == "validate", words[0] == "topology", words[0] == "schema":
			run(words...)
		case words[0] == "campaign", words[0] == "dead", words[0] == "unknown", words[0] == "topics":
			for verb := range strings.SplitSeq(words[1], "|") {
				help := run(words[0], verb, "--help")
				require.Contains(t, help, "Usage:\n  millrace "+words[0]+" "+verb)
				for _, w := range words[2:] {
					if strings.HasPrefix(w, "--") {
						require.Contains(t, help, w)
					}
				}
			}
		default:
			help := run(words[0], "--help")
			for _, w := range words[1:] {
				if strings.HasPrefix(w, "--") {
					require.Contains(t, help, w)
				}
			}
		}
	}
	for _, command := range []string{"demo", "new", "topology", "validate", "campaign", "run"} {
		require.True(t, seen[command], "the README doesn't show %s", command)
	}
}

// The service is the one of MILLRACE_CONFIG; nobody is told of an empty home because the settings were forgotten.
func asksTheServiceNamed(t *testing.T) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "millrace.yaml")
	require.NoError(t, os.WriteFile(file, []byte("profile: embedded\ndata_dir: "+t.TempDir()+"\n"), 0o600))
	for _, asked := range [][]string{{"migrate"}, {"campaign", "status"}, {"unknown", "list"}, {"dead", "list"}} {
		cmd := exec.Command(binary(t), asked...)
		cmd.Env = append(os.Environ(), "MILLRACE_CONFIG="+file)
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%v: %s", asked, out)
		forgotten := exec.Command(binary(t), asked...)
		out, err = forgotten.CombinedOutput()
		require.Error(t, err, "%s", out)
		require.Equal(t, 2, forgotten.ProcessState.ExitCode())
		require.Contains(t, string(out), "no settings: give --config FILE")
	}
}
