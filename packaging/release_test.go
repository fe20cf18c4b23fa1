package packaging_test

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v3"
)

// releaser is what .goreleaser.yaml says about the build.
type releaser struct {
	Builds []struct {
		Main, Binary     string
		Env, Flags, Tags []string
		Ldflags          []string
		Goos, Goarch     []string
		Goamd64, Goarm64 []string
	}
	Release struct{ Disable bool }
}

func readReleaser(t *testing.T) releaser {
	t.Helper()
	text, err := os.ReadFile("../.goreleaser.yaml")
	require.NoError(t, err)
	var r releaser
	require.NoError(t, yaml.Unmarshal(text, &r))
	require.Len(t, r.Builds, 1)
	return r
}

// words splits a line of a shell that quotes whole words only.
func words(line string) (list []string) {
	for _, word := range regexp.MustCompile(`"[^"]*"|'[^']*'|\S+`).FindAllString(line, -1) {
		list = append(list, strings.TrimSpace(strings.Trim(word, `"';`)))
	}
	return list
}

func TestGoreleaserCompilesAsMakeBinaryDoes(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "make", "-n", "-C", "..", "binary", "PLATFORMS=linux/arm64")
	cmd.Env = append(os.Environ(), "MAKEFLAGS=", "MFLAGS=")
	out, err := cmd.Output()
	require.NoError(t, err)
	line := words(regexp.MustCompile(`GOOS=.* build .*`).FindString(string(out)))
	at := slices.Index(line, "build")
	require.Positive(t, at, "%s", out)

	b := readReleaser(t).Builds[0]
	variables := append([]string{"GOAMD64=" + b.Goamd64[0], "GOARM64=" + b.Goarm64[0]}, b.Env...)
	made := slices.DeleteFunc(slices.Clone(line[:at-1]), func(v string) bool {
		return regexp.MustCompile(`^(GOOS|GOARCH|GOTOOLCHAIN)=`).MatchString(v) // make release sets the last for all
	})
	require.ElementsMatch(t, made, variables)
	var flags []string
	for i := at + 1; line[i] != "-o"; i++ {
		flags = append(flags, line[i])
	}
	require.Equal(t, flags, append(slices.Clone(b.Flags), "-tags", strings.Join(b.Tags, ","), "-ldflags", strings.Join(b.Ldflags, " ")))
	require.Equal(t, b.Main, line[len(line)-1])
	require.True(t, readReleaser(t).Release.Disable, "nothing is published")

	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	var platforms []string
	for _, system := range b.Goos {
		for _, arch := range b.Goarch {
			platforms = append(platforms, system+"/"+arch)
		}
	}
	require.Contains(t, string(makefile), "\nrelease: PLATFORMS = "+strings.Join(platforms, " ")+"\n")
}

// releaseFiles makes what a release has beside the binaries, for the platforms that are already built.
func releaseFiles(t *testing.T) checkout {
	t.Helper()
	c := release(t)
	require.NoError(t, c.make(nil, "release-files", "PLATFORMS=linux/amd64 linux/arm64"))
	return c
}

func TestMaterialsAndNoticesAgreeWithTheBinaries(t *testing.T) {
	c := releaseFiles(t)
	notices, err := os.ReadFile(c.path("dist/THIRD_PARTY_NOTICES"))
	require.NoError(t, err)
	noticed := map[string]bool{}
	for _, title := range regexp.MustCompile(`(?m)^={80}\n(\S+ v?\S+): `).FindAllStringSubmatch(string(notices), -1) {
		noticed[title[1]] = true
	}
	all := map[string]bool{}
	for _, platform := range platforms {
		info, err := buildinfo.ReadFile(c.path("dist", platform, "millrace"))
		require.NoError(t, err)
		linked := []string{"std " + info.GoVersion}
		for _, m := range info.Deps {
			require.Nil(t, m.Replace, m.Path)
			linked = append(linked, m.Path+" "+m.Version)
		}
		require.Greater(t, len(linked), 50)
		text, err := os.ReadFile(c.path("dist", platform, "millrace.cdx.json"))
		require.NoError(t, err)
		var bill struct {
			BomFormat string
			Metadata  struct {
				Component struct{ Name, Version, Purl string }
			}
			Components []struct {
				Name, Version, Purl string
			}
		}
		require.NoError(t, json.Unmarshal(text, &bill))
		require.Equal(t, "CycloneDX", bill.BomFormat)
		require.Equal(t, "github.com/millrace-io/millrace", bill.Metadata.Component.Name)
		require.Equal(t, tag, bill.Metadata.Component.Version)
		system, arch, _ := strings.Cut(platform, "-")
		require.Contains(t, bill.Metadata.Component.Purl, "goarch="+arch+"&goos="+system)
		var listed []string
		for _, part := range bill.Components {
			require.True(t, strings.HasPrefix(part.Purl, "pkg:golang/"+part.Name+"@"), part.Purl)
			listed = append(listed, part.Name+" "+part.Version)
		}
		require.ElementsMatch(t, linked, listed, "%s: each module of the binary, and no other", platform)
		for _, m := range linked {
			all[m] = true
		}
	}
	require.Equal(t, slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(noticed)))
	for shell, want := range map[string]string{"bash": "__start_millrace", "zsh": "#compdef millrace", "fish": "complete -c millrace"} {
		script, err := os.ReadFile(c.path("dist/completions", "millrace."+shell))
		require.NoError(t, err)
		require.Contains(t, string(script), want)
	}
}

// unpacked returns the content of an archive by name, without its folder.
func unpacked(t *testing.T, file string) map[string]string {
	t.Helper()
	packed, err := os.Open(file)
	require.NoError(t, err)
	defer packed.Close()
	plain, err := gzip.NewReader(packed)
	require.NoError(t, err)
	archive := tar.NewReader(plain)
	all := map[string]string{}
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		require.Equal(t, "root", header.Uname)
		text, err := io.ReadAll(archive)
		require.NoError(t, err)
		folder, name, _ := strings.Cut(header.Name, "/")
		require.Equal(t, strings.TrimSuffix(filepath.Base(file), ".tar.gz"), folder)
		all[name] = string(text)
	}
}

// It takes minutes to compile GoReleaser, so the test runs where it is installed.
func TestTheArchivesOfARelease(t *testing.T) {
	if _, err := exec.LookPath("goreleaser"); err != nil {
		t.Skip("goreleaser is not installed: go install github.com/goreleaser/goreleaser/v2@v2.15.4")
	}
	c := release(t)
	// GoReleaser wants to know where the repository comes from. It sends nothing there.
	out, err := exec.CommandContext(t.Context(), "git", "-C", c.dir, "remote", "add", "origin", "https://example.org/millrace.git").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.NoError(t, c.make(nil, "release", "GORELEASER=goreleaser"))
	sums := map[string]string{}
	text, err := os.Open(c.path("dist/release/checksums.txt"))
	require.NoError(t, err)
	defer text.Close()
	for lines := bufio.NewScanner(text); lines.Scan(); {
		sum, name, _ := strings.Cut(lines.Text(), "  ")
		sums[name] = sum
	}
	require.Len(t, sums, 4)
	for _, system := range []string{"linux", "darwin"} {
		for _, arch := range []string{"amd64", "arm64"} {
			name := "millrace_" + strings.TrimPrefix(tag, "v") + "_" + system + "_" + arch + ".tar.gz"
			require.Equal(t, sums[name], hashOf(t, c.path("dist/release", name)), name)
			files := unpacked(t, c.path("dist/release", name))
			require.Equal(t, []string{
				"CHANGELOG.md", "LICENSE", "README.md", "THIRD_PARTY_NOTICES", "completions/millrace.bash", "completions/millrace.fish", "completions/millrace.zsh",
				"millrace", "millrace.cdx.json",
			}, slices.Sorted(maps.Keys(files)))
			sum := sha256.Sum256([]byte(files["millrace"]))
			require.Equal(t, hashOf(t, c.path("dist", system+"-"+arch, "millrace")), hex.EncodeToString(sum[:]), "%s has another binary than make binary", name)
			require.Contains(t, files["millrace.cdx.json"], "goarch="+arch+"\\u0026goos="+system, name)
		}
	}
}
