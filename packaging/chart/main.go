// Chart packs the Helm chart of the folder millrace, without the program helm:
//
//	go run ./chart -o ../dist/chart -binary ../dist/linux-amd64/millrace ./chart/millrace
//
// It adds the alerts and the dashboards, which the repository has once, in configs/, and writes the version, which
// is the tag that the image of the binary has.
// The result is the archive millrace-VERSION.tgz, and a folder with the same files. The same commit gives
// the same archive, because nothing in it depends on the time or on the machine.
//
// Exit codes: 0 done, 1 the chart is unfit or the folder can't be written, 2 usage.
package main

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"helm.sh/helm/v3/pkg/chart"
	"helm.sh/helm/v3/pkg/chart/loader"

	"github.com/millrace-io/millrace/packaging/tag"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

func run(args []string, out, errOut io.Writer) int {
	flags := flag.NewFlagSet("chart", flag.ContinueOnError)
	flags.SetOutput(errOut)
	dir := flags.String("o", "", "`folder` of the archive; it may exist")
	version := flags.String("version", "", "`tag` of the image, such as v0.1.0; the chart has the same version without the v")
	binary := flags.String("binary", "", "`file` in the image, whose version is taken instead")
	if err := flags.Parse(args); err != nil || *dir == "" || (*version == "") == (*binary == "") || flags.NArg() != 1 {
		fmt.Fprintln(errOut, "usage: chart -o FOLDER -version TAG CHART | chart -o FOLDER -binary FILE CHART")
		return 2
	}
	if *binary != "" {
		info, err := buildinfo.ReadFile(*binary)
		if err != nil {
			fmt.Fprintf(errOut, "chart: %s: read build information: %v\n", *binary, err)
			return 1
		}
		*version = tag.Of(info.Main.Version)
	}
	archive, err := pack(flags.Arg(0), *version, *dir)
	if err != nil {
		fmt.Fprintf(errOut, "chart: %v\n", err)
		return 1
	}
	fmt.Fprintln(out, archive)
	return 0
}

// added returns the files of the chart in dir that the repository keeps elsewhere, by their name in the chart. It
// lists the folder of the dashboards, so a further one needs no change here.
func added(dir string) (map[string]string, error) {
	configs := filepath.Join(dir, "..", "..", "..", "configs")
	files := map[string]string{"files/alerts.yaml": filepath.Join(configs, "prometheus", "alerts.yaml")}
	entries, err := os.ReadDir(filepath.Join(configs, "grafana"))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ".json" {
			files["files/dashboards/"+e.Name()] = filepath.Join(configs, "grafana", e.Name())
		}
	}
	return files, nil
}

// read returns the files of the chart in dir with that version, sorted by name, and the chart they are.
func read(dir, version string) ([]*loader.BufferedFile, *chart.Chart, error) {
	source, err := loader.LoadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("%s: %w", dir, err)
	}
	var files []*loader.BufferedFile
	for _, f := range source.Raw {
		data := f.Data
		if f.Name == "Chart.yaml" {
			if data, err = versioned(data, version); err != nil {
				return nil, nil, err
			}
		}
		files = append(files, &loader.BufferedFile{Name: f.Name, Data: data})
	}
	elsewhere, err := added(dir)
	if err != nil {
		return nil, nil, err
	}
	for name, path := range elsewhere {
		data, err := os.ReadFile(path)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, &loader.BufferedFile{Name: name, Data: data})
	}
	slices.SortFunc(files, func(a, b *loader.BufferedFile) int { return cmp.Compare(a.Name, b.Name) })
	c, err := loader.LoadFiles(files)
	if err != nil {
		return nil, nil, err
	}
	return files, c, c.Validate()
}

var versionLines = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// versioned returns Chart.yaml with the version of a tag.
func versioned(text []byte, tag string) ([]byte, error) {
	if n := len(versionLines.FindAll(text, -1)); n != 2 {
		return nil, fmt.Errorf("file Chart.yaml: has %d lines that begin with version or appVersion, want one of each", n)
	}
	return versionLines.ReplaceAllFunc(text, func(line []byte) []byte {
		if bytes.HasPrefix(line, []byte("appVersion")) {
			return fmt.Appendf(nil, "appVersion: %q", tag)
		}
		return []byte("version: " + strings.TrimPrefix(tag, "v"))
	}), nil
}

// pack writes the chart in source to dir, as an archive and as a folder, and returns the archive's path.
func pack(source, version, dir string) (string, error) {
	files, c, err := read(source, version)
	if err != nil {
		return "", err
	}
	archive := filepath.Join(dir, fmt.Sprintf("%s-%s.tgz", c.Name(), c.Metadata.Version))
	folder := filepath.Join(dir, c.Name())
	if err := removeEarlier(folder); err != nil {
		return "", err
	}
	for _, f := range files {
		path := filepath.Join(folder, filepath.FromSlash(f.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return "", err
		}
		if err := os.WriteFile(path, f.Data, 0o644); err != nil {
			return "", err
		}
	}
	packed, err := tgz(c.Name(), files)
	if err != nil {
		return "", err
	}
	return archive, os.WriteFile(archive, packed, 0o644)
}

// removeEarlier removes the folder of an earlier chart, and refuses to remove anything else.
func removeEarlier(folder string) error {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(entries) == 0 {
		return nil
	}
	if err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(folder, "Chart.yaml")); err != nil {
		return fmt.Errorf("%s: holds something other than a chart; name another folder", folder)
	}
	return os.RemoveAll(folder)
}

// tgz packs the files below a folder of that name.
func tgz(name string, files []*loader.BufferedFile) ([]byte, error) {
	var packed bytes.Buffer
	zip, err := gzip.NewWriterLevel(&packed, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(zip)
	for _, f := range files {
		err := archive.WriteHeader(&tar.Header{
			Name: name + "/" + f.Name, Mode: 0o644, Size: int64(len(f.Data)),
			ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR,
		})
		if err != nil {
			return nil, err
		}
		if _, err := archive.Write(f.Data); err != nil {
			return nil, err
		}
	}
	if err := archive.Close(); err != nil {
		return nil, err
	}
	if err := zip.Close(); err != nil {
		return nil, err
	}
	return packed.Bytes(), nil
}
