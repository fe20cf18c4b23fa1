package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// commands returns the command lines of a page's shell blocks, without comments.
func commands(t *testing.T, page string) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", page))
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

// The commands of the README run: offline commands unchanged, and the demo with fewer targets. The
// test compares other commands with their help.
func TestTheCommandsOfTheReadme(t *testing.T) {
	t.Parallel()
	tier.Default(t)
	run := func(args ...string) string {
		cmd := exec.Command(binary(t), args...)
		cmd.Env = append(os.Environ(), "MILLRACE__INSTANCE_ID=readme")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "millrace %s: %s", strings.Join(args, " "), out)
		return string(out)
	}
	seen := map[string]bool{}
	for _, line := range commands(t, "README.md") {
		args, ours := strings.CutPrefix(line, "go run ./cmd/millrace ")
		if !ours {
			args, ours = strings.CutPrefix(line, "millrace ")
		}
		if name, ok := strings.CutPrefix(line, "export MILLRACE_CONFIG="); ok && name != "" {
			asksTheServiceNamed(t)
			continue
		}
		if ofTheMain(line) {
			continue // TestTheMainOfTheReadme
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
		case words[0] == "campaign", words[0] == "deadletter", words[0] == "unknown", words[0] == "topics":
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

// The commands use the service of MILLRACE_CONFIG. Without settings they fail, instead of reading
// an empty environment.
func asksTheServiceNamed(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "millrace.yaml")
	require.NoError(t, os.WriteFile(file, []byte("profile: embedded\ndata_dir: "+dir+"\n"), 0o600))
	for _, asked := range [][]string{{"migrate"}, {"campaign", "status"}, {"unknown", "list"}, {"deadletter", "list"}} {
		cmd := exec.Command(binary(t), asked...)
		cmd.Env = append(os.Environ(), "MILLRACE_CONFIG="+file)
		out, err := cmd.CombinedOutput()
		require.Error(t, err, "%s", out)
		require.Equal(t, 3, cmd.ProcessState.ExitCode())
		require.Contains(t, string(out), "no embedded environment is running in "+dir)
		forgotten := exec.Command(binary(t), asked...)
		out, err = forgotten.CombinedOutput()
		require.Error(t, err, "%s", out)
		require.Equal(t, 2, forgotten.ProcessState.ExitCode())
		require.Contains(t, string(out), "no settings: give --config FILE")
	}
}

// Every command of the operating page exists, with its flags, also inside of a container. So does
// every target of make.
func TestTheCommandsOfTheOperatingPage(t *testing.T) {
	t.Parallel()
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	checked, inService := 0, regexp.MustCompile(`^docker compose exec (worker|router|gateway|broker) `)
	others := regexp.MustCompile(`^(export MILLRACE_CONFIG=|skopeo copy |docker run .*\\$|--volume .*\\$|(MILLRACE_IMAGE=\S+ )?docker compose |curl )`)
	for _, line := range commands(t, "docs/operating.md") {
		if target, found := strings.CutPrefix(line, "make "); found {
			require.Contains(t, string(makefile), "\n"+strings.Fields(target)[0]+":", line)
			continue
		}
		if _, inside, found := strings.Cut(line, "/millrace:v0.1.0 "); found {
			line = "millrace " + inside
		}
		line = inService.ReplaceAllString(line, "")
		args, ours := strings.CutPrefix(line, "millrace ")
		if !ours {
			require.Regexp(t, others, line)
			continue
		}
		words := strings.Fields(args)
		verbs := []string{""}
		takesTopic := words[0] == "send" || words[0] == "tail" // others have a verb there
		if len(words) > 1 && !takesTopic && !strings.HasPrefix(words[1], "--") {
			verbs = strings.Split(words[1], "|")
		}
		for _, verb := range verbs {
			command := strings.Fields(words[0] + " " + verb)
			out, err := exec.Command(binary(t), append(command, "--help")...).CombinedOutput()
			require.NoError(t, err, line)
			require.Contains(t, string(out), "Usage:\n  millrace "+strings.Join(command, " "), line)
			for _, word := range words {
				if strings.HasPrefix(word, "--") {
					require.Contains(t, string(out), word, line)
				}
			}
			checked++
		}
	}
	require.Greater(t, checked, 20)
}
