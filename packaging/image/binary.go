package main

import (
	"debug/buildinfo"
	"debug/elf"
	"fmt"
	"os"
	"time"
)

// binary is an executable of the service with what its build information says.
type binary struct {
	file     string
	content  []byte
	os, arch string
	version  string    // of the module: a tag, a pseudo-version, or (devel)
	commit   string    // empty: it was built outside of a repository
	made     time.Time // of the commit; 1970 without one
}

// inspect reads a binary. It refuses one that needs an interpreter, because the image has no
// libraries that it could load.
func inspect(file string) (binary, error) {
	b := binary{file: file, made: time.Unix(0, 0).UTC()}
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return b, fmt.Errorf("%s: read build information: %w", file, err)
	}
	b.version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS":
			b.os = s.Value
		case "GOARCH":
			b.arch = s.Value
		case "vcs.revision":
			b.commit = s.Value
		case "vcs.time":
			if b.made, err = time.Parse(time.RFC3339, s.Value); err != nil {
				return b, fmt.Errorf("%s: vcs.time: %w", file, err)
			}
		}
	}
	if b.os != "linux" {
		return b, fmt.Errorf("%s: built for %s/%s, want linux", file, b.os, b.arch)
	}
	executable, err := elf.Open(file)
	if err != nil {
		return b, fmt.Errorf("%s: %w", file, err)
	}
	defer executable.Close()
	for _, part := range executable.Progs {
		if part.Type == elf.PT_INTERP {
			return b, fmt.Errorf("%s: dynamically linked, want a static binary: build it with CGO_ENABLED=0", file)
		}
	}
	b.content, err = os.ReadFile(file)
	return b, err
}
