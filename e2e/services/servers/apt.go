package servers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
)

// apt installs Debian packages, one call at a time.
type apt struct {
	calls     sync.Mutex
	updated   bool
	backports bool
}

const (
	debianSources = "/etc/apt/sources.list.d/debian.sources"
	policyFile    = "/usr/sbin/policy-rc.d"
)

// install gets the packages, or says why it can't. suite names a Debian suite beyond the machine's
// own (bookworm-backports), or is empty.
func (a *apt) install(ctx context.Context, f *Fleet, suite string, packages ...string) error {
	a.calls.Lock()
	defer a.calls.Unlock()
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s not installed, and only root can install packages", strings.Join(packages, ", "))
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("%s not installed, and there is no apt-get", strings.Join(packages, ", "))
	}
	f.report("installing %s", strings.Join(packages, ", "))
	if !a.updated {
		// A third party's source may fail and is not needed: a failed install reports it.
		if err := aptGet(ctx, "update", "-q"); err != nil {
			f.report("apt-get update: %v", err)
		}
		a.updated = true
	}
	args := []string{"install", "-q", "-y", "--no-install-recommends"}
	if suite != "" {
		options, err := a.suite(ctx, f, suite)
		if err != nil {
			return err
		}
		args = append(append(options, args...), "-t", suite)
	}
	restore, err := keepServicesDown()
	if err != nil {
		return err
	}
	defer restore()
	return aptGet(ctx, append(args, packages...)...)
}

// suite makes a Debian suite known to the calls with the returned options, and leaves the machine's
// own sources as they are. Its address is taken from them.
func (a *apt) suite(ctx context.Context, f *Fleet, suite string) (options []string, err error) {
	own, err := os.ReadFile(debianSources)
	if err != nil {
		return nil, fmt.Errorf("%s needs Debian's own sources: %w", suite, err)
	}
	var first []string // the first stanza, without its comments
	for line := range strings.Lines(string(own)) {
		line = strings.TrimRight(line, "\n")
		if line == "" && len(first) > 0 {
			break
		}
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		if strings.HasPrefix(line, "Suites:") {
			line = "Suites: " + suite
		}
		first = append(first, line)
	}
	parts := filepath.Join(f.opts.Dir, "apt")
	if err := os.MkdirAll(parts, 0o755); err != nil {
		return nil, fmt.Errorf("apt sources: %w", err)
	}
	for name, text := range map[string]string{"debian.sources": string(own), "suite.sources": strings.Join(first, "\n") + "\n"} {
		if err := os.WriteFile(filepath.Join(parts, name), []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("apt sources: %w", err)
		}
	}
	options = []string{
		"-o", "Dir::Etc::SourceParts=" + parts,
		"-o", "Dir::Etc::SourceList=/dev/null",
		"-o", "APT::Get::List-Cleanup=false",
	}
	if !a.backports {
		if err := aptGet(ctx, append(options, "update", "-q")...); err != nil {
			return nil, err
		}
		a.backports = true
	}
	return options, nil
}

// keepServicesDown keeps packages from starting servers on ports that are not ours, in Debian's own
// way, until restore is called.
func keepServicesDown() (restore func(), err error) {
	file, err := os.OpenFile(policyFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if errors.Is(err, os.ErrExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("keep packages from starting servers: %w", err)
	}
	_, err = file.WriteString("#!/bin/sh\nexit 101\n")
	if err = errors.Join(err, file.Close()); err != nil {
		os.Remove(policyFile)
		return nil, fmt.Errorf("keep packages from starting servers: %w", err)
	}
	return func() { os.Remove(policyFile) }, nil
}

func aptGet(ctx context.Context, args ...string) error {
	args = append([]string{"-o", "DPkg::Lock::Timeout=120", "-o", "Acquire::Retries=2"}, args...)
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive", "LC_ALL=C")
	return run(cmd)
}

// run runs cmd and puts the beginning and the end of what it printed into the error.
func run(cmd *exec.Cmd) error {
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) > 8 { // some programs say what is wrong first, others last
			lines = append(append(lines[:4:4], "…"), lines[len(lines)-4:]...)
		}
		return fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, strings.Join(lines, "; "))
	}
	return nil
}
