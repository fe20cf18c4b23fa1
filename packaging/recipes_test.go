package packaging_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// ownEtc runs a script as root in a copy of /etc, on which the machine's own does not depend.
const ownEtc = `
cp -a /etc "$1/etc"
install -D systemd/millrace.yaml "$1/etc/millrace/millrace.yaml"
mount --bind "$1/etc" /etc
exec bash -euo pipefail -c "$2"
`

// A unit's user, which exists only while it runs, has its own ids and the groups of SupplementaryGroups=. With
// PrivateUsers= no other group has a number there, and the right of the group is that of the kernel all the same.
const asTheUnit = `
reads() { setpriv --reuid 61190 --regid 61190 "$@" unshare --user --map-user=61190 cat /etc/millrace/secrets/redis-password; }
reads --groups "$(getent group millrace-secrets | cut -d : -f 3)"
! reads --clear-groups
stat --format '%U %G %a' /etc/millrace/secrets/redis-password
`

// The commands of the page about secrets do what it says, so an operator can copy them.
func TestTheRecipesForSecretsBesideSystemd(t *testing.T) {
	c := release(t)
	dir := t.TempDir()
	require.NoError(t, os.Symlink(c.path("dist", "linux-"+runtime.GOARCH, "millrace"), filepath.Join(dir, "millrace")))
	page, err := os.ReadFile("../docs/systemd.md")
	require.NoError(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Credentials\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(section, -1)
	require.Len(t, blocks, 2)
	const withoutCredentials = "! millrace validate --config /etc/millrace/millrace.yaml\n"
	script := withoutCredentials + blocks[0][1] + blocks[1][1] + blocks[1][1] + asTheUnit
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "bash", "-euc", ownEtc, "bash", dir, script)
	cmd.Env = append(os.Environ(), "PATH="+dir+":/usr/sbin:"+os.Getenv("PATH"), "HOME="+dir)
	if out, err := exec.CommandContext(t.Context(), "unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("needs root on Linux, with the right to mount: %v %s", err, out)
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "root for a command beside it (CREDENTIALS_DIRECTORY=/etc/credstore), is not set")
	require.Contains(t, string(out), "The settings are valid (profile production")
	require.Contains(t, string(out), "\n…\n", "the unit reads the file")
	require.Contains(t, string(out), "redis-password: Permission denied", "and nobody without the group")
	require.Contains(t, string(out), "root millrace-secrets 640\n")
}
