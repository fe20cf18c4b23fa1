package app

import (
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Builds of a tree with changes, or outside of a clone, have one version and are told apart by their build id.
func TestBuildsWithoutAVersionAreToldApart(t *testing.T) {
	t.Parallel()
	require.Equal(t, "end-1", buildID(strings.NewReader("\x7fELF\x07\x00\x00\x00\x04\x00\x00\x00Go\x00\x00a/end-1 and more")))
	require.Equal(t, "e", buildID(strings.NewReader("\x07\x00\x00\x00\x04\x00\x00\x00Go\x00\x00a/e")), "a file that is cut")
	require.Empty(t, buildID(strings.NewReader("no program")))
	if runtime.GOOS != "linux" {
		t.Skip("the note is one of ELF")
	}
	self, err := os.Executable()
	require.NoError(t, err)
	whole, err := exec.CommandContext(t.Context(), "go", "tool", "buildid", self).Output()
	require.NoError(t, err)
	id := strings.TrimSpace(string(whole))
	id = id[strings.LastIndex(id, "/")+1:]
	require.NotEmpty(t, id)
	require.Equal(t, id, ownBuildID())
	for version, want := range map[string]string{"(devel)": "(devel)+" + id, "v1.2.3": "v1.2.3"} {
		h := &Host{opts: Options{Name: "mill", Version: version}}
		require.Equal(t, want, h.build().Version)
	}
}
