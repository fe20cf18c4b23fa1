package packaging_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const unitFile = "systemd/millrace.service"

// directives returns the settings of a unit by name. One that is written several times has several values.
func directives(t *testing.T, file string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	all := map[string][]string{}
	for line := range strings.Lines(string(text)) {
		if name, value, found := strings.Cut(strings.TrimSpace(line), "="); found && !strings.HasPrefix(name, "#") {
			all[name] = append(all[name], value)
		}
	}
	return all
}

// A limit of the unit that is shorter than what the process may take would end it by force.
func TestTheUnitWaitsAsLongAsTheDefaultsSay(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../configs/millrace.schema.json")
	require.NoError(t, err)
	var schema struct {
		Properties map[string]struct{ Default any }
	}
	require.NoError(t, json.Unmarshal(text, &schema))
	unit := directives(t, unitFile)
	for directive, setting := range map[string]string{"TimeoutStartSec": "start_timeout", "TimeoutStopSec": "stop_timeout"} {
		written, ok := schema.Properties[setting].Default.(string)
		require.True(t, ok, setting)
		limit, err := time.ParseDuration(written)
		require.NoError(t, err)
		require.Len(t, unit[directive], 1)
		waits, err := time.ParseDuration(unit[directive][0])
		require.NoError(t, err)
		require.Equal(t, limit+10*time.Second, waits, "%s and 10 s for the last traces", setting)
	}
	files, err := strconv.Atoi(unit["LimitNOFILE"][0])
	require.NoError(t, err)
	require.GreaterOrEqual(t, files, 40_512, "as docs/operating.md says of connections")
}

// The settings of the package read what the unit loads, and the settings file that it names is the package's.
func TestTheUnitLoadsTheSecretsOfTheSettings(t *testing.T) {
	t.Parallel()
	settings, err := os.ReadFile("systemd/millrace.yaml")
	require.NoError(t, err)
	read := map[string]bool{}
	for _, found := range regexp.MustCompile(`: file:\$CREDENTIALS_DIRECTORY/(\S+)`).FindAllStringSubmatch(string(settings), -1) {
		read[found[1]] = true
	}
	loaded := map[string]bool{}
	for _, name := range directives(t, unitFile)["LoadCredential"] {
		loaded[name] = true
	}
	require.Equal(t, loaded, read)
	require.Len(t, read, 4)
}

// The page checks the settings as the unit reads them: with its user and its credentials.
func TestThePageChecksTheSettingsAsTheUnit(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/systemd.md")
	require.NoError(t, err)
	_, command, found := strings.Cut(string(page), "\nsystemd-run ")
	require.True(t, found)
	command, _, _ = strings.Cut(command, "\n```")
	require.Contains(t, command, "\n  millrace validate --config /etc/millrace/millrace.yaml")
	given := map[string][]string{}
	for _, found := range regexp.MustCompile(`--property=(\w+)=(\S+)`).FindAllStringSubmatch(command, -1) {
		given[found[1]] = append(given[found[1]], found[2])
	}
	unit := directives(t, unitFile)
	for _, name := range []string{"DynamicUser", "User", "LoadCredential"} {
		require.Equal(t, unit[name], given[name], name)
	}
}

// The template differs from the unit in what names an instance.
func TestTheTemplateOfTheUnit(t *testing.T) {
	t.Parallel()
	unit, err := os.ReadFile(unitFile)
	require.NoError(t, err)
	template, err := os.ReadFile("systemd/millrace@.service")
	require.NoError(t, err)
	require.Equal(t, strings.NewReplacer(
		"Description=Millrace event pipeline\n", "Description=Millrace event pipeline (%i)\n",
		"/etc/millrace/millrace.yaml", "/etc/millrace/%i.yaml",
		"User=millrace\n", "User=millrace-%i\n",
		"StateDirectory=millrace\n", "StateDirectory=millrace-%i\n",
		"WorkingDirectory=%S/millrace\n", "WorkingDirectory=%S/millrace-%i\n",
	).Replace(string(unit)), string(template))
}

// Exit code 2 is that of wrong settings, which the unit does not start again, and that of a crash of Go. So
// the environment of the unit makes a crash, and the end by the watchdog, a signal.
func TestTheUnitStartsAgainAfterACrash(t *testing.T) {
	c, unit := release(t), directives(t, unitFile)
	require.Equal(t, []string{"2"}, unit["RestartPreventExitStatus"])
	crash := func(environ ...string) syscall.WaitStatus {
		t.Helper()
		p := exec.Command(c.path("dist", "linux-"+runtime.GOARCH, "millrace"), "run", "--profile", "embedded")
		p.Env = append([]string{"MILLRACE__DATA_DIR=" + t.TempDir(), "MILLRACE__PLUGINS__TELEMETRY__LISTEN="}, environ...)
		out := &buffer{}
		p.Stdout, p.Stderr = out, out
		require.NoError(t, p.Start())
		t.Cleanup(func() { _ = p.Process.Kill() })
		require.Eventually(t, func() bool { return strings.Contains(out.String(), `"msg":"running"`) }, 2*time.Minute, 20*time.Millisecond)
		require.NoError(t, p.Process.Signal(syscall.SIGABRT)) // as the watchdog does
		_ = p.Wait()
		require.Contains(t, out.String(), "goroutine 1 ")
		status, ok := p.ProcessState.Sys().(syscall.WaitStatus)
		require.True(t, ok)
		return status
	}
	require.Equal(t, 2, crash().ExitStatus())
	status := crash(unit["Environment"]...)
	require.True(t, status.Signaled(), "exit code %d", status.ExitStatus())
	require.Equal(t, syscall.SIGABRT, status.Signal())
}

// analyze runs systemd-analyze on a unit whose program exists here, and returns what it says.
func analyze(t *testing.T, unit string, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), toolPath(t, "systemd-analyze"), append(args, unit)...).CombinedOutput()
	return string(out), err
}

// placed writes the unit with changes into a folder of its own, for a program that exists.
func placed(t *testing.T, name string, changes ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("systemd", name))
	require.NoError(t, err)
	self, err := os.Executable()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), strings.Replace(name, "@.", "@one.", 1))
	changed := strings.NewReplacer(append([]string{"/usr/bin/millrace", self}, changes...)...).Replace(string(text))
	require.NoError(t, os.WriteFile(file, []byte(changed), 0o600))
	return file
}

func TestSystemdFindsNothingWrong(t *testing.T) {
	t.Parallel()
	verify := []string{"verify", "--man=no", "--recursive-errors=no"}
	for _, name := range []string{"millrace.service", "millrace@.service"} {
		said, err := analyze(t, placed(t, name), verify...)
		require.NoError(t, err, said)
		require.Empty(t, said)
	}
	said, err := analyze(t, placed(t, "millrace.service", "WatchdogSec=30s", "WatchdogSec=soon"), verify...)
	require.Error(t, err)
	require.Contains(t, said, "soon")
}

// The exposure of a unit goes from 0 (nothing is left open) to 10; the threshold is in tenths.
func TestTheSandboxOfTheUnit(t *testing.T) {
	t.Parallel()
	security := []string{"security", "--offline=true", "--no-pager", "--threshold=20"}
	for _, name := range []string{"millrace.service", "millrace@.service"} {
		said, err := analyze(t, placed(t, name), security...)
		require.NoError(t, err, said)
	}
	said, err := analyze(t, placed(t, "millrace.service", "SystemCallFilter=@system-service\n", "", "PrivateUsers=yes\n", "", "RestrictNamespaces=yes\n", ""), security...)
	require.Error(t, err, said)
}
