package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest/tier"
)

// The example of the README leads to a promoted user, and to a shop that verifies the token and
// sells the seat. The test changes addresses alone.
func TestTheExampleOfTheWaitingRoom(t *testing.T) {
	tier.Default(t)
	t.Parallel()
	for _, program := range []string{"redis-server", "openssl", "curl"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("MILLRACE_TEST_REDIS: %s is not installed", program)
		}
	}
	tier.Met(t, "redis")
	page, err := os.ReadFile("../handlers/waitingroom/README.md")
	require.NoError(t, err)
	_, example, found := strings.Cut(string(page), "\n## Example\n")
	require.True(t, found)
	blocks := strings.Split(example, "```")
	require.Greater(t, len(blocks), 5)
	start, settings, use := strings.TrimPrefix(blocks[1], "sh\n"), strings.TrimPrefix(blocks[3], "yaml\n"), strings.TrimPrefix(blocks[5], "sh\n")
	const run = "millrace run --config room.yaml\n"
	require.True(t, strings.HasSuffix(start, run))
	require.Contains(t, use, "curl -N ")

	dir, program := t.TempDir(), filepath.Join(t.TempDir(), "millrace")
	require.NoError(t, os.Symlink(binary(t), program))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "room.yaml"), []byte(settings), 0o600))
	web, err := freePort()
	require.NoError(t, err)
	ops, err := freePort()
	require.NoError(t, err)
	env := append(os.Environ(), "PATH="+filepath.Dir(program)+":"+os.Getenv("PATH"), "MILLRACE__PLUGINS__REDIS__ADDRS="+startNode(t, "redis-server").addr,
		"MILLRACE__PLUGINS__WEB__LISTEN="+web, "MILLRACE__PLUGINS__TELEMETRY__LISTEN="+ops)
	shell := func(text string) *exec.Cmd {
		cmd := exec.Command("sh", "-ec", strings.ReplaceAll(text, "127.0.0.1:8080", web))
		cmd.Dir, cmd.Env = dir, env
		return cmd
	}
	key, _, _ := strings.Cut(start, "\n")
	out, err := shell(key).CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, exported, _ := strings.Cut(strings.TrimSuffix(start, run), "\n")
	process := &roomProcess{ops: "http://" + ops, service: &service{t: t, config: "room.yaml", log: &lockedBuffer{}}}
	process.cmd = shell(exported + "exec " + run)
	process.cmd.Stdout, process.cmd.Stderr = process.log, process.log
	process.done, err = startBound(process.cmd)
	require.NoError(t, err)
	t.Cleanup(process.kill)
	require.NoError(t, process.awaitReady(t.Context()))

	// The stream ends with the event that has the token, instead of Ctrl-C.
	use = strings.Replace(use, "tickets/waiting\n", "tickets/waiting | sed '/^event: promoted/q'\n", 1)
	out, err = shell(use).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, text := range []string{
		"Event 42: opened. The room is open.", "event: connected", "event: promoted", `"userId":"ann"`, `"state":"ADMITTED"`, `"state":"SOLD"`,
	} {
		require.Contains(t, string(out), text)
	}
	require.Regexp(t, `(?m)^sold +1$`, string(out))
}
