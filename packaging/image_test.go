package packaging_test

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"github.com/stretchr/testify/require"
)

// index returns the index of the images in the layout of a checkout, with its descriptor there.
func index(t *testing.T, c checkout) (v1.ImageIndex, v1.Descriptor) {
	t.Helper()
	top, err := layout.ImageIndexFromPath(c.path("dist/image"))
	require.NoError(t, err)
	manifest, err := top.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 1)
	images, err := top.ImageIndex(manifest.Manifests[0].Digest)
	require.NoError(t, err)
	return images, manifest.Manifests[0]
}

// images returns the image of each platform.
func images(t *testing.T, c checkout) map[string]v1.Image {
	t.Helper()
	list, _ := index(t, c)
	manifest, err := list.IndexManifest()
	require.NoError(t, err)
	all := map[string]v1.Image{}
	for _, m := range manifest.Manifests {
		img, err := list.Image(m.Digest)
		require.NoError(t, err)
		all[m.Platform.OS+"-"+m.Platform.Architecture] = img
	}
	return all
}

func TestTheImageDescribesItself(t *testing.T) {
	c := release(t)
	list, named := index(t, c)
	require.NoError(t, validate.Index(list), "each digest and size is that of its content")
	require.Equal(t, types.OCIImageIndex, named.MediaType)
	require.Equal(t, map[string]string{"org.opencontainers.image.ref.name": tag}, named.Annotations)
	labels := map[string]string{
		"org.opencontainers.image.title":         "millrace",
		"org.opencontainers.image.description":   "Event pipeline: Kafka in, Redis Streams to spread the work, and a ledger of payouts",
		"org.opencontainers.image.url":           "https://github.com/millrace-io/millrace",
		"org.opencontainers.image.source":        "https://github.com/millrace-io/millrace",
		"org.opencontainers.image.documentation": "https://github.com/millrace-io/millrace/tree/main/docs",
		"org.opencontainers.image.licenses":      "Apache-2.0",
		"org.opencontainers.image.version":       tag,
		"org.opencontainers.image.revision":      c.commit,
		"org.opencontainers.image.created":       "2026-01-02T03:04:05Z",
	}
	manifest, err := list.IndexManifest()
	require.NoError(t, err)
	require.Equal(t, labels, manifest.Annotations)
	all := images(t, c)
	require.Len(t, all, len(platforms))
	for _, platform := range platforms {
		img := all[platform]
		require.NotNil(t, img, platform)
		media, err := img.MediaType()
		require.NoError(t, err)
		require.Equal(t, types.OCIManifestSchema1, media)
		config, err := img.ConfigFile()
		require.NoError(t, err)
		require.Equal(t, platform, config.OS+"-"+config.Architecture)
		require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), config.Created.UTC())
		require.Equal(t, v1.Config{
			User: "65532:65532", Env: []string{"PATH=/usr/bin"}, Entrypoint: []string{"/usr/bin/millrace"}, Cmd: []string{"run"},
			Labels: labels, StopSignal: "SIGTERM",
		}, config.Config)
		root := unpack(t, img)
		require.Equal(t, hashOf(t, c.path("dist", platform, "millrace")), hashOf(t, filepath.Join(root, "usr/bin/millrace")), platform)
	}
}

// unpack extracts an image as a container runtime does, with owners and rights where it may set them.
func unpack(t *testing.T, img v1.Image) (root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "root")
	require.NoError(t, os.Mkdir(root, 0o755))
	for dir := root; dir != workDir && dir != "/" && dir != os.TempDir(); dir = filepath.Dir(dir) {
		require.NoError(t, os.Chmod(dir, 0o755)) // the user of the image must reach it
	}
	content := mutate.Extract(img)
	defer content.Close()
	cmd := exec.CommandContext(t.Context(), "tar", "--extract", "--numeric-owner", "--preserve-permissions", "--directory", root)
	cmd.Stdin = content
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	_, err = io.Copy(io.Discard, content)
	require.NoError(t, err)
	return root
}

// filesOf returns what an unpacked image has: rights, owner and content by path.
func filesOf(t *testing.T, root string) map[string]string {
	t.Helper()
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		require.NoError(t, err)
		owner := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%s %d:%d", info.Mode(), owner.Uid, owner.Gid)
		if info.Mode().IsRegular() {
			line += " " + hashOf(t, path)
		}
		found[must(filepath.Rel(root, path))(t)] = line
		return nil
	}))
	return found
}

// Buildah builds the second stage of the Dockerfile over what the first one makes, which needs a registry for its
// compiler.
func TestTheDockerfileBuildsTheFilesOfTheImage(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("buildah"); err != nil || os.Getuid() != 0 {
		t.Skipf("needs root and buildah: %v", err)
	}
	c, dir := release(t), t.TempDir()
	run := func(name string, args ...string) {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir, cmd.Env = c.path("packaging"), append(os.Environ(), "GOWORK=off")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dist"), 0o755))
	run("go", "run", "./image", "-root", filepath.Join(dir, "dist/root"), c.path("dist", "linux-"+runtime.GOARCH, "millrace"))
	_, second, found := strings.Cut(string(must(os.ReadFile("../Dockerfile"))(t)), "\nFROM scratch\n")
	require.True(t, found)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte("FROM scratch\n"+second), 0o600))
	store := []string{"--root", filepath.Join(dir, "store"), "--runroot", filepath.Join(dir, "run"), "--storage-driver", "vfs"}
	run("buildah", append(store, "build", "--isolation", "chroot", "--build-context", "build="+dir, "--tag", "built", dir)...)
	run("buildah", append(store, "push", "--quiet", "built", "oci:"+filepath.Join(dir, "oci")+":built")...)

	top := must(layout.ImageIndexFromPath(filepath.Join(dir, "oci")))(t)
	manifest := must(top.IndexManifest())(t)
	require.Len(t, manifest.Manifests, 1)
	built, made := must(top.Image(manifest.Manifests[0].Digest))(t), images(t, c)["linux-"+runtime.GOARCH]
	require.Equal(t, filesOf(t, unpack(t, made)), filesOf(t, unpack(t, built)))
	want, config := must(made.ConfigFile())(t).Config, must(built.ConfigFile())(t).Config
	maps.DeleteFunc(want.Labels, func(key, _ string) bool { // those that depend on the build
		return slices.Contains([]string{"version", "revision", "created"}, strings.TrimPrefix(key, "org.opencontainers.image."))
	})
	delete(config.Labels, "io.buildah.version")
	require.Equal(t, want, config)
}

func TestTheImageHasRootsAndAnAccount(t *testing.T) {
	root := unpack(t, images(t, release(t))["linux-"+runtime.GOARCH])
	text, err := os.ReadFile(filepath.Join(root, "etc/ssl/certs/ca-certificates.crt"))
	require.NoError(t, err)
	var authorities []string
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		certificate, err := x509.ParseCertificate(block.Bytes)
		require.NoError(t, err)
		require.True(t, certificate.IsCA, certificate.Subject)
		authorities = append(authorities, certificate.Subject.CommonName)
	}
	require.Greater(t, len(authorities), 80)
	require.Subset(t, authorities, []string{"ISRG Root X1", "DigiCert Global Root G2", "Amazon Root CA 1"})
	system, err := os.ReadFile(filepath.Join(root, "etc/passwd"))
	require.NoError(t, err)
	require.Contains(t, string(system), "\nmillrace:x:65532:65532:")
	tmp, err := os.Stat(filepath.Join(root, "tmp"))
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|os.ModeSticky|0o777, tmp.Mode())
	found := filesOf(t, root)
	maps.DeleteFunc(found, func(_, line string) bool { return line[0] != '-' })
	require.Equal(t, []string{"etc/group", "etc/passwd", "etc/ssl/certs/ca-certificates.crt", "usr/bin/millrace"},
		slices.Sorted(maps.Keys(found)), "nothing else is in it, such as a shell")
}
