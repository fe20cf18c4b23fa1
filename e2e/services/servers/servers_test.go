package servers

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func freePort(t *testing.T) int {
	t.Helper()
	// Below the ports that the system gives to outgoing connections: one of those could take it
	// while the server is down. So could another test, if it were given the same one. And below
	// those of the scenarios' servers.
	for range 1000 {
		port := 20_000 + rand.IntN(5_000)
		if _, given := givenPorts.LoadOrStore(port, true); given {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			continue
		}
		require.NoError(t, l.Close())
		return port
	}
	require.FailNow(t, "no free port below 25000")
	return 0
}

var givenPorts sync.Map

// newFleet returns a fleet of the test's own that is wiped at its end.
func newFleet(t *testing.T, change ...func(*Options)) *Fleet {
	t.Helper()
	opts := Options{
		Dir:      t.TempDir(),
		Progress: t.Output(),
		Ports: map[string]int{
			Kafka: freePort(t), "controller": freePort(t), Redis: freePort(t), Valkey: freePort(t), Postgres: freePort(t),
		},
	}
	for _, c := range change {
		c(&opts)
	}
	f, err := New(opts)
	require.NoError(t, err)
	t.Cleanup(func() {
		for _, r := range f.Wipe(context.Background()) {
			require.NoError(t, r.Err)
		}
	})
	return f
}

func one(t *testing.T, reports []Report) Report {
	t.Helper()
	require.Len(t, reports, 1)
	return reports[0]
}

// installed skips a test in a short run, and one that would have to install a server.
func installed(t *testing.T, name string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts servers")
	}
	var have bool
	switch name {
	case Postgres:
		have = postgresBin() != ""
	default:
		_, err := exec.LookPath(name + "-server")
		have = err == nil
	}
	if !have {
		t.Skipf("%s: %s is not installed", EnvVar(name), name)
	}
}

// TestLife takes real servers through their life.
func TestLife(t *testing.T) {
	for _, name := range []string{Redis, Valkey, Postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			installed(t, name)
			f := newFleet(t)
			ctx := t.Context()
			require.ErrorContains(t, one(t, f.Status(ctx, name)).Err, "not up")

			r := one(t, f.Up(ctx, name))
			require.NoError(t, r.Err)
			require.Contains(t, r.How, "started from")
			first, running := f.running(name)
			require.True(t, running)

			r = one(t, f.Up(ctx, name))
			require.NoError(t, r.Err)
			require.Contains(t, r.How, "already up")
			again, _ := f.running(name)
			require.Equal(t, first, again, "the same process")

			r = one(t, f.Kill(ctx, name))
			require.NoError(t, r.Err)
			require.Error(t, one(t, f.Status(ctx, name)).Err)
			require.ErrorContains(t, one(t, f.Kill(ctx, name)).Err, "not up")

			r = one(t, f.Up(ctx, name))
			require.NoError(t, r.Err, "after a kill -9, at the same data")
			r = one(t, f.Restart(ctx, name))
			require.NoError(t, r.Err)
			require.Contains(t, r.How, "restarted from")
			require.NoError(t, one(t, f.Status(ctx, name)).Err)

			require.NoError(t, one(t, f.Down(ctx, name)).Err)
			s, _ := f.server(name)
			require.False(t, taken(ctx, s.host))
			r = one(t, f.Down(ctx, name))
			require.NoError(t, r.Err)
			require.Equal(t, "was not up", r.How)
		})
	}
}

// TestOtherProcess: what one process has started another one finds, and stops.
func TestOtherProcess(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		installed(t, Redis)
		f := newFleet(t)
		other, err := New(f.opts)
		require.NoError(t, err)
		reports := make(chan Report, 2)
		for _, fleet := range []*Fleet{f, other} {
			go func() { reports <- fleet.Up(t.Context(), Redis)[0] }()
		}
		a, b := <-reports, <-reports
		require.NoError(t, a.Err)
		require.NoError(t, b.Err)
		require.NotEqual(t, strings.HasPrefix(a.How, "already"), strings.HasPrefix(b.How, "already"), "one started it, one found it: %s, %s", a, b)
		require.NoError(t, one(t, other.Down(t.Context(), Redis)).Err)
		require.ErrorContains(t, one(t, f.Status(t.Context(), Redis)).Err, "not up")
	})
}

// TestServersEndWithTheProcessThatStartedThem runs this test again in a process that starts a
// server and then ends badly.
func TestServersEndWithTheProcessThatStartedThem(t *testing.T) {
	const child = "MILLRACE_TEST_BAD_END"
	if end := os.Getenv(child); end != "" {
		f, err := New(Options{Dir: t.TempDir(), EndWithProcess: true, Ports: map[string]int{Redis: freePort(t)}})
		require.NoError(t, err)
		require.NoError(t, one(t, f.Up(t.Context(), Redis)).Err)
		st, _ := f.running(Redis)
		fmt.Fprintf(os.Stderr, "server %d\n", st.PID)
		if end == "panic" {
			panic("a test panics")
		}
		select {} // until SIGKILL or the time limit
	}
	for end, flag := range map[string]string{"panic": "-test.v", "time limit": "-test.timeout=2s", "SIGKILL": "-test.v"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			installed(t, Redis)
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestServersEndWithTheProcessThatStartedThem$", flag)
			cmd.Env = append(os.Environ(), child+"="+end)
			out, err := cmd.StderrPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			var pid int
			for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
				_, _ = fmt.Sscanf(lines.Text(), "server %d", &pid)
			}
			require.Positive(t, pid, "the server has started")
			began := born(pid)
			if end == "SIGKILL" {
				require.NoError(t, cmd.Process.Kill())
			}
			go func() { _, _ = io.Copy(io.Discard, out) }()
			require.Eventually(t, func() bool { return born(pid) != began || began == "" }, 2*time.Minute, 10*time.Millisecond, "process %d still runs", pid)
			require.Error(t, cmd.Wait())
		})
	}
}

func TestPortInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	addr, ok := l.Addr().(*net.TCPAddr)
	require.True(t, ok)
	f := newFleet(t, func(o *Options) { o.Ports[Redis] = addr.Port })
	err = one(t, f.Up(t.Context(), Redis)).Err
	require.ErrorContains(t, err, strconv.Itoa(addr.Port)+" is in use")
	require.ErrorContains(t, err, "MILLRACE_TEST_REDIS")
	require.ErrorContains(t, err, "MILLRACE_SERVICES_PORT_OFFSET=1000")
	_, running := f.running(Redis)
	require.False(t, running)
	f = newFleet(t, func(o *Options) { o.Ports["controller"] = addr.Port })
	require.ErrorContains(t, one(t, f.Up(t.Context(), Kafka)).Err, "MILLRACE_SERVICES_PORT_OFFSET=1000")
}

func TestGiven(t *testing.T) {
	t.Run("does not answer", func(t *testing.T) {
		nobody := fmt.Sprintf("127.0.0.1:%d", freePort(t))
		f := newFleet(t, func(o *Options) {
			o.Getenv = func(name string) string { return map[string]string{"MILLRACE_TEST_VALKEY": nobody}[name] }
		})
		require.Equal(t, nobody, f.Addr(Valkey))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err := one(t, f.Up(ctx, Valkey)).Err
		require.ErrorContains(t, err, "given by MILLRACE_TEST_VALKEY, but")
		require.ErrorContains(t, one(t, f.Kill(t.Context(), Valkey)).Err, "kill it where it runs")
		require.ErrorContains(t, one(t, f.Restart(t.Context(), Valkey)).Err, "restart it where it runs")
		r := one(t, f.Down(t.Context(), Valkey))
		require.NoError(t, r.Err)
		require.Contains(t, r.How, "left alone")
	})
	t.Run("redis", func(t *testing.T) {
		installed(t, Redis)
		mine := newFleet(t)
		require.NoError(t, one(t, mine.Up(t.Context(), Redis)).Err)
		env := map[string]string{"MILLRACE_TEST_REDIS": mine.Addr(Redis), "MILLRACE_TEST_VALKEY": mine.Addr(Redis)}
		f := newFleet(t, func(o *Options) { o.Getenv = func(name string) string { return env[name] } })
		r := one(t, f.Up(t.Context(), Redis))
		require.NoError(t, r.Err)
		require.Contains(t, r.How, "given by MILLRACE_TEST_REDIS, redis ")
		require.ErrorContains(t, one(t, f.Up(t.Context(), Valkey)).Err, "another kind of server", "a Redis proves nothing about Valkey")
		require.NoError(t, f.Wipe(t.Context(), Redis)[0].Err)
		require.NoError(t, one(t, mine.Status(t.Context(), Redis)).Err, "a given server is left alone")
	})
}

// program puts a shell script of that name first on the PATH.
func program(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// TestNothingHalfStarted: a server that can't be had is named with its reason, and leaves no
// process.
func TestNothingHalfStarted(t *testing.T) {
	t.Run("ends at once", func(t *testing.T) {
		program(t, "redis-server", "echo the disk is on fire; exit 1\n")
		f := newFleet(t)
		err := one(t, f.Up(t.Context(), Redis)).Err
		require.ErrorContains(t, err, "the disk is on fire")
		require.ErrorContains(t, err, "ended before it answered")
		_, running := f.running(Redis)
		require.False(t, running)
	})
	t.Run("never answers", func(t *testing.T) {
		pidFile := filepath.Join(t.TempDir(), "pid")
		program(t, "redis-server", "echo $$ > "+pidFile+"\nexec sleep 600\n")
		f := newFleet(t)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() {
			for ctx.Err() == nil { // not before the process has said its pid
				if b, _ := os.ReadFile(pidFile); len(b) > 0 {
					cancel()
				}
				<-time.After(10 * time.Millisecond)
			}
		}()
		require.Error(t, one(t, f.Up(ctx, Redis)).Err)
		_, running := f.running(Redis)
		require.False(t, running)
		b, err := os.ReadFile(pidFile)
		require.NoError(t, err)
		pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
		require.NoError(t, err)
		require.Eventually(t, func() bool { return born(pid) == "" }, 2*time.Minute, 10*time.Millisecond, "process %d was left running", pid)
	})
	t.Run("can't be installed", func(t *testing.T) {
		if os.Geteuid() == 0 {
			t.Setenv("PATH", t.TempDir()) // no apt-get either
		}
		f := newFleet(t)
		err := one(t, f.Up(t.Context(), Valkey)).Err
		require.ErrorContains(t, err, "no Docker Compose engine answers")
		require.ErrorContains(t, err, "valkey-server not installed")
	})
}

// Two processes of one checkout fetch Kafka at the same time, and the other one is faster.
func TestKafkaIsFetchedTwice(t *testing.T) {
	f := newFleet(t)
	libs := filepath.Join(f.opts.Cache, "kafka")
	program(t, "mvn", `mkdir "${4#-DoutputDirectory=}"; touch "${4#-DoutputDirectory=}/mine.jar"; mkdir `+libs+`; touch `+libs+`/theirs.jar`)
	_, err := f.kafkaJars(t.Context(), libs)
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(libs, "theirs.jar"))
	left, err := os.ReadDir(f.opts.Cache)
	require.NoError(t, err)
	require.Len(t, left, 1, "what was fetched here is removed")
}

// TestForeignPid: a pid that belongs to another process by now is not taken for the server, and not
// killed.
func TestForeignPid(t *testing.T) {
	f := newFleet(t)
	foreign := exec.CommandContext(t.Context(), "sleep", "600")
	require.NoError(t, foreign.Start())
	defer func() { _ = foreign.Wait() }()
	defer func() { _ = foreign.Process.Kill() }()
	require.NoError(t, os.MkdirAll(f.opts.Dir, 0o755))
	require.NoError(t, f.writeState(Redis, state{By: byPackages, PID: foreign.Process.Pid, Born: "1"}))
	_, running := f.running(Redis)
	require.False(t, running)
	require.Equal(t, "was not up", one(t, f.Down(t.Context(), Redis)).How)
	require.NotEmpty(t, born(foreign.Process.Pid), "still alive")
}

// TestCompose runs a docker that records its arguments and starts a real Redis.
func TestCompose(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		installed(t, Redis)
		asked := filepath.Join(t.TempDir(), "asked")
		pid := filepath.Join(t.TempDir(), "pid")
		program(t, "docker", fmt.Sprintf(`echo "$@" >> %[1]s
case "$*" in
*" up "*) setsid redis-server --port "$MILLRACE_PORT_REDIS" --save "" --daemonize yes --pidfile %[2]s >/dev/null ;;
*" rm "*|*" kill "*) kill -9 "$(cat %[2]s)" ;;
esac
`, asked, pid))
		f := newFleet(t, func(o *Options) { o.ComposeFile = "compose.yaml" })
		r := one(t, f.Up(t.Context(), Redis))
		require.NoError(t, r.Err)
		require.Contains(t, r.How, "started by Docker Compose")
		require.Contains(t, one(t, f.Up(t.Context(), Redis)).How, "already up from compose")
		require.NoError(t, one(t, f.Kill(t.Context(), Redis)).Err)
		require.NoError(t, one(t, f.Up(t.Context(), Redis)).Err)
		require.NoError(t, one(t, f.Down(t.Context(), Redis)).Err)
		require.Eventually(t, func() bool { return !taken(t.Context(), f.Addr(Redis)) }, 2*time.Minute, 10*time.Millisecond)
		b, err := os.ReadFile(asked)
		require.NoError(t, err)
		for _, want := range []string{"--file compose.yaml up --detach --wait redis", "kill --signal KILL redis", "rm --force --stop redis"} {
			require.Contains(t, string(b), want)
		}
	})
	t.Run("an engine that fails is no reason to give up", func(t *testing.T) {
		program(t, "docker", "case \"$*\" in *\" up \"*) echo no image; exit 1 ;; esac\n")
		program(t, "redis-server", "echo no redis; exit 1\n")
		f := newFleet(t, func(o *Options) { o.ComposeFile = "compose.yaml" })
		err := one(t, f.Up(t.Context(), Redis)).Err
		require.ErrorContains(t, err, "no image")
		require.ErrorContains(t, err, "no redis")
		_, err = os.Stat(f.stateFile(Redis))
		require.ErrorIs(t, err, os.ErrNotExist)
	})
}

// TestVersions: Kafka's version stands in three files.
func TestVersions(t *testing.T) {
	t.Parallel()
	compose, err := os.ReadFile("../compose.yaml")
	require.NoError(t, err)
	require.Contains(t, string(compose), "image: apache/kafka:"+kafkaVersion+"\n")
	require.Contains(t, string(kafkaPOM), "<version>"+kafkaVersion+"</version>")
}

func TestUnknownServer(t *testing.T) {
	t.Parallel()
	f := newFleet(t)
	require.ErrorContains(t, one(t, f.Up(t.Context(), "oracle")).Err, "unknown server")
	require.Empty(t, EnvVar("oracle"))
	require.Empty(t, f.Addr("oracle"))
	_, err := New(Options{})
	require.Error(t, err)
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := Report{Name: Redis, Addr: "127.0.0.1:1", How: "started", Took: 1500 * time.Millisecond}
	require.Equal(t, "redis     127.0.0.1:1            started (1.5s)", r.String())
	r.Err = errors.New("no luck")
	require.Equal(t, "redis     127.0.0.1:1            not available: no luck", r.String())
}

func TestClusterID(t *testing.T) {
	t.Parallel()
	for range 100 {
		id := clusterID()
		require.Len(t, id, 22)
		require.NotEqual(t, "-", id[:1])
	}
}

// TestRedisDataIsNotKept: Redis and Valkey are caches here, and a restart is a wipe: tests of it
// rely on that.
func TestRedisDataIsNotKept(t *testing.T) {
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		installed(t, Redis)
		f := newFleet(t)
		require.NoError(t, one(t, f.Up(t.Context(), Redis)).Err)
		client := goredis.NewClient(&goredis.Options{Addr: f.Addr(Redis)})
		defer client.Close()
		require.NoError(t, client.Set(t.Context(), "key", "value", 0).Err())
		require.NoError(t, one(t, f.Restart(t.Context(), Redis)).Err)
		require.Eventually(t, func() bool {
			return client.Exists(t.Context(), "key").Val() == 0 && client.Ping(t.Context()).Err() == nil
		}, 2*time.Minute, 10*time.Millisecond)
	})
}
