package packaging_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"helm.sh/helm/v3/pkg/chart/loader"
)

// Between two releases, and with changes that are not committed, the version is none that git describes.
func TestTheChartAsksForTheImageOfItsCheckout(t *testing.T) {
	c := release(t)
	c, err := newCheckout(`git clone -q --no-tags "$1" "$2"`, c.dir, filepath.Join(workDir, "untagged"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(c.path("unreleased"), nil, 0o600))
	require.NoError(t, c.make(nil, "image", "chart", "PLATFORMS=linux/"+runtime.GOARCH))
	_, named := index(t, c)
	name := named.Annotations["org.opencontainers.image.ref.name"]
	require.Regexp(t, `^v0\.0\.0-20260102030405-[0-9a-f]{12}-dirty$`, name, "a registry takes it")
	chart, err := loader.Load(c.path("dist/chart/millrace"))
	require.NoError(t, err)
	require.Equal(t, name, chart.AppVersion())
	require.Equal(t, name, "v"+chart.Metadata.Version)
}
