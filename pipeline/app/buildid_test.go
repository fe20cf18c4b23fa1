package app

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Builds of a tree with changes, or outside of a clone, have one version and are told apart by their build id.
func TestBuildsWithoutAVersionAreToldApart(t *testing.T) {
	t.Parallel()
	require.Equal(t, "end-1", buildID(strings.NewReader("\x7fELF\xff Go build ID: \"a/b/c/end-1\"\n \xff")))
	require.Empty(t, buildID(strings.NewReader("no program")))
	require.Empty(t, buildID(strings.NewReader("\xff Go build ID: \"cut")))

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
