package redis

import (
	"context"
	_ "embed" // the script
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/millrace-io/millrace/internal/redis/poll"
	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/pipeline/logs"
	"github.com/millrace-io/millrace/pipeline/loop"
)

// errEvicts means that the server may evict keys when its memory is full, so streams could vanish
// with unread entries. Set maxmemory-policy to noeviction.
var errEvicts = errors.New("redis: maxmemory-policy must be noeviction")

const (
	waitStep   = 500 * time.Millisecond
	waitRemind = 10 * time.Second
	pingBound  = 2 * time.Second
)

// open returns a client whose server answers, evicts nothing, and grants all rights on the keys.
// The caller closes it. The error wraps pipeline.ErrUnavailable when ctx ends first or a right is
// missing, and errEvicts when the server may evict.
func open(ctx context.Context, cfg ClientConfig, log *slog.Logger, commands []string, keys ...string) (goredis.UniversalClient, error) {
	c, err := NewClient(cfg, log)
	if err != nil {
		return nil, err
	}
	err = waitFor(ctx, c, cfg.address(), log)
	if err == nil {
		err = checkEviction(ctx, c, log)
	}
	if err == nil {
		err = checkRights(ctx, c, commands, keys...)
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

// waitFor waits until the server answers and is ready to serve. When ctx ends first, or the server
// refuses the credentials or the database number, the error wraps pipeline.ErrUnavailable and has
// address and reason.
func waitFor(ctx context.Context, c goredis.UniversalClient, address string, log *slog.Logger) error {
	begin, said := time.Now(), time.Time{}
	var reason error
	for {
		ping, cancel := context.WithTimeout(ctx, pingBound)
		err := c.Ping(ping).Err()
		cancel()
		if err == nil {
			if !said.IsZero() {
				log.InfoContext(ctx, "redis answers", slog.String("address", address), slog.Duration("after", time.Since(begin)))
			}
			return nil
		}
		if refused(err) {
			return fmt.Errorf("redis: %w: %s refuses us: %w", pipeline.ErrUnavailable, address, err)
		}
		if reason == nil || !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
			reason = err // the last ping is cut short by ctx, which is no reason
		}
		if time.Since(said) >= waitRemind {
			said = time.Now()
			log.WarnContext(ctx, "waiting for redis", slog.String("address", address), logs.Err(err))
		}
		if !loop.Sleep(ctx, waitStep) {
			return fmt.Errorf("redis: %w: no answer from %s in %s: %w", pipeline.ErrUnavailable, address, time.Since(begin).Round(time.Millisecond), reason)
		}
	}
}

// refused reports whether waiting can't help: credentials, rights or the database number are wrong.
func refused(err error) bool {
	for _, prefix := range []string{"WRONGPASS", "NOAUTH", "NOPERM", "ERR AUTH", "ERR invalid password", "ERR DB index is out of range", "ERR SELECT is not allowed"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}

// checkEviction returns an error that wraps errEvicts when a server may evict keys. It uses INFO,
// because managed services block CONFIG. When INFO has no policy, it logs a warning.
func checkEviction(ctx context.Context, c goredis.UniversalClient, log *slog.Logger) error {
	if cluster, ok := c.(*goredis.ClusterClient); ok {
		return cluster.ForEachMaster(ctx, func(ctx context.Context, node *goredis.Client) error {
			return checkEviction(ctx, node, log)
		})
	}
	info, err := c.Info(ctx, "memory").Result()
	policy, ok := infoField(info, "maxmemory_policy")
	switch {
	case err != nil:
		log.WarnContext(ctx, "maxmemory-policy is unknown, it must be noeviction", logs.Err(err))
	case !ok:
		log.WarnContext(ctx, "maxmemory-policy is unknown, it must be noeviction")
	case policy != evictionPolicy:
		return fmt.Errorf("%w, got %s: streams would be evicted unread", errEvicts, policy)
	}
	return nil
}

func infoField(info, name string) (string, bool) {
	for line := range strings.Lines(info) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && k == name {
			return v, true
		}
	}
	return "", false
}

//go:embed lua/rights.lua
var rightsSource string

// probeKey is the key of the check of rights.
const probeKey = "millrace:probe"

// checkRights checks that the user of c may run on each of the keys what all plugins use, and the
// commands. The keys do not exist before or after it. The error wraps pipeline.ErrUnavailable and
// names the missing rights.
func checkRights(ctx context.Context, c goredis.UniversalClient, commands []string, keys ...string) error {
	script, waits := goredis.NewScript(rightsSource), slices.Contains(commands, "wait")
	var more []any
	for _, name := range commands {
		if name != "wait" { // no script may call it
			more = append(more, name)
		}
	}
	for _, key := range keys {
		denied, err := script.Run(ctx, c, []string{key}, more...).StringSlice()
		if err != nil && poll.IsDenied(err) {
			return &deniedError{key, []string{"eval", "evalsha"}}
		}
		if err != nil {
			return poll.WithRemedy(fmt.Errorf("check of the rights on key %q: %w", key, err))
		}
		if waits {
			server := c
			if node := nodeOf(ctx, c, key); node != nil {
				server = node
			}
			if err := server.Do(ctx, "wait", 0, 0).Err(); goredis.HasErrorPrefix(err, "NOPERM") {
				denied = append(denied, "wait")
			}
		}
		if len(denied) > 0 {
			return &deniedError{key, denied}
		}
	}
	return nil
}

// deniedError says that the user lacks rights. It is a pipeline.ErrUnavailable.
type deniedError struct {
	key      string
	commands []string
}

func (e *deniedError) Error() string {
	return fmt.Sprintf("redis: %s: the ACL user may not run these commands on key %q: %s; "+poll.GrantRights, pipeline.ErrUnavailable, e.key, strings.Join(e.commands, ", "))
}

func (*deniedError) Unwrap() error { return pipeline.ErrUnavailable }

// Server is a Redis that a plugin uses: the shared one, or one with a client of its own. It is a
// pipeline.Service.
type Server struct {
	// Log is for the wait at the start. Nil is the log of the plugin "redis".
	Log *slog.Logger
	// Commands are those that the plugin uses in addition to the commands of all plugins, in lower
	// case. Start checks the rights for them too.
	Commands []string

	p      *Plugin
	own    *ClientConfig
	keys   []string
	opened atomic.Pointer[goredis.UniversalClient] // the client of its own
}

// Server returns a server. A nil own is the shared client. Start fails when the user lacks a right
// on one of the keys.
func (p *Plugin) Server(own *ClientConfig, keys ...string) *Server {
	return &Server{p: p, own: own, keys: keys}
}

// Client returns the client, or nil before Start. The caller does not close it.
func (s *Server) Client() goredis.UniversalClient {
	if s.own == nil {
		return s.p.Client()
	}
	if c := s.opened.Load(); c != nil {
		return *c
	}
	return nil
}

// Start checks the rights of the user. A client of its own first waits for the server, as Open
// does.
func (s *Server) Start(ctx context.Context) error {
	if s.own == nil {
		shared := s.p.Client()
		if shared == nil {
			return errNotStarted
		}
		return checkRights(ctx, shared, s.Commands, s.keys...)
	}
	c, err := open(ctx, *s.own, s.log(), s.Commands, s.keys...)
	if err == nil {
		s.opened.Store(&c)
	}
	return err
}

func (s *Server) log() *slog.Logger {
	if s.Log != nil {
		return s.Log
	}
	return s.p.env.Logger
}

// Stop closes the client of its own.
func (s *Server) Stop(context.Context) error {
	c := s.opened.Load()
	if c == nil {
		return nil
	}
	if err := (*c).Close(); !errors.Is(err, goredis.ErrClosed) {
		return err
	}
	return nil
}
