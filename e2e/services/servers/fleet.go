package servers

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"
)

// The servers, by the names that commands and reports use. Chromium is a browser, which is
// installed and not started.
const (
	Kafka    = "kafka"
	Redis    = "redis"
	Valkey   = "valkey"
	Postgres = "postgres"
	Chromium = "chromium"
)

// Names returns all servers in the order of reports.
func Names() []string { return []string{Kafka, Redis, Valkey, Postgres, Chromium} }

// EnvVar returns the variable that carries the address of a server: MILLRACE_TEST_KAFKA and so on.
func EnvVar(name string) string {
	switch name {
	case Kafka:
		return "MILLRACE_TEST_KAFKA"
	case Redis:
		return "MILLRACE_TEST_REDIS"
	case Valkey:
		return "MILLRACE_TEST_VALKEY"
	case Postgres:
		return "MILLRACE_TEST_POSTGRES"
	case Chromium:
		return "MILLRACE_TEST_CHROMIUM"
	default:
		return ""
	}
}

// Settings returns the variables that carry the address of a server to Millrace, in place of the profile
// local: its settings of external servers, in the order of their paths.
func Settings(name string) []string {
	switch name {
	case Kafka:
		return []string{"MILLRACE__PLUGINS__KAFKA__BROKERS"}
	case Redis, Valkey:
		return []string{"MILLRACE__PLUGINS__REDIS__ADDRS"}
	case Postgres:
		return []string{"MILLRACE__PLUGINS__DEADLETTER__STORE__DSN", "MILLRACE__PLUGINS__ONCE__LEDGER__DSN", "MILLRACE__PLUGINS__PROMOTION__LEDGER__DSN"}
	default:
		return nil
	}
}

// Options says where servers live. Dir is required.
type Options struct {
	// Dir holds state files, data and logs; it is created.
	Dir string
	// Cache holds what is fetched once (Kafka's jars). Empty: Dir/cache.
	Cache string
	// Ports overrides the loopback ports: by server name, and "controller" for Kafka's controller.
	// A missing one is the default (Kafka 19092 and 19093, Redis 16379, Valkey 16380, PostgreSQL
	// 15432).
	Ports map[string]int
	// EndWithProcess ends the servers when the process that started them ends, however it ends.
	// Otherwise they run until Down or Kill.
	EndWithProcess bool
	// Optimize lets Java compile Kafka for a long run under load. Its start takes twice the CPU
	// time then.
	Optimize bool
	// Join makes Kafka the second broker of a cluster that another fleet has started. Nil: a
	// cluster of its own.
	Join *Cluster
	// Guard adds a second listener for one user to Kafka. Nil: none.
	Guard *Guard
	// Getenv looks up given addresses (EnvVar). Nil: none are given, and servers are always
	// started.
	Getenv func(string) string
	// Progress receives one line per thing that is waited for; nil: no lines.
	Progress io.Writer
	// ComposeFile is the compose.yaml to try first. Empty: Compose is not tried.
	ComposeFile string
}

// Cluster is a cluster of Kafka that is up.
type Cluster struct {
	ID         string // as its brokers report it
	Controller string // host:port of the controller that the fleet which started it runs
}

// Guard is a listener of Kafka with TLS and SASL (PLAIN, SCRAM-SHA-512, and OAUTHBEARER with tokens that
// nobody has signed). Its one user may do what ACLs allow. The plain listener has no limits.
type Guard struct {
	Port           int           // on loopback
	Keystore       string        // PEM file: a key (PKCS #8) and its certificate
	Truststore     string        // PEM file: who signs the certificates that clients must have; empty: they need none
	User, Password string        // letters and digits only
	Reauth         time.Duration // after which a connection with SCRAM must log in again, 0: never; with OAUTHBEARER it must at the end of its token
}

// Fleet starts and stops the servers of one folder. Its methods are safe for concurrent use, also
// by several processes on the same folder: they take turns.
type Fleet struct {
	opts     Options
	apt      apt
	progress sync.Mutex
}

// Report is what became of one server.
type Report struct {
	Name string
	Addr string        // host:port, a DSN for PostgreSQL, or the program of Chromium
	How  string        // how it was had, or what was done to it
	Took time.Duration // how long that took
	Err  error         // why it can't be had
}

// String is one line for a person.
func (r Report) String() string {
	if r.Err != nil {
		return fmt.Sprintf("%-9s %-22s not available: %v", r.Name, r.Addr, r.Err)
	}
	return fmt.Sprintf("%-9s %-22s %s (%.1fs)", r.Name, r.Addr, r.How, r.Took.Seconds())
}

// New returns the fleet of a folder. Nothing is started.
func New(opts Options) (*Fleet, error) {
	if opts.Dir == "" {
		return nil, errors.New("servers: Dir is required")
	}
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fmt.Errorf("servers: %w", err)
	}
	opts.Dir = dir
	if opts.Cache == "" {
		opts.Cache = filepath.Join(dir, "cache")
	}
	if opts.Getenv == nil {
		opts.Getenv = func(string) string { return "" }
	}
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	return &Fleet{opts: opts}, nil
}

// Up starts the named servers (all without a name) that don't run yet, at once, and waits until
// each answers. A server that can't be had has Err in its report, and nothing of it is left
// running.
func (f *Fleet) Up(ctx context.Context, names ...string) []Report {
	return f.each(ctx, names, f.up)
}

// Down stops what this folder has started, in order; given servers are left alone. Data stays.
func (f *Fleet) Down(ctx context.Context, names ...string) []Report {
	return f.each(ctx, names, f.down)
}

// Wipe is Down, and the data is removed.
func (f *Fleet) Wipe(ctx context.Context, names ...string) []Report {
	return f.each(ctx, names, func(ctx context.Context, s server) (string, error) {
		how, err := f.down(ctx, s)
		if err != nil {
			return how, err
		}
		if err := f.removeData(s.name); err != nil {
			return "", err
		}
		return how + ", data removed", nil
	})
}

// Kill ends servers with SIGKILL and waits until they are gone; Up starts them again at the same
// data.
func (f *Fleet) Kill(ctx context.Context, names ...string) []Report {
	return f.each(ctx, names, f.kill)
}

// Restart stops servers in order and starts them again at the same data.
func (f *Fleet) Restart(ctx context.Context, names ...string) []Report {
	return f.each(ctx, names, func(ctx context.Context, s server) (string, error) {
		if f.given(s) != "" {
			return "", fmt.Errorf("it was given by %s: restart it where it runs", EnvVar(s.name))
		}
		if _, err := f.down(ctx, s); err != nil {
			return "", err
		}
		how, err := f.up(ctx, s)
		return "re" + how, err
	})
}

// Status reports which servers answer, without starting any.
func (f *Fleet) Status(ctx context.Context, names ...string) []Report {
	return f.each(ctx, names, f.status)
}

// Addr returns where a server is or would be, as in Report.
func (f *Fleet) Addr(name string) string {
	s, ok := f.server(name)
	if !ok {
		return ""
	}
	if given := f.given(s); given != "" {
		return given
	}
	return s.addr
}

// PID returns the process of a server that this folder has started, or 0.
func (f *Fleet) PID(name string) int {
	st, _ := f.running(name)
	return st.PID
}

func (f *Fleet) given(s server) string { return f.opts.Getenv(EnvVar(s.name)) }

// each runs do for every named server at once, under the folder's lock, and reports in the order of
// Names.
func (f *Fleet) each(ctx context.Context, names []string, do func(context.Context, server) (string, error)) []Report {
	if len(names) == 0 {
		names = Names()
	}
	reports := make([]Report, len(names))
	unlock, err := lockDir(ctx, f.opts.Dir)
	if err != nil {
		for i, name := range names {
			reports[i] = Report{Name: name, Addr: f.Addr(name), Err: err}
		}
		return reports
	}
	defer unlock()
	var wg sync.WaitGroup
	for i, name := range names {
		s, ok := f.server(name)
		if !ok {
			reports[i] = Report{Name: name, Err: fmt.Errorf("unknown server; known are %v", Names())}
			continue
		}
		wg.Go(func() {
			began := time.Now()
			how, err := do(ctx, s)
			reports[i] = Report{Name: name, Addr: f.Addr(name), How: how, Took: time.Since(began), Err: err}
		})
	}
	wg.Wait()
	return reports
}

func (f *Fleet) report(format string, args ...any) {
	f.progress.Lock()
	defer f.progress.Unlock()
	fmt.Fprintf(f.opts.Progress, format+"\n", args...)
}

func (f *Fleet) port(name string, standard int) int {
	if p, ok := f.opts.Ports[name]; ok {
		return p
	}
	return standard
}

func (f *Fleet) server(name string) (server, bool) {
	i := slices.Index(Names(), name)
	if i < 0 {
		return server{}, false
	}
	loopback := func(standard int) string { return "127.0.0.1:" + strconv.Itoa(f.port(name, standard)) }
	switch name {
	case Kafka:
		return f.kafka(loopback(19092), "127.0.0.1:"+strconv.Itoa(f.port("controller", 19093))), true
	case Redis:
		return f.redis(loopback(16379)), true
	case Valkey:
		return f.valkey(loopback(16380)), true
	case Chromium:
		return f.chromium(), true
	default:
		return f.postgres(loopback(15432)), true
	}
}

// data returns the folder of a server's data. A symbolic link there leads to where data must live
// elsewhere.
func (f *Fleet) data(name string) string { return filepath.Join(f.opts.Dir, name) }

func (f *Fleet) removeData(name string) error {
	dir := f.data(name)
	if target, err := os.Readlink(dir); err == nil {
		if err := os.RemoveAll(target); err != nil {
			return fmt.Errorf("remove data: %w", err)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove data: %w", err)
	}
	return nil
}
