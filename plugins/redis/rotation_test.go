package redis_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/pipelinetest"
	"github.com/millrace-io/millrace/pipeline/setting"
	"github.com/millrace-io/millrace/plugins/redis"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// The password of the ACL user changes while messages are published and handled, and the server ends
// all connections that were made with the old one.
func TestAPasswordIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		rotatePassword(t, s, func(t *testing.T, first string) (s setting.Secret, write func(string)) {
			file := filepath.Join(t.TempDir(), "password")
			write = func(password string) { pipelinetest.Replace(t, file, []byte(password+"\n")) }
			write(first)
			require.NoError(t, s.UnmarshalText([]byte("file:"+file)))
			return s, write
		})
	})
}

// A binary of one's own gives the password by a function.
func TestAProvidedPasswordIsRotatedUnderLoad(t *testing.T) {
	t.Parallel()
	redistest.EachReal(t, func(t *testing.T, s redistest.Server) {
		rotatePassword(t, s, func(_ *testing.T, first string) (setting.Secret, func(string)) {
			var current atomic.Pointer[string]
			current.Store(&first)
			return setting.NewProvidedSecret("", func(context.Context) (string, error) { return *current.Load(), nil }),
				func(password string) { current.Store(&password) }
		})
	})
}

// rotatePassword gets the password of the plugin, and what changes it, from secret.
func rotatePassword(t *testing.T, s redistest.Server, secret func(t *testing.T, first string) (setting.Secret, func(string))) {
	t.Helper()
	admin := s.Client(t)
	stream := redistest.Prefix(t, admin)
	user := stream + "-user"
	rules := func(rules ...any) {
		require.NoError(t, admin.Do(t.Context(), append([]any{"ACL", "SETUSER", user}, rules...)...).Err())
	}
	t.Cleanup(func() { admin.Do(context.Background(), "ACL", "DELUSER", user) })
	password := "password 0"
	rules("reset", "on", ">"+password, "~*", "&*", "+@all")

	p := redis.New()
	cfg := p.Settings().(*redis.Config)
	cfg.Addrs, cfg.Username = []string{s.Addr}, user
	var write func(string)
	cfg.Password, write = secret(t, password)
	var mu sync.Mutex
	handled := map[string]bool{}
	pipelinetest.Start(t, p, onePlugin{pipeline.Route{
		Name: "load", From: p.Source(stream, group), Policy: pipeline.Policy{DeadLetter: pipelinetest.NewRecorder("dead")},
		Handle: func(m *message.Message) ([]*message.Message, error) {
			mu.Lock()
			defer mu.Unlock()
			handled[string(m.Payload)] = true
			return nil, nil
		},
	}})

	ctx, stop := context.WithCancel(t.Context())
	published := make(chan int, 1)
	go func() {
		n := 0
		for ; ctx.Err() == nil; n++ {
			for p.Sink(stream).Publish(t.Context(), message.NewMessage(watermill.NewULID(), []byte(fmt.Sprint(n)))) != nil {
				if t.Context().Err() != nil {
					return
				}
			}
		}
		published <- n
	}()
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(handled)
	}
	var killed int64
	for round := 1; round <= 5; round++ {
		before := count()
		redistest.Eventually(t, "messages are handled", func() bool { return count() > before+100 })
		next := fmt.Sprint("password ", round)
		rules(">" + next)
		write(next)
		rules("<" + password)
		password = next
		n, err := admin.ClientKillByFilter(t.Context(), "USER", user).Result()
		require.NoError(t, err)
		killed += n
	}
	require.Positive(t, killed)
	before := count()
	redistest.Eventually(t, "messages are handled with the last password", func() bool { return count() > before+100 })
	stop()
	n := <-published
	redistest.Eventually(t, "each published message is handled", func() bool { return count() == n })
	redistest.Eventually(t, "each is acknowledged", func() bool {
		pending, err := admin.XPending(t.Context(), stream, group).Result()
		return err == nil && pending.Count == 0
	})
}

// A client that is open for long sends each new connection the password of that moment.
func TestEachConnectionSendsTheCurrentPassword(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	require.NoError(t, os.WriteFile(file, []byte("one"), 0o600))
	s := redistest.Mini(t)
	s.Mini.RequireUserAuth("user", "one")
	cfg := redis.DefaultClientConfig()
	cfg.Addrs, cfg.Username, cfg.MaxRetries, cfg.PoolSize = []string{s.Addr}, "user", -1, 1
	require.NoError(t, cfg.Password.UnmarshalText([]byte("file:"+file)))
	c, err := redis.NewClient(cfg, nil)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	require.NoError(t, c.Ping(t.Context()).Err())
	s.Mini.RequireUserAuth("user", "two")
	require.NoError(t, os.WriteFile(file, []byte("two"), 0o600))
	require.NoError(t, c.Ping(t.Context()).Err(), "an open connection stays authenticated")
	s.Mini.Close()
	require.Eventually(t, func() bool { return s.Mini.Restart() == nil }, 2*time.Minute, 10*time.Millisecond, "a connection of another test may have the port")
	require.Eventually(t, func() bool { return c.Ping(t.Context()).Err() == nil }, 2*time.Minute, 10*time.Millisecond)
}
