package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func (f *Fleet) redis(addr string) server {
	return f.redisLike(Redis, addr, "redis-server", "redis_version", func(ctx context.Context) error {
		return f.apt.install(ctx, f, "", "redis-server")
	})
}

// valkey is in Debian 12's backports only.
func (f *Fleet) valkey(addr string) server {
	return f.redisLike(Valkey, addr, "valkey-server", "valkey_version", func(ctx context.Context) error {
		codename, err := debianCodename()
		if err != nil {
			return err
		}
		if codename != "bookworm" {
			return f.apt.install(ctx, f, "", "valkey-server")
		}
		return f.apt.install(ctx, f, "bookworm-backports", "valkey-server")
	})
}

func (f *Fleet) redisLike(name, addr, program, versionKey string, install func(context.Context) error) server {
	return server{
		name: name, addr: addr, host: addr, term: syscall.SIGTERM, patience: time.Minute,
		prepare: func(ctx context.Context) (string, error) {
			from := "the installed " + program
			if _, err := exec.LookPath(program); err != nil {
				if err := install(ctx); err != nil {
					return "", err
				}
				from = "the package " + program
			}
			if err := os.MkdirAll(f.data(name), 0o755); err != nil {
				return "", fmt.Errorf("data folder: %w", err)
			}
			return from, nil
		},
		command: func() (*exec.Cmd, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			//nolint:noctx // it outlives this process; Down ends it
			return exec.Command(program, "--port", port, "--bind", host, "--dir", f.data(name),
				"--save", "", "--appendonly", "no", "--daemonize", "no"), nil
		},
		answers: func(ctx context.Context, addr string) (string, error) {
			return redisVersion(ctx, addr, versionKey)
		},
	}
}

// redisVersion returns "valkey 8.0.1" or the like; the other server's answer is errOther, since a
// Redis in Valkey's place would prove nothing about Valkey.
func redisVersion(ctx context.Context, addr, key string) (string, error) {
	info, err := redisInfo(ctx, addr)
	if err != nil {
		return "", err
	}
	isValkey := strings.Contains(info, "valkey_version:")
	if isValkey != (key == "valkey_version") {
		return "", fmt.Errorf("%s is %w: no %s", addr, errOther, key)
	}
	for line := range strings.Lines(info) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), key+":"); ok {
			return strings.TrimSuffix(key, "_version") + " " + v, nil
		}
	}
	return "", errors.New("its INFO names no version")
}

// redisInfo sends INFO server without a client library, which would log and repeat every refused
// dial.
func redisInfo(ctx context.Context, addr string) (string, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(conn, "INFO server\r\n"); err != nil {
		return "", err
	}
	reply := bufio.NewReader(conn)
	head, err := reply.ReadString('\n')
	if err != nil {
		return "", err
	}
	head = strings.TrimSpace(head)
	size, err := strconv.Atoi(strings.TrimPrefix(head, "$")) // a bulk string: length, bytes
	if err != nil || size < 0 || size > 1<<20 {
		return "", fmt.Errorf("it answers %q", head)
	}
	body := make([]byte, size)
	if _, err := io.ReadFull(reply, body); err != nil {
		return "", err
	}
	return string(body), nil
}

// debianCodename returns the machine's release name, such as bookworm.
func debianCodename() (string, error) {
	b, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return "", fmt.Errorf("which system this is: %w", err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), "VERSION_CODENAME="); ok {
			return strings.Trim(v, `"`), nil
		}
	}
	return "", nil
}
