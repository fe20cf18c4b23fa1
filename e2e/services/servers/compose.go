package servers

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"time"
)

var errNoCompose = errors.New("no Docker Compose engine answers")

// composeUp starts s with Docker Compose and remembers it. It is errNoCompose when there is no
// engine.
func (f *Fleet) composeUp(ctx context.Context, s server) error {
	if f.opts.ComposeFile == "" {
		return errNoCompose
	}
	probe, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	for _, args := range [][]string{{"compose", "version"}, {"info"}} {
		if exec.CommandContext(probe, "docker", args...).Run() != nil {
			return errNoCompose
		}
	}
	f.report("%s: starting with Docker Compose", s.name)
	if err := f.writeState(s.name, state{By: byCompose}); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := run(f.compose(bounded, "up", "--detach", "--wait", s.name)); err != nil {
		f.composeDown(ctx, s)
		return fmt.Errorf("docker compose: %w", err)
	}
	return nil
}

// composeDown removes the server's container, also when ctx has ended; what can't be removed is
// said.
func (f *Fleet) composeDown(ctx context.Context, s server) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	if err := run(f.compose(ctx, "rm", "--force", "--stop", s.name)); err != nil {
		f.report("%s: docker compose: %v", s.name, err)
		return
	}
	if err := f.removeState(s.name); err != nil {
		f.report("%s: %v", s.name, err)
	}
}

func (f *Fleet) composeKill(ctx context.Context, s server) error {
	if err := run(f.compose(ctx, "kill", "--signal", "KILL", s.name)); err != nil {
		return fmt.Errorf("docker compose: %w", err)
	}
	// The engine may answer before the process is gone.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for taken(ctx, s.host) {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s still answers: %w", s.host, ctx.Err())
		case <-tick.C:
		}
	}
	return f.removeState(s.name)
}

// compose runs in a project of the folder's own, so that two checkouts don't share containers.
func (f *Fleet) compose(ctx context.Context, args ...string) *exec.Cmd {
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.opts.Dir)) // never fails
	project := fmt.Sprintf("millrace-%08x", h.Sum32())
	cmd := exec.CommandContext(ctx, "docker", append([]string{"compose", "--project-name", project, "--file", f.opts.ComposeFile}, args...)...)
	cmd.Env = os.Environ()
	for name, port := range map[string]int{
		"KAFKA": f.port(Kafka, 19092), "REDIS": f.port(Redis, 16379), "VALKEY": f.port(Valkey, 16380), "POSTGRES": f.port(Postgres, 15432),
	} {
		cmd.Env = append(cmd.Env, fmt.Sprintf("MILLRACE_PORT_%s=%d", name, port))
	}
	return cmd
}
