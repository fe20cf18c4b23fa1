package main

import (
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/files"
	"github.com/goreleaser/nfpm/v2/rpm"
)

const (
	maintainer = "The Millrace maintainers <millrace-io@users.noreply.github.com>"
	homepage   = "https://github.com/millrace-io/millrace"
)

// pack writes the packages of one binary into dir.
func pack(dir, binary string, out io.Writer) error {
	info, err := describe(binary)
	if err != nil {
		return err
	}
	temporary, err := os.MkdirTemp("", "millrace-packages-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temporary)
	if info.Contents, err = contents(dir, binary, temporary, info); err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		packager := map[string]nfpm.Packager{"deb": deb.Default, "rpm": rpm.DefaultRPM}[format]
		var text bytes.Buffer
		// A packager changes what it gets.
		copied := *info
		copied.Contents = nil
		for _, c := range info.Contents {
			if c.Packager == "" || c.Packager == format {
				own := *c
				copied.Contents = append(copied.Contents, &own)
			}
		}
		if err := packager.Package(nfpm.WithDefaults(&copied), &text); err != nil {
			return fmt.Errorf("%s: %w", format, err)
		}
		file := filepath.Join(dir, packager.ConventionalFileName(&copied))
		if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil { //nolint:gosec // a public file
			return err
		}
		fmt.Fprintln(out, file)
	}
	return nil
}

// describe returns what both packages say of a binary, as its build information has it.
func describe(binary string) (*nfpm.Info, error) {
	build, err := buildinfo.ReadFile(binary)
	if err != nil {
		return nil, fmt.Errorf("read build information: %w", err)
	}
	info := &nfpm.Info{
		Name: "millrace", Platform: "linux", Section: "net", Priority: "optional", License: "Apache-2.0",
		Maintainer: maintainer, Vendor: "Millrace", Homepage: homepage,
		Description: "Event pipeline with Kafka, Redis Streams and a ledger of payouts\n" +
			"Brings events from Kafka to handlers, spreads the work by Redis Streams,\n" +
			"and pays through a ledger, so that a payout is not made twice.",
		Version: build.Main.Version, MTime: time.Unix(0, 0).UTC(), DisableGlobbing: true,
	}
	if info.Version == "(devel)" || info.Version == "" {
		info.Version = "v0.0.0-devel" // built outside of a repository
	}
	system := ""
	for _, s := range build.Settings {
		switch s.Key {
		case "GOOS":
			system = s.Value
		case "GOARCH":
			info.Arch = s.Value
		case "CGO_ENABLED":
			if s.Value != "0" {
				return nil, fmt.Errorf("needs libraries of its builder, want a static binary: build it with CGO_ENABLED=0")
			}
		case "vcs.time":
			if info.MTime, err = time.Parse(time.RFC3339, s.Value); err != nil {
				return nil, fmt.Errorf("vcs.time: %w", err)
			}
		}
	}
	if system != "linux" {
		return nil, fmt.Errorf("built for %s/%s, want linux", system, info.Arch)
	}
	info.Recommends = []string{"ca-certificates"}
	info.RPM.BuildHost = "localhost"
	info.RPM.Summary, _, _ = strings.Cut(info.Description, "\n")
	info.Scripts = nfpm.Scripts{
		PostInstall: "packages/scripts/postinstall.sh", PreRemove: "packages/scripts/preremove.sh", PostRemove: "packages/scripts/postremove.sh",
	}
	return info, nil
}

// contents returns the files of both packages. Those that are not in the repository are written into
// temporary.
func contents(dir, binary, temporary string, info *nfpm.Info) (files.Contents, error) {
	var list files.Contents
	add := func(source, destination string, mode os.FileMode) *files.Content {
		c := &files.Content{Source: source, Destination: destination, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: info.MTime}}
		list = append(list, c)
		return c
	}
	add(binary, "/usr/bin/millrace", 0o755)
	add("systemd/millrace.service", "/usr/lib/systemd/system/millrace.service", 0o644)
	add("systemd/millrace@.service", "/usr/lib/systemd/system/millrace@.service", 0o644)
	add("systemd/millrace.yaml", "/etc/millrace/millrace.yaml", 0o644).Type = files.TypeConfigNoReplace
	completions := filepath.Join(dir, "completions")
	add(filepath.Join(completions, "millrace.bash"), "/usr/share/bash-completion/completions/millrace", 0o644)
	add(filepath.Join(completions, "millrace.fish"), "/usr/share/fish/vendor_completions.d/millrace.fish", 0o644)
	add(filepath.Join(completions, "millrace.zsh"), "/usr/share/zsh/vendor-completions/_millrace", 0o644).Packager = "deb"
	add(filepath.Join(completions, "millrace.zsh"), "/usr/share/zsh/site-functions/_millrace", 0o644).Packager = "rpm"
	add("packages/copyright", "/usr/share/doc/millrace/copyright", 0o644).Packager = "deb"
	license := add("../LICENSE", "/usr/share/licenses/millrace/LICENSE", 0o644)
	license.Packager, license.Type = "rpm", files.TypeRPMLicense

	pages, err := filepath.Glob(filepath.Join(dir, "man", "*.1"))
	if err == nil && len(pages) == 0 {
		err = fmt.Errorf("%s has no manual pages: `millrace man` writes them", filepath.Join(dir, "man"))
	}
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return nil, err
		}
		name := filepath.Base(page) + ".gz"
		if err := compress(filepath.Join(temporary, name), text); err != nil {
			return nil, err
		}
		add(filepath.Join(temporary, name), "/usr/share/man/man1/"+name, 0o644)
	}
	version := strings.TrimPrefix(info.Version, "v")
	changes := fmt.Sprintf("millrace (%s) stable; urgency=medium\n\n  * See %s/blob/main/CHANGELOG.md\n\n -- %s  %s\n",
		version, homepage, maintainer, info.MTime.Format(time.RFC1123Z))
	if err := compress(filepath.Join(temporary, "changelog.gz"), []byte(changes)); err != nil {
		return nil, err
	}
	add(filepath.Join(temporary, "changelog.gz"), "/usr/share/doc/millrace/changelog.gz", 0o644).Packager = "deb"
	return list, nil
}

// compress writes text to a file as gzip, which has no name and no time.
func compress(file string, text []byte) error {
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(text); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o600)
}
