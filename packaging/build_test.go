package packaging_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

var workDir string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "millrace-packaging-")
	if err == nil {
		err = os.Chmod(dir, 0o755) // the image runs as another user
	}
	if err != nil {
		panic(err)
	}
	workDir = dir
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// checkout is a repository with the files of this one, also those that are not committed yet. It has
// one commit and the tag of a release.
type checkout struct{ dir, commit string }

const (
	tag = "v0.98.7"

	copyFiles = `
cd "$1"
mkdir -p "$2"
git ls-files -z --cached --others --exclude-standard | tar --create --null --files-from=- --ignore-failed-read | tar --extract --directory "$2"
cd "$2"
git init -q
git add --all
git -c commit.gpgsign=false commit -q -m release
git -c tag.gpgsign=false tag "$3"
git rev-parse HEAD
`
	clone = `
git clone -q "$1" "$2"
git -C "$2" rev-parse HEAD
`
)

// newCheckout makes a checkout of the repository at from, by one of the scripts above.
func newCheckout(script, from, dir string) (checkout, error) {
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", script, "bash", from, dir, tag)
	cmd.Env = os.Environ()
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		cmd.Env = append(cmd.Env, "GIT_"+who+"_NAME=a", "GIT_"+who+"_EMAIL=a@example.org", "GIT_"+who+"_DATE=2026-01-02T03:04:05Z")
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	return checkout{dir, strings.TrimSpace(string(out))}, err
}

// make runs a target in the checkout. Variables of a make that runs the tests do not reach it.
func (c checkout) make(env []string, args ...string) error {
	cmd := exec.Command("make", append([]string{"--no-print-directory"}, args...)...)
	cmd.Dir = c.dir
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != "MAKEFLAGS" && name != "MAKELEVEL" && name != "MFLAGS" && name != "GOWORK" {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.Env = append(cmd.Env, env...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (c checkout) path(parts ...string) string {
	return filepath.Join(append([]string{c.dir}, parts...)...)
}

// The image, and with it the binary, is built twice: in folders with other names, and by users with
// other settings.
var (
	first = sync.OnceValues(func() (checkout, error) {
		c, err := newCheckout(copyFiles, "..", filepath.Join(workDir, "a"))
		if err != nil {
			return c, err
		}
		return c, c.make([]string{"GOFLAGS=-buildvcs=false"}, "image")
	})
	second = sync.OnceValues(func() (checkout, error) {
		c, err := first()
		if err != nil {
			return c, err
		}
		if c, err = newCheckout(clone, c.dir, filepath.Join(workDir, "another/folder")); err != nil {
			return c, err
		}
		return c, c.make([]string{"GOFLAGS=-tags=faults", "GOAMD64=v3", "CGO_ENABLED=1", "TZ=Asia/Tokyo", "HOSTNAME=elsewhere"}, "image")
	})
)

func release(t *testing.T) checkout {
	t.Helper()
	if testing.Short() {
		t.Skip("builds the binary for two platforms")
	}
	c, err := first()
	require.NoError(t, err)
	return c
}
