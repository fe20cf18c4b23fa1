package servers

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
)

// chromium is the browser of Debian. Its address is its program. It is only installed: each test
// starts a browser of its own.
func (f *Fleet) chromium() server {
	const program = "/usr/bin/chromium"
	return server{
		name: Chromium, addr: program,
		prepare: func(ctx context.Context) (string, error) {
			if _, err := exec.LookPath(program); err == nil {
				return program, nil
			}
			return "the package chromium", f.apt.install(ctx, f, "", "chromium")
		},
		answers: func(ctx context.Context, program string) (string, error) {
			version, err := exec.CommandContext(ctx, program, "--version").Output()
			if err != nil {
				return "", fmt.Errorf("%s: %w", program, err)
			}
			return strings.TrimSpace(string(version)), nil
		},
	}
}
