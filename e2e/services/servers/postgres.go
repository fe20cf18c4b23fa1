package servers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const postgresDatabase = "millrace"

func (f *Fleet) postgres(host string) server {
	p := &postgres{f: f, host: host}
	return server{
		name: Postgres, addr: p.dsn(postgresDatabase), host: host,
		term:     syscall.SIGINT, // a "fast" stop: open connections are ended
		patience: 2 * time.Minute,
		prepare:  p.prepare, command: p.command, answers: p.answers,
	}
}

type postgres struct {
	f    *Fleet
	host string
	bin  string // folder of the programs, after prepare
}

func (p *postgres) dsn(database string) string {
	return (&url.URL{
		Scheme: "postgres", User: url.User("postgres"), Host: p.host, Path: "/" + database, RawQuery: "sslmode=disable",
	}).String()
}

func (p *postgres) prepare(ctx context.Context) (from string, err error) {
	from = "the installed PostgreSQL"
	if p.bin = postgresBin(); p.bin == "" {
		name := "postgresql"
		if codename, _ := debianCodename(); codename == "bookworm" {
			name = "postgresql-15"
		}
		if err := p.f.apt.install(ctx, p.f, "", name); err != nil {
			return "", err
		}
		if p.bin = postgresBin(); p.bin == "" {
			return "", fmt.Errorf("the package %s brought no server", name)
		}
		from = "the package " + name
	}
	return from, p.initialise(ctx)
}

// initialise makes the data folder on the first start.
func (p *postgres) initialise(ctx context.Context) error {
	account, err := serverAccount()
	if err != nil {
		return err
	}
	data := p.f.data(Postgres)
	if _, err := os.Stat(filepath.Join(data, "PG_VERSION")); err == nil {
		return nil
	}
	if err := p.f.removeData(Postgres); err != nil { // an initdb that was cut short
		return err
	}
	if err := p.makeDataDir(ctx, data, account); err != nil {
		return err
	}
	reachable, err := filepath.EvalSymlinks(data)
	if err != nil {
		return fmt.Errorf("postgres data: %w", err)
	}
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, "initdb"), "-D", reachable, "-A", "trust", "-U", "postgres",
		"-E", "UTF8", "--locale=C", "--no-sync")
	cmd.Dir, cmd.SysProcAttr = "/", account
	if err := run(cmd); err != nil {
		return errors.Join(fmt.Errorf("postgres data: %w", err), p.f.removeData(Postgres))
	}
	return nil
}

// makeDataDir makes an empty folder that account can reach. The account can't reach a checkout in a
// folder that only its owner may enter. Then the data is in /var/tmp, with a link to it.
func (p *postgres) makeDataDir(ctx context.Context, data string, account *syscall.SysProcAttr) error {
	if err := os.MkdirAll(data, 0o700); err != nil {
		return fmt.Errorf("postgres data: %w", err)
	}
	if account == nil {
		return nil
	}
	uid, gid := int(account.Credential.Uid), int(account.Credential.Gid)
	if err := os.Chown(data, uid, gid); err != nil {
		return fmt.Errorf("postgres data: %w", err)
	}
	look := exec.CommandContext(ctx, "ls", data)
	look.Dir, look.SysProcAttr = "/", account
	if look.Run() == nil {
		return nil
	}
	if err := os.Remove(data); err != nil {
		return fmt.Errorf("postgres data: %w", err)
	}
	elsewhere, err := os.MkdirTemp("/var/tmp", "millrace-postgres-")
	if err != nil {
		return fmt.Errorf("postgres data: %w", err)
	}
	if err := errors.Join(os.Chown(elsewhere, uid, gid), os.Symlink(elsewhere, data)); err != nil {
		os.RemoveAll(elsewhere)
		return fmt.Errorf("postgres data: %w", err)
	}
	return nil
}

func (p *postgres) command() (*exec.Cmd, error) {
	host, port, err := net.SplitHostPort(p.host)
	if err != nil {
		return nil, err
	}
	account, err := serverAccount()
	if err != nil {
		return nil, err
	}
	data, err := filepath.EvalSymlinks(p.f.data(Postgres))
	if err != nil {
		return nil, fmt.Errorf("postgres data: %w", err)
	}
	// No Unix socket: its path would be too long in a deep folder. fsync stays on: the ledger's
	// promises rest on it.
	//nolint:noctx // it outlives this process; Down ends it
	cmd := exec.Command(filepath.Join(p.bin, "postgres"), "-D", data, "-p", port,
		"-c", "listen_addresses="+host, "-c", "unix_socket_directories=", "-c", "max_connections=200",
		"-c", "shared_buffers=128MB", "-c", "logging_collector=off", "-c", "log_timezone=UTC", "-c", "timezone=UTC")
	cmd.Dir, cmd.SysProcAttr = "/", account
	return cmd, nil
}

// answers connects, and makes the database when there is none yet and the server is ours.
func (p *postgres) answers(ctx context.Context, addr string) (string, error) {
	if addr == p.dsn(postgresDatabase) {
		if err := p.createDatabase(ctx); err != nil {
			return "", err
		}
	}
	conn, err := pgx.Connect(ctx, addr)
	if err != nil {
		return "", err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var version string
	if err := conn.QueryRow(ctx, "SHOW server_version").Scan(&version); err != nil {
		return "", err
	}
	version, _, _ = strings.Cut(version, " ")
	return "postgresql " + version, nil
}

func (p *postgres) createDatabase(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.dsn("postgres"))
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var exists bool
	err = conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)", postgresDatabase).Scan(&exists)
	if err != nil || exists {
		return err
	}
	_, err = conn.Exec(ctx, "CREATE DATABASE "+pgx.Identifier{postgresDatabase}.Sanitize())
	return err
}

// postgresBin returns the folder of PostgreSQL's programs: 15 if there is one, else the newest,
// else that of the PATH, else "".
func postgresBin() string {
	best, bestVersion := "", 0
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/postgres") // the pattern is well-formed
	for _, file := range found {
		bin := filepath.Dir(file)
		version, err := strconv.Atoi(filepath.Base(filepath.Dir(bin)))
		if err != nil {
			continue
		}
		if version == 15 {
			return bin
		}
		if version > bestVersion {
			best, bestVersion = bin, version
		}
	}
	if best != "" {
		return best
	}
	file, err := exec.LookPath("postgres")
	if err != nil {
		return ""
	}
	if file, err = filepath.EvalSymlinks(file); err != nil {
		return ""
	}
	return filepath.Dir(file)
}

// serverAccount returns how to run as an account that PostgreSQL accepts: it refuses root. Nil: as
// we are.
func serverAccount() (*syscall.SysProcAttr, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
		return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}, nil
	}
	return nil, errors.New("postgres refuses to run as root: create an account named postgres")
}
