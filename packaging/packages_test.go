package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
	"github.com/sassoftware/go-rpmutils"
	"github.com/stretchr/testify/require"
)

// The packages of both checkouts are made once, by users with other settings.
var (
	firstPackages = sync.OnceValues(func() (checkout, error) {
		c, err := first()
		if err != nil {
			return c, err
		}
		return c, c.make(nil, "packages")
	})
	secondPackages = sync.OnceValues(func() (checkout, error) {
		c, err := second()
		if err != nil {
			return c, err
		}
		return c, c.make([]string{"TZ=Asia/Tokyo", "HOSTNAME=elsewhere", "SOURCE_DATE_EPOCH=1"}, "packages")
	})
)

func packages(t *testing.T) checkout {
	t.Helper()
	release(t)
	c, err := firstPackages()
	require.NoError(t, err)
	return c
}

// debFile and rpmFile return the packages for this machine.
func debFile(c checkout) string { return c.path("dist", "millrace_0.98.7_"+runtime.GOARCH+".deb") }

func rpmFile(c checkout) string {
	machine := map[string]string{"amd64": "x86_64", "arm64": "aarch64"}[runtime.GOARCH]
	return c.path("dist", "millrace-0.98.7-1."+machine+".rpm")
}

func TestTwoBuildsAreOnePackage(t *testing.T) {
	a := packages(t)
	b, err := secondPackages()
	require.NoError(t, err)
	for _, name := range []string{
		"millrace_0.98.7_amd64.deb", "millrace_0.98.7_arm64.deb", "millrace-0.98.7-1.x86_64.rpm", "millrace-0.98.7-1.aarch64.rpm",
	} {
		require.Equal(t, hashOf(t, a.path("dist", name)), hashOf(t, b.path("dist", name)), name)
	}
}

// toolPath finds a tool of a distribution, and skips the test where it is missing. .ci/run installs all of them.
func toolPath(t *testing.T, name string) string {
	t.Helper()
	tool, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("needs %s", name)
	}
	return tool
}

// output runs a tool of a distribution.
func output(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), toolPath(t, name), args...)
	cmd.Env = append(os.Environ(), "TZ=UTC", "LC_ALL=C.UTF-8")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s %v: %s", name, args, out)
	return string(out)
}

// installed are the files of the package of dpkg, and their modes.
var installed = map[string]string{
	"/etc/millrace/millrace.yaml":                         "-rw-r--r--",
	"/usr/bin/millrace":                                   "-rwxr-xr-x",
	"/usr/lib/systemd/system/millrace.service":            "-rw-r--r--",
	"/usr/lib/systemd/system/millrace@.service":           "-rw-r--r--",
	"/usr/share/bash-completion/completions/millrace":     "-rw-r--r--",
	"/usr/share/doc/millrace/changelog.gz":                "-rw-r--r--",
	"/usr/share/doc/millrace/copyright":                   "-rw-r--r--",
	"/usr/share/fish/vendor_completions.d/millrace.fish":  "-rw-r--r--",
	"/usr/share/man/man1/millrace.1.gz":                   "-rw-r--r--",
	"/usr/share/man/man1/millrace-campaign-publish.1.gz":  "-rw-r--r--",
	"/usr/share/man/man1/millrace-deadletter-replay.1.gz": "-rw-r--r--",
	"/usr/share/zsh/vendor-completions/_millrace":         "-rw-r--r--",
}

var listed = regexp.MustCompile(`(?m)^(\S+) (\S+) +\d+ (\S+ \S+) \.(/\S*)$`)

func TestThePackageOfDpkg(t *testing.T) {
	file := debFile(packages(t))
	found := map[string]string{}
	for _, row := range listed.FindAllStringSubmatch(output(t, "dpkg-deb", "--contents", file), -1) {
		require.Equal(t, "root/root", row[2], row[4])
		require.Equal(t, "2026-01-02 03:04", row[3], "the time of the commit: %s", row[4])
		found[row[4]] = row[1]
	}
	for name, mode := range installed {
		require.Equal(t, mode, found[name], name)
	}
	require.Equal(t, "/etc/millrace/millrace.yaml\n", output(t, "dpkg-deb", "--info", file, "conffiles"))
	control := output(t, "dpkg-deb", "--info", file, "control")
	for _, line := range []string{"Package: millrace\n", "Version: 0.98.7\n", "Architecture: " + runtime.GOARCH + "\n", "Maintainer: "} {
		require.Contains(t, control, line)
	}
}

// dpkg runs it on a system that is a folder.
func dpkg(t *testing.T, root string, args ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can install a package, also into a folder")
	}
	output(t, "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--log=" + filepath.Join(root, "dpkg.log")}, args...)...)
}

// nextVersion repacks a package as 0.99.0, with other settings and another unit.
func nextVersion(t *testing.T, file string) string {
	t.Helper()
	dir, next := filepath.Join(t.TempDir(), "next"), filepath.Join(t.TempDir(), "next.deb")
	output(t, "dpkg-deb", "--raw-extract", file, dir)
	for name, change := range map[string][2]string{
		"DEBIAN/control":                          {"Version: 0.98.7", "Version: 0.99.0"},
		"etc/millrace/millrace.yaml":              {"profile: production", "profile: staging"},
		"usr/lib/systemd/system/millrace.service": {"WatchdogSec=30s", "WatchdogSec=31s"},
	} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		changed := strings.Replace(string(text), change[0], change[1], 1)
		require.NotEqual(t, string(text), changed, name)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(changed), 0o600))
	}
	output(t, "dpkg-deb", "-Znone", "--build", dir, next)
	return next
}

// contentOf returns the text of a file.
func contentOf(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	return string(text)
}

func TestDpkgInstallsUpgradesAndRemovesThePackage(t *testing.T) {
	file, root := debFile(packages(t)), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg/updates"), 0o755))
	require.NoError(t, os.MkdirAll(filepath.Join(root, "var/lib/dpkg/info"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(root, "var/lib/dpkg/status"), nil, 0o600))
	settings, unit := filepath.Join(root, "etc/millrace/millrace.yaml"), filepath.Join(root, "usr/lib/systemd/system/millrace.service")

	dpkg(t, root, "--install", file)
	require.Contains(t, output(t, filepath.Join(root, "usr/bin/millrace"), "version"), "millrace v0.98.7")
	require.Contains(t, contentOf(t, settings), "profile: production")

	const edited = "profile: router\n"
	require.NoError(t, os.WriteFile(settings, []byte(edited), 0o600))
	dpkg(t, root, "--force-confdef", "--install", nextVersion(t, file)) // the default answer
	require.Equal(t, edited, contentOf(t, settings), "the operator's settings stay")
	require.Contains(t, contentOf(t, settings+".dpkg-dist"), "profile: staging", "and the new ones are beside them")
	require.Contains(t, contentOf(t, unit), "WatchdogSec=31s")

	dpkg(t, root, "--remove", "millrace")
	require.NoFileExists(t, unit)
	require.NoFileExists(t, filepath.Join(root, "usr/bin/millrace"))
	require.Equal(t, edited, contentOf(t, settings))

	dpkg(t, root, "--purge", "millrace")
	require.NoDirExists(t, filepath.Join(root, "etc/millrace"))
}

func TestThePackageOfRpm(t *testing.T) {
	in, err := os.Open(rpmFile(packages(t)))
	require.NoError(t, err)
	defer in.Close()
	packed, err := rpmutils.ReadRpm(in)
	require.NoError(t, err)
	name, err := packed.Header.GetNEVRA()
	require.NoError(t, err)
	require.Equal(t, "millrace", name.Name)
	require.Equal(t, "0.98.7", name.Version)
	license, err := packed.Header.GetString(rpmutils.LICENSE)
	require.NoError(t, err)
	require.Equal(t, "Apache-2.0", license)
	scripts := map[int]string{rpmutils.POSTIN: "postinstall.sh", rpmutils.PREUN: "preremove.sh", rpmutils.POSTUN: "postremove.sh"}
	for tag, file := range scripts {
		script, err := packed.Header.GetString(tag)
		require.NoError(t, err)
		text, err := os.ReadFile(filepath.Join("packages/scripts", file))
		require.NoError(t, err)
		require.Equal(t, strings.TrimSpace(string(text)), strings.TrimSpace(script), file)
	}
	files, err := packed.Header.GetFiles()
	require.NoError(t, err)
	const config, noReplace = 1, 1 << 4 // RPMFILE_CONFIG, RPMFILE_NOREPLACE
	found := map[string]bool{}
	for _, f := range files {
		found[f.Name()] = true
		require.Equal(t, "root", f.UserName(), f.Name())
		require.Equal(t, 1767323045, f.Mtime(), "the time of the commit: %s", f.Name())
		if f.Name() == "/etc/millrace/millrace.yaml" {
			require.Equal(t, config|noReplace, f.Flags()&(config|noReplace), "an upgrade keeps it")
		}
	}
	for name := range installed {
		if strings.HasPrefix(name, "/usr/share/doc/") || strings.HasPrefix(name, "/usr/share/zsh/") {
			continue // they are elsewhere
		}
		require.True(t, found[name], name)
	}
	require.True(t, found["/usr/share/licenses/millrace/LICENSE"])
	require.True(t, found["/usr/share/zsh/site-functions/_millrace"])
}

// rpmIn runs rpm on a system that is a folder. Its scripts run there, so the folder needs a shell.
func rpmIn(t *testing.T, root string, args ...string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can install a package, also into a folder")
	}
	output(t, "rpm", append([]string{"--root=" + root, "--dbpath=/var/lib/rpm", "--nodeps", "--nosignature"}, args...)...)
}

// copyShell copies sh into a folder, with its libraries.
func copyShell(t *testing.T, root string) {
	t.Helper()
	const script = `sh=$(command -v sh)
mkdir -p "$1/bin" "$1/dev"
cp -L "$sh" "$1/bin/sh"
ldd "$sh" | grep -o '/[^ )]*' | while read -r file; do mkdir -p "$1$(dirname "$file")" && cp -L "$file" "$1$file"; done`
	output(t, "sh", "-euc", script, "sh", root)
}

// nextRPM packs the files of a package as 0.99.0, with other settings and another unit.
func nextRPM(t *testing.T, file string) string {
	t.Helper()
	in, err := os.Open(file)
	require.NoError(t, err)
	defer in.Close()
	old, err := rpmutils.ReadRpm(in)
	require.NoError(t, err)
	dir := t.TempDir()
	require.NoError(t, old.ExpandPayload(dir))
	packed, err := old.Header.GetFiles()
	require.NoError(t, err)
	scripts := "packages/scripts/"
	info := &nfpm.Info{
		Name: "millrace", Arch: runtime.GOARCH, Platform: "linux", Version: "v0.99.0", Description: "Millrace", License: "Apache-2.0", Maintainer: "Nobody <nobody@example.com>",
		Overridables: nfpm.Overridables{Scripts: nfpm.Scripts{PostInstall: scripts + "postinstall.sh", PreRemove: scripts + "preremove.sh", PostRemove: scripts + "postremove.sh"}},
	}
	changes := map[string][2]string{
		"/etc/millrace/millrace.yaml":              {"profile: production", "profile: staging"},
		"/usr/lib/systemd/system/millrace.service": {"WatchdogSec=30s", "WatchdogSec=31s"},
	}
	for _, f := range packed {
		source := filepath.Join(dir, f.Name())
		c := &files.Content{Source: source, Destination: f.Name(), FileInfo: &files.ContentFileInfo{Mode: os.FileMode(f.Mode()) & os.ModePerm}}
		if change, found := changes[f.Name()]; found {
			text, err := os.ReadFile(source)
			require.NoError(t, err)
			changed := strings.Replace(string(text), change[0], change[1], 1)
			require.NotEqual(t, string(text), changed, f.Name())
			require.NoError(t, os.WriteFile(source, []byte(changed), 0o600))
		}
		if strings.HasPrefix(f.Name(), "/etc/") {
			c.Type = files.TypeConfigNoReplace
		}
		info.Contents = append(info.Contents, c)
	}
	next := filepath.Join(t.TempDir(), "next.rpm")
	out, err := os.Create(next)
	require.NoError(t, err)
	defer out.Close()
	require.NoError(t, rpm.DefaultRPM.Package(nfpm.WithDefaults(info), out))
	return next
}

func TestRpmInstallsUpgradesAndRemovesThePackage(t *testing.T) {
	toolPath(t, "rpm") // before anything is built
	file, root := rpmFile(packages(t)), t.TempDir()
	copyShell(t, root)
	settings, unit := filepath.Join(root, "etc/millrace/millrace.yaml"), filepath.Join(root, "usr/lib/systemd/system/millrace.service")

	rpmIn(t, root, "--install", file)
	require.Contains(t, output(t, filepath.Join(root, "usr/bin/millrace"), "version"), "millrace v0.98.7")
	require.Contains(t, contentOf(t, settings), "profile: production")
	rpmIn(t, root, "--verify", "millrace") // modes, owners and hashes are those of the package

	const edited = "profile: router\n"
	require.NoError(t, os.WriteFile(settings, []byte(edited), 0o600))
	rpmIn(t, root, "--upgrade", nextRPM(t, file))
	require.Equal(t, edited, contentOf(t, settings), "the operator's settings stay")
	require.Contains(t, contentOf(t, settings+".rpmnew"), "profile: staging", "and the new ones are beside them")
	require.Contains(t, contentOf(t, unit), "WatchdogSec=31s")
	require.FileExists(t, filepath.Join(root, "usr/bin/millrace"), "the end of the old version takes nothing of the new one")

	rpmIn(t, root, "--erase", "millrace")
	require.NoFileExists(t, unit)
	require.NoFileExists(t, filepath.Join(root, "usr/bin/millrace"))
	require.NoFileExists(t, settings)
	require.Equal(t, edited, contentOf(t, settings+".rpmsave"), "edited settings are kept")
}

// The settings of the package lack nothing but the addresses and the secrets of the operator.
func TestTheSettingsOfThePackageAreValid(t *testing.T) {
	c, dir := packages(t), t.TempDir()
	for _, name := range directives(t, unitFile)["LoadCredential"] {
		secret := "secret"
		if strings.HasSuffix(name, "-dsn") {
			secret = "postgres://millrace:secret@db.example.com/millrace?sslmode=verify-full"
		}
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(secret+"\n"), 0o600))
	}
	binary := c.path("dist", "linux-"+runtime.GOARCH, "millrace")
	validate := exec.CommandContext(t.Context(), binary, "validate", "--config", "systemd/millrace.yaml")
	validate.Env = []string{"CREDENTIALS_DIRECTORY=" + dir}
	out, err := validate.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "The settings are valid (profile production")

	validate = exec.CommandContext(t.Context(), binary, "validate", "--config", "systemd/millrace.yaml")
	validate.Env = []string{"CREDENTIALS_DIRECTORY=" + t.TempDir()}
	out, err = validate.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "millrace.ledger-dsn: no such file or directory")
}
