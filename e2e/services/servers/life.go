package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// server is one kind of server: how to install, start, check and stop it.
type server struct {
	name string
	addr string // as clients write it
	host string // host:port it listens on
	// prepare gets the programs and the data folder and says from where; called before every start.
	prepare func(ctx context.Context) (from string, err error)
	// command returns the process to run in the foreground. Nil: nothing runs.
	command func() (*exec.Cmd, error)
	// answers returns the server's version when it can be worked with at addr.
	answers func(ctx context.Context, addr string) (version string, err error)
	// term is the signal for an orderly stop.
	term syscall.Signal
	// patience bounds one start.
	patience time.Duration
}

// movePorts is what a person does whose ports are taken. The programs that start servers read the variable.
const movePorts = "move the ports of all servers, as MILLRACE_SERVICES_PORT_OFFSET=1000 does, for each later command as well"

const (
	byCompose  = "compose"
	byPackages = "packages"
)

func (f *Fleet) up(ctx context.Context, s server) (string, error) {
	if addr := f.given(s); addr != "" {
		version, err := f.await(ctx, s, addr, 10*time.Second, nil)
		if err != nil {
			return "", fmt.Errorf("given by %s, but: %w", EnvVar(s.name), err)
		}
		return fmt.Sprintf("given by %s, %s", EnvVar(s.name), version), nil
	}
	if s.command == nil {
		if _, err := s.prepare(ctx); err != nil {
			return "", err
		}
		version, err := s.answers(ctx, s.addr)
		return "installed, " + version, err
	}
	st, running := f.running(s.name)
	if running {
		if version, err := f.await(ctx, s, s.addr, 10*time.Second, nil); err == nil {
			return fmt.Sprintf("already up from %s, %s", st.By, version), nil
		}
		f.report("%s: process %d runs and does not answer; starting it again", s.name, st.PID)
		if _, err := f.down(ctx, s); err != nil {
			return "", err
		}
	}
	if taken(ctx, s.host) {
		return "", fmt.Errorf("%s is in use by something this folder did not start; stop that, or give its address in %s, or %s",
			s.host, EnvVar(s.name), movePorts)
	}
	composeErr := f.composeUp(ctx, s)
	if composeErr == nil {
		version, err := f.await(ctx, s, s.addr, s.patience, nil)
		if err == nil {
			return "started by Docker Compose, " + version, nil
		}
		composeErr = err
		f.composeDown(ctx, s)
	}
	if !errors.Is(composeErr, errNoCompose) {
		f.report("%s: %v; trying packages", s.name, composeErr)
	}
	from, version, err := f.start(ctx, s)
	if err != nil {
		return "", fmt.Errorf("%w; and %w", composeErr, err)
	}
	return fmt.Sprintf("started from %s, %s", from, version), nil
}

// start runs the server from packages. It repeats the start of a process that ends at once, because
// a killed one may keep its data or port for a moment.
func (f *Fleet) start(ctx context.Context, s server) (from, version string, err error) {
	if from, err = s.prepare(ctx); err != nil {
		return "", "", err
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience)
	defer cancel()
	for try := 1; ; try++ {
		version, err = f.startOnce(ctx, s)
		if err == nil || try == 5 || !errors.Is(err, errEnded) {
			return from, version, err
		}
		select {
		case <-ctx.Done():
			return from, version, err
		case <-time.After(500 * time.Millisecond):
		}
	}
}

var (
	errEnded = errors.New("the process ended")
	errOther = errors.New("another kind of server")
)

func (f *Fleet) startOnce(ctx context.Context, s server) (version string, err error) {
	cmd, err := s.command()
	if err != nil {
		return "", err
	}
	logFile := filepath.Join(f.opts.Dir, s.name+".log")
	ended, err := f.spawn(s.name, cmd, logFile)
	if err != nil {
		return "", err
	}
	version, err = f.await(ctx, s, s.addr, s.patience, ended)
	if err == nil {
		return version, nil
	}
	if stopErr := f.end(context.WithoutCancel(ctx), s.name, syscall.SIGKILL); stopErr != nil {
		err = errors.Join(err, stopErr)
	}
	return "", fmt.Errorf("%w%s", err, tail(logFile))
}

// await repeats a check until the server answers, ended closes, or the time is up.
func (f *Fleet) await(ctx context.Context, s server, addr string, atMost time.Duration, ended <-chan struct{}) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	began := time.Now()
	var last error
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	remind := time.NewTicker(10 * time.Second)
	defer remind.Stop()
	for {
		try, cancelTry := context.WithTimeout(ctx, 5*time.Second)
		version, err := s.answers(try, addr)
		cancelTry()
		if err == nil {
			return version, nil
		}
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err // what it said counts, not that the time was up
		}
		if errors.Is(err, errOther) {
			return "", err
		}
		select {
		case <-ended:
			return "", fmt.Errorf("%w before it answered", errEnded)
		case <-ctx.Done():
			return "", fmt.Errorf("no answer in %s: %w", time.Since(began).Round(100*time.Millisecond), last)
		case <-remind.C:
			f.report("%s: still waiting for an answer at %s", s.name, addr)
		case <-tick.C:
		}
	}
}

func (f *Fleet) down(ctx context.Context, s server) (string, error) {
	if f.given(s) != "" {
		return "given by " + EnvVar(s.name) + ", left alone", nil
	}
	st, running := f.running(s.name)
	if !running {
		return "was not up", f.removeState(s.name)
	}
	if st.By == byCompose {
		f.composeDown(ctx, s)
		return "stopped", f.removeState(s.name)
	}
	return "stopped", f.end(ctx, s.name, s.term)
}

func (f *Fleet) kill(ctx context.Context, s server) (string, error) {
	if f.given(s) != "" {
		return "", fmt.Errorf("it was given by %s: kill it where it runs", EnvVar(s.name))
	}
	st, running := f.running(s.name)
	if !running {
		return "", errors.New("it is not up")
	}
	if st.By == byCompose {
		return "killed", f.composeKill(ctx, s)
	}
	return "killed", f.end(ctx, s.name, syscall.SIGKILL)
}

func (f *Fleet) status(ctx context.Context, s server) (string, error) {
	addr, from := f.given(s), "given by "+EnvVar(s.name)
	if addr == "" && s.command == nil {
		addr, from = s.addr, "installed"
	}
	if addr == "" {
		st, running := f.running(s.name)
		if !running {
			return "", errors.New("not up")
		}
		addr, from = s.addr, "up from "+st.By
	}
	version, err := f.await(ctx, s, addr, 3*time.Second, nil)
	if err != nil {
		return "", fmt.Errorf("%s, but: %w", from, err)
	}
	return from + ", " + version, nil
}

// taken reports whether something listens at host:port.
func taken(ctx context.Context, host string) bool {
	conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(ctx, "tcp", host)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

// tail returns the last lines of a log, for an error message.
func tail(file string) string {
	b, err := os.ReadFile(file)
	text := strings.TrimSpace(string(b))
	if err != nil || text == "" {
		return ""
	}
	lines := strings.Split(text, "\n")
	lines = lines[max(0, len(lines)-12):]
	return fmt.Sprintf("\n  the end of %s:\n    %s", file, strings.Join(lines, "\n    "))
}
