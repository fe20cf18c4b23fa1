package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/millrace-io/millrace/packaging/tag"
)

const (
	user    = "65532:65532" // the number of distroless' nonroot; Kubernetes checks runAsNonRoot by it
	program = "/usr/bin/millrace"
	source  = "https://github.com/millrace-io/millrace"
)

// write replaces the layout in dir with an index of one image per binary, and returns the digest of
// the index. It leaves a folder alone that holds something else.
func write(dir string, binaries []binary) (v1.Hash, error) {
	index, err := makeIndex(binaries)
	if err != nil {
		return v1.Hash{}, err
	}
	if left, err := os.ReadDir(dir); err == nil && len(left) > 0 {
		if _, err := os.Stat(filepath.Join(dir, "oci-layout")); err != nil {
			return v1.Hash{}, fmt.Errorf("%s holds something other than an OCI layout: remove it, or choose another folder", dir)
		}
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return v1.Hash{}, err
	}
	if err := os.RemoveAll(dir); err != nil {
		return v1.Hash{}, err
	}
	to, err := layout.Write(dir, empty.Index)
	if err != nil {
		return v1.Hash{}, err
	}
	// Tools find the image in the layout by this name: skopeo copy oci:dist/image:TAG.
	name := layout.WithAnnotations(map[string]string{"org.opencontainers.image.ref.name": tag.Of(binaries[0].version)})
	if err := to.AppendIndex(index, name); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// makeIndex returns the index of the images, in the order of the binaries.
func makeIndex(binaries []binary) (v1.ImageIndex, error) {
	base, err := layerOf(baseFiles())
	if err != nil {
		return nil, err
	}
	var images []mutate.IndexAddendum
	for _, b := range binaries {
		if first := binaries[0]; b.version != first.version || b.commit != first.commit {
			return nil, fmt.Errorf("%s is %s of commit %q, but %s is %s of commit %q: build them together",
				b.file, b.version, b.commit, first.file, first.version, first.commit)
		}
		img, err := makeImage(base, b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", b.file, err)
		}
		images = append(images, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: b.os, Architecture: b.arch}},
		})
	}
	index := mutate.AppendManifests(mutate.IndexMediaType(empty.Index, types.OCIImageIndex), images...)
	annotated, ok := mutate.Annotations(index, labels(binaries[0])).(v1.ImageIndex)
	if !ok {
		return nil, errors.New("an annotated index is no index")
	}
	return encodeAsCopied(annotated)
}

type embeddedIndex = v1.ImageIndex // the interface has a method of its own name

// copiedIndex is an index with the bytes that tools write when they read an index and encode it again, as
// skopeo does in a copy of all platforms, so that its digest is the same in a registry.
type copiedIndex struct {
	embeddedIndex
	text []byte
}

func encodeAsCopied(index v1.ImageIndex) (v1.ImageIndex, error) {
	text, err := index.RawManifest()
	if err != nil {
		return nil, err
	}
	var manifest ocispec.Index
	if err := json.Unmarshal(text, &manifest); err != nil {
		return nil, err
	}
	for i := range manifest.Manifests {
		manifest.Manifests[i].ArtifactType = "" // tools of before OCI 1.1 leave it out, and it says nothing of an image
	}
	if text, err = json.Marshal(manifest); err != nil {
		return nil, err
	}
	return copiedIndex{index, text}, nil
}

func (c copiedIndex) RawManifest() ([]byte, error) { return c.text, nil }

func (c copiedIndex) Size() (int64, error) { return int64(len(c.text)), nil }

func (c copiedIndex) Digest() (v1.Hash, error) {
	digest, _, err := v1.SHA256(bytes.NewReader(c.text))
	return digest, err
}

func (c copiedIndex) IndexManifest() (*v1.IndexManifest, error) {
	return v1.ParseIndexManifest(bytes.NewReader(c.text))
}

func makeImage(base v1.Layer, b binary) (v1.Image, error) {
	own, err := layerOf(ownFiles(b))
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: b.made}
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err = mutate.Append(img,
		mutate.Addendum{Layer: base, History: v1.History{Created: created, CreatedBy: "CA roots, user millrace, /tmp"}},
		mutate.Addendum{Layer: own, History: v1.History{Created: created, CreatedBy: program}})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = b.os, b.arch, created
	config.Config = v1.Config{
		User:       user,
		Env:        []string{"PATH=/usr/bin"},
		Entrypoint: []string{program},
		Cmd:        []string{"run"},
		Labels:     labels(b),
		StopSignal: "SIGTERM",
	}
	return mutate.ConfigFile(img, config)
}

// labels describe the image, in the keys of the OCI image specification.
func labels(b binary) map[string]string {
	const key = "org.opencontainers.image."
	all := map[string]string{
		key + "title":         "millrace",
		key + "description":   "Event pipeline: Kafka in, Redis Streams to spread the work, and a ledger of payouts",
		key + "url":           source,
		key + "source":        source,
		key + "documentation": source + "/tree/main/docs",
		key + "licenses":      "Apache-2.0",
		key + "version":       b.version,
	}
	if b.commit != "" {
		all[key+"revision"] = b.commit
		all[key+"created"] = b.made.UTC().Format(time.RFC3339)
	}
	return all
}

// file is an entry of a layer. A name that ends in a slash is a folder.
type file struct {
	name    string
	mode    int64
	content []byte
}

// baseFiles are what a program expects of its system. /tmp is for `demo` and for commands that sort
// more than fits into memory.
func baseFiles() []file {
	return []file{
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, content: []byte("root:x:0:\nmillrace:x:65532:\n")},
		{name: "etc/passwd", mode: 0o644, content: []byte("root:x:0:0:root:/:/sbin/nologin\nmillrace:x:65532:65532:millrace:/tmp:/sbin/nologin\n")},
		{name: "etc/ssl/", mode: 0o755},
		{name: "etc/ssl/certs/", mode: 0o755},
		{name: "etc/ssl/certs/ca-certificates.crt", mode: 0o644, content: roots()},
		{name: "tmp/", mode: 0o1777},
	}
}

// ownFiles are the binary and its folders.
func ownFiles(b binary) []file {
	return []file{{name: "usr/", mode: 0o755}, {name: "usr/bin/", mode: 0o755}, {name: program[1:], mode: 0o755, content: b.content}}
}

// writeRoot writes the files of the image of one binary into a folder, which must not exist. A Dockerfile
// copies them.
func writeRoot(dir string, b binary) error {
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	for _, f := range append(baseFiles(), ownFiles(b)...) {
		path := filepath.Join(dir, f.name)
		if f.name[len(f.name)-1] == '/' {
			if err := os.Mkdir(path, 0o755); err != nil {
				return err
			}
		} else if err := os.WriteFile(path, f.content, 0o600); err != nil {
			return err
		}
		mode := fs.FileMode(f.mode).Perm() //nolint:gosec // twelve bits
		if f.mode&0o1000 != 0 {
			mode |= fs.ModeSticky
		}
		if err := os.Chmod(path, mode); err != nil { // Mkdir obeys the mask of the process
			return err
		}
	}
	return nil
}

// roots returns Mozilla's certificate authorities as PEM. Those that are trusted within limits only,
// such as for older certificates, are left out, because PEM can't express the limits.
func roots() []byte {
	var all bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&all, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer takes everything
		}
	}
	return all.Bytes()
}

// layerOf returns a layer with the files, which belong to root and have no time.
func layerOf(files []file) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, f := range files {
		header := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.content)), Typeflag: tar.TypeReg, ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
		if f.name[len(f.name)-1] == '/' {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.BestCompression), tarball.WithCompressedCaching)
}
