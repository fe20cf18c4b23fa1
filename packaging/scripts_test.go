package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// asked runs a script of the packages on a system that systemd runs, and returns what it asks of systemctl and what
// it says. The systemctl lists the units that the variable RUNNING names.
func asked(t *testing.T, script string, env []string, args ...string) (calls, said string) {
	t.Helper()
	bin, log := t.TempDir(), filepath.Join(t.TempDir(), "asked")
	require.NoError(t, os.WriteFile(filepath.Join(bin, "systemctl"), []byte("#!/bin/sh\necho \"$*\" >>'"+log+"'\n"+systemctlLists), 0o755)) //nolint:gosec // a program
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
	return string(text), string(out)
}

// systemctlLists prints units as systemd does: a line of columns for each.
const systemctlLists = `[ "$1" != list-units ] || for unit in $RUNNING; do echo "$unit loaded active running Millrace event pipeline"; done
`

const (
	reloaded = "daemon-reload\n"
	ended    = "stop millrace.service millrace@*.service\n--quiet disable millrace.service\n"
)

// Nothing is started unasked, and only the last removal stops something.
func TestTheScriptsOfThePackages(t *testing.T) {
	t.Parallel()
	const look = "list-units --plain --no-legend --state=active millrace.service millrace@*.service\n"
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
			calls, said := asked(t, tc.script, nil, tc.args...)
			require.Equal(t, tc.want, calls)
			require.Empty(t, said)
			calls, _ = asked(t, tc.script, []string{"DPKG_ROOT=/elsewhere"}, tc.args...)
			require.Empty(t, calls, "the systemd that runs is that of another system")
		})
	}
}

// A restart of a unit that does not run would start it, so the units that do are named, also those of roles.
func TestAnUpgradeNamesTheUnitsThatRun(t *testing.T) {
	t.Parallel()
	_, said := asked(t, "postinstall.sh", []string{"RUNNING=millrace@gateway.service millrace@router.service"}, "configure", "0.1.0")
	require.Equal(t, "millrace: still the version before, until systemctl restart of each: millrace@gateway.service millrace@router.service\n", said)
}
