package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/stretchr/testify/require"
)

// build returns a program that does nothing.
func build(t *testing.T, goos, arch string, flags ...string) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module example.com/nothing\n\ngo 1.26\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "main.go"), []byte("package main\n\nfunc main() {}\n"), 0o600))
	cmd := exec.CommandContext(t.Context(), "go", append(append([]string{"build", "-o", "nothing"}, flags...), ".")...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-buildvcs=false -trimpath", "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+arch)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return filepath.Join(dir, "nothing")
}

func image(args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

func TestALayoutIsReplacedAndNothingElse(t *testing.T) {
	t.Parallel()
	file := build(t, "linux", "amd64")
	dir := filepath.Join(t.TempDir(), "new/image")
	code, before, errOut := image("-o", dir, file)
	require.Zero(t, code, errOut)
	require.Regexp(t, `^sha256:[0-9a-f]{64}  .*/new/image  v0\.0\.0-devel  linux/amd64\n$`, before)
	code, after, errOut := image("-o", dir, file)
	require.Zero(t, code, errOut)
	require.Equal(t, before, after, "the same binary, the same digest")
	index, err := layout.ImageIndexFromPath(dir)
	require.NoError(t, err)
	manifest, err := index.IndexManifest()
	require.NoError(t, err)
	require.Len(t, manifest.Manifests, 1)
	require.Equal(t, "v0.0.0-devel", manifest.Manifests[0].Annotations["org.opencontainers.image.ref.name"])

	other := filepath.Join(t.TempDir(), "work")
	require.NoError(t, os.Mkdir(other, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(other, "mine"), nil, 0o600))
	code, _, errOut = image("-o", other, file)
	require.Equal(t, 1, code)
	require.Contains(t, errOut, "holds something other than an OCI layout")
	require.FileExists(t, filepath.Join(other, "mine"))
}

// An index as tools of before OCI 1.1 read it, in the order in which they write it. skopeo encodes an index again
// when it copies all platforms.
type olderIndex struct {
	SchemaVersion int    `json:"schemaVersion"`
	MediaType     string `json:"mediaType,omitempty"`
	Manifests     []struct {
		MediaType   string            `json:"mediaType,omitempty"`
		Digest      string            `json:"digest"`
		Size        int64             `json:"size"`
		URLs        []string          `json:"urls,omitempty"`
		Annotations map[string]string `json:"annotations,omitempty"`
		Platform    *struct {
			Architecture string `json:"architecture"`
			OS           string `json:"os"`
		} `json:"platform,omitempty"`
	} `json:"manifests"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func TestACopyOfTheIndexHasItsDigest(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "image")
	code, out, errOut := image("-o", dir, build(t, "linux", "amd64"), build(t, "linux", "arm64"))
	require.Zero(t, code, errOut)
	digest, _, _ := strings.Cut(out, " ")
	text, err := os.ReadFile(filepath.Join(dir, "blobs", strings.ReplaceAll(digest, ":", "/")))
	require.NoError(t, err)
	var index olderIndex
	require.NoError(t, json.Unmarshal(text, &index))
	require.Len(t, index.Manifests, 2)
	again, err := json.Marshal(index)
	require.NoError(t, err)
	require.Equal(t, string(text), string(again), "a copy by such a tool changes nothing")
}

func TestUnfitBinariesAreRefused(t *testing.T) {
	t.Parallel()
	text := filepath.Join(t.TempDir(), "script")
	require.NoError(t, os.WriteFile(text, []byte("#!/bin/sh\n"), 0o700))
	for name, tc := range map[string]struct{ file, want string }{
		"needs an interpreter": {build(t, "linux", "amd64", "-buildmode=pie"), "dynamically linked, want a static binary"},
		"of another system":    {build(t, "darwin", "arm64"), "built for darwin/arm64, want linux"},
		"no program of Go":     {text, "read build information"},
		"absent":               {filepath.Join(t.TempDir(), "absent"), "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "image")
			code, out, errOut := image("-o", dir, tc.file)
			require.Equal(t, 1, code)
			require.Empty(t, out)
			require.Contains(t, errOut, tc.file+": ")
			require.Contains(t, errOut, tc.want)
			require.NoDirExists(t, dir)
		})
	}
	code, _, errOut := image("-o", t.TempDir())
	require.Equal(t, 2, code)
	require.Contains(t, errOut, "usage: image -o FOLDER BINARY…")
}

// The Dockerfile copies the folder, and `make image` packs the layers.
func TestTheFolderHasTheFilesOfTheImage(t *testing.T) {
	t.Parallel()
	file := build(t, "linux", "amd64")
	root := filepath.Join(t.TempDir(), "root")
	code, _, errOut := image("-root", root, file)
	require.Zero(t, code, errOut)
	want := map[string]string{}
	for _, layer := range stored(t, file) {
		content, err := layer.Uncompressed()
		require.NoError(t, err)
		defer content.Close() //nolint:revive // two layers
		archive := tar.NewReader(content)
		for header, err := archive.Next(); err != io.EOF; header, err = archive.Next() {
			require.NoError(t, err)
			text, err := io.ReadAll(archive)
			require.NoError(t, err)
			want[strings.Trim(header.Name, "/")] = header.FileInfo().Mode().String() + string(text)
		}
	}
	found := map[string]string{}
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := d.Info()
		require.NoError(t, err)
		text := ""
		if !d.IsDir() {
			content, err := os.ReadFile(path)
			require.NoError(t, err)
			text = string(content)
		}
		rel, err := filepath.Rel(root, path)
		found[filepath.ToSlash(rel)] = info.Mode().String() + text
		return err
	}))
	require.Greater(t, len(want), 8)
	require.True(t, maps.Equal(want, found), "%v and %v", slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(found)))
	code, _, errOut = image("-root", root, file)
	require.Equal(t, 1, code)
	require.Contains(t, errOut, "file exists")
	code, _, _ = image("-root", root+"2", file, file)
	require.Equal(t, 2, code)
}

// stored returns the layers of the image of a binary.
func stored(t *testing.T, file string) []v1.Layer {
	t.Helper()
	b, err := inspect(file)
	require.NoError(t, err)
	base, err := layerOf(baseFiles())
	require.NoError(t, err)
	img, err := makeImage(base, b)
	require.NoError(t, err)
	layers, err := img.Layers()
	require.NoError(t, err)
	return layers
}
