package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// asked runs a script of the packages on a system that systemd runs, and returns what it asks of systemctl.
func asked(t *testing.T, script string, env []string, args ...string) string {
	t.Helper()
	bin, log := t.TempDir(), filepath.Join(t.TempDir(), "asked")
	require.NoError(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\necho \"$*\" >>'"+log+"'\n"), 0o755)) //nolint:gosec // a program
	require.NoError(t, os.WriteFile(log, nil, 0o600))
	const enter = `mount -t tmpfs tmpfs /run && mkdir -p /run/systemd/system && exec sh "$@"`
	line := append([]string{"--mount", "sh", "-euc", enter, "sh", filepath.Join("packages/scripts", script)}, args...)
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", bin).CombinedOutput(); err != nil {
		t.Skipf("only root on Linux may mount: %v %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", line...)
	cmd.Env = append(append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "DPKG_ROOT="), env...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	return string(text)
}

const (
	reloaded = "daemon-reload\n"
	ended    = "stop millrace.service millrace@*.service\n--quiet disable millrace.service\n"
)

// Nothing is started unasked, and only the last removal stops something.
func TestTheScriptsOfThePackages(t *testing.T) {
	t.Parallel()
	const look = "--quiet is-active millrace.service millrace@*.service\n"
	for name, tc := range map[string]struct {
		script string
		args   []string
		want   string
	}{
		"dpkg installs":           {"postinstall.sh", []string{"configure", ""}, reloaded + look},
		"dpkg upgrades":           {"postinstall.sh", []string{"configure", "0.1.0"}, reloaded + look},
		"rpm installs":            {"postinstall.sh", []string{"1"}, reloaded + look},
		"dpkg will upgrade":       {"preremove.sh", []string{"upgrade", "0.2.0"}, ""},
		"rpm has upgraded":        {"preremove.sh", []string{"1"}, ""},
		"dpkg will remove":        {"preremove.sh", []string{"remove"}, ended},
		"rpm will remove":         {"preremove.sh", []string{"0"}, ended},
		"dpkg or rpm has removed": {"postremove.sh", []string{"remove"}, reloaded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, asked(t, tc.script, nil, tc.args...))
			require.Empty(t, asked(t, tc.script, []string{"DPKG_ROOT=/elsewhere"}, tc.args...), "the systemd that runs is that of another system")
		})
	}
}
