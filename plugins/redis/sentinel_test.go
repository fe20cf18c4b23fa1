package redis_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// startSentinel starts a Sentinel of the server with a password of its own, which ends with the test.
func startSentinel(t *testing.T, of *redistest.Own, user, password string) (address string, admin *goredis.Client) {
	t.Helper()
	program, err := exec.LookPath(of.Name)
	require.NoError(t, err)
	ln, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address = ln.Addr().String()
	host, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, ln.Close())
	serverHost, serverPort, err := net.SplitHostPort(of.Addr)
	require.NoError(t, err)
	dir := t.TempDir()
	file := filepath.Join(dir, "sentinel.conf")
	off := "user default off\n"
	if user == "default" {
		off = ""
	}
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "port %s\nbind %s\ndir %s\nuser admin on >admin ~* &* +@all\n%suser %s on >%s ~* &* +@all\nsentinel monitor main %s %s 1\nsentinel auth-pass main data\n",
		port, host, dir, off, user, password, serverHost, serverPort), 0o600))
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, file, "--sentinel")
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	admin = goredis.NewClient(&goredis.Options{Addr: address, Username: "admin", Password: "admin", Protocol: 2, DisableIdentity: true})
	t.Cleanup(func() { require.NoError(t, admin.Close()) })
	redistest.Eventually(t, "the sentinel answers", func() bool { return admin.Ping(t.Context()).Err() == nil })
	return address, admin
}

// A client that is under load sends each new connection to a Sentinel the password of that moment, and never sends it
// to the server.
func TestThePasswordOfASentinelIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	for _, user := range []string{"", "watcher"} {
		t.Run("user "+user, func(t *testing.T) {
			t.Parallel()
			redistest.EachOwn(t, func(t *testing.T, s *redistest.Own) {
				ctx := t.Context()
				server := s.Client(t)
				require.NoError(t, server.ConfigSet(ctx, "requirepass", "data").Err())
				name := user
				if name == "" {
					name = "default"
				}
				address, admin := startSentinel(t, s, name, "one")
				file := filepath.Join(t.TempDir(), "password")
				pipelinetest.Replace(t, file, []byte("one\n"))

				cfg := redis.DefaultClientConfig()
				cfg.Addrs, cfg.MasterName, cfg.SentinelUsername = []string{address}, "main", user
				require.NoError(t, cfg.Password.UnmarshalText([]byte("data")))
				require.NoError(t, cfg.SentinelPassword.UnmarshalText([]byte("file:"+file)))
				c, err := redis.NewClient(cfg, nil)
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, c.Close()) })
				load := pipelinetest.StartLoad(t, 4, func(int) error {
					for c.Incr(ctx, "calls").Err() != nil { // until the sentinel names the server
						if ctx.Err() != nil {
							return ctx.Err()
						}
					}
					return nil
				})
				load.More()

				for _, next := range []string{"two", "three"} {
					require.NoError(t, admin.Do(ctx, "ACL", "SETUSER", name, "resetpass", ">"+next).Err())
					pipelinetest.Replace(t, file, []byte(next+"\n"))
					for _, kind := range []string{"normal", "pubsub"} {
						require.NoError(t, admin.Do(ctx, "CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes").Err())
					}
					// The next connection to the server begins with a question to the sentinel.
					killed, err := server.ClientKillByFilter(ctx, "TYPE", "normal", "SKIPME", "yes").Result()
					require.NoError(t, err)
					require.Positive(t, killed)
					load.More() // over connections for which the sentinel was asked with the next password
				}
				calls := load.Stop()
				counted, err := server.Get(ctx, "calls").Int64()
				require.NoError(t, err)
				require.GreaterOrEqual(t, counted, calls)
				refused, err := server.Do(ctx, "ACL", "LOG").Slice()
				require.NoError(t, err)
				require.Empty(t, refused, "the server has been sent its own password only")
			})
		})
	}
}
