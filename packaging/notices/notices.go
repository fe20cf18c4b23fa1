package main

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// linkedModule is a module in a binary.
type linkedModule struct {
	path, version string
	dir           string // of its files
}

// standard is the path by which the standard library and the runtime are listed.
const standard = "std"

// linked returns the modules of the binaries, each version once, sorted by path. The main module is not one
// of them.
func linked(binaries []string) ([]linkedModule, error) {
	all := map[string]linkedModule{}
	for _, file := range binaries {
		info, err := buildinfo.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: read build information: %w", file, err)
		}
		all[standard] = linkedModule{path: standard, version: info.GoVersion}
		for _, m := range info.Deps {
			if m.Replace != nil {
				m = m.Replace
			}
			if m.Version == "" {
				return nil, fmt.Errorf("%s: module %s is replaced by a folder: build without the replacement", file, m.Path)
			}
			all[m.Path+"@"+m.Version] = linkedModule{path: m.Path, version: m.Version}
		}
	}
	var list []linkedModule
	for _, key := range slices.Sorted(maps.Keys(all)) {
		list = append(list, all[key])
	}
	return list, nil
}

// locate returns the modules with the folders of their files.
func locate(modules []linkedModule) ([]linkedModule, error) {
	var names []string
	for _, m := range modules {
		if m.path != standard {
			names = append(names, m.path+"@"+m.version)
		}
	}
	folders := map[string]string{}
	if len(names) > 0 {
		out, err := goCommand(append([]string{"mod", "download", "-json"}, names...)...)
		if err != nil {
			return nil, err
		}
		for d := json.NewDecoder(bytes.NewReader(out)); d.More(); {
			var m struct{ Path, Version, Dir string }
			if err := d.Decode(&m); err != nil {
				return nil, fmt.Errorf("go mod download: %w", err)
			}
			folders[m.Path+"@"+m.Version] = m.Dir
		}
	}
	root, err := goCommand("env", "GOROOT")
	if err != nil {
		return nil, err
	}
	folders[standard] = strings.TrimSpace(string(root))
	located := slices.Clone(modules)
	for i, m := range located {
		key := m.path + "@" + m.version
		if m.path == standard {
			key = standard
		}
		if located[i].dir = folders[key]; located[i].dir == "" {
			return nil, fmt.Errorf("%s is not in the module cache", key)
		}
	}
	return located, nil
}

func goCommand(args ...string) ([]byte, error) {
	out, err := exec.Command("go", args...).Output() //nolint:noctx // it ends by itself, and Ctrl-C reaches it
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil, fmt.Errorf("go %s: %w: %s%s", args[0], err, exit.Stderr, out)
	}
	return out, err
}

// licence matches the names of files with a licence, a notice or a grant of patents.
func licence(name string) bool {
	return regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|copyright|notice|patents)([-._].*)?$`).MatchString(name) &&
		!slices.Contains([]string{".go", ".tmpl", ".yaml", ".yml", ".json"}, filepath.Ext(name))
}

// permits reports whether a file with such a name permits something. A notice alone does not.
func permits(name string) bool {
	return !regexp.MustCompile(`(?i)^(notice|patents|copyright)`).MatchString(name)
}

// licences returns the paths of these files in a module, in order. Code that was copied from elsewhere has its
// own below the top folder. That of Go itself has the same as Go.
func licences(m linkedModule) (paths []string, err error) {
	err = filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != m.dir && (m.path == standard || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") || strings.HasPrefix(d.Name(), "_")) {
			return filepath.SkipDir
		}
		if d.Type().IsRegular() && licence(d.Name()) {
			rel, err := filepath.Rel(m.dir, path)
			paths = append(paths, filepath.ToSlash(rel))
			return err
		}
		return nil
	})
	return paths, err
}

// notices returns the text with the licence files of the modules.
func notices(modules []linkedModule) ([]byte, error) {
	var text bytes.Buffer
	text.WriteString("Millrace contains the following software of others, under these licences.\n")
	var without []string
	for _, m := range modules {
		paths, err := licences(m)
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(paths, func(path string) bool { return !strings.Contains(path, "/") && permits(path) }) {
			without = append(without, m.path+" "+m.version)
		}
		for _, path := range paths {
			content, err := os.ReadFile(filepath.Join(m.dir, path))
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(&text, "\n%s\n%s %s: %s\n%[1]s\n\n%[5]s\n", strings.Repeat("=", 80), m.path, m.version, path, bytes.TrimSpace(content))
		}
	}
	if len(without) > 0 {
		return nil, fmt.Errorf("no licence file in the top folder of %s: replace the dependency, or find its licence", strings.Join(without, ", "))
	}
	return text.Bytes(), nil
}
