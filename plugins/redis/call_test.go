package redis

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/millrace-io/millrace/pipeline"
	"github.com/millrace-io/millrace/plugins/redis/redistest"
)

// serverOf returns a Server that uses c.
func serverOf(c goredis.UniversalClient) *Server {
	s := New().Server(&ClientConfig{})
	s.opened.Store(&c)
	return s
}

func testScript(body string) *Script { return NewScript("-- test.lua: for a test.\n" + body) }

func TestCalls(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		s, key := serverOf(c), redistest.Stream(t, c)
		add := NewScript("local by = 1\n", "-- add.lua: adds.\nreturn redis.call('INCRBY', KEYS[1], by + ARGV[1])")
		set, get, none := Command("SET", key, "41"), Command("GET", key), Command("GET", key+":none")
		sum := add.Call([]string{key}, 1)
		list := testScript("return {'a', 1, {'b'}}").Call([]string{key})
		texts := testScript("return {ARGV[1], false, 2}").Call([]string{key}, []byte("x"))
		require.NoError(t, s.Do(t.Context(), set, get, none, sum, list, texts))

		text, err := get.Text()
		require.NoError(t, err)
		require.Equal(t, "41", text)
		n, err := get.Int()
		require.NoError(t, err)
		require.EqualValues(t, 41, n)
		n, err = sum.Int()
		require.NoError(t, err)
		require.EqualValues(t, 43, n)
		require.False(t, get.Missing())
		require.True(t, none.Missing())
		text, err = none.Text()
		require.NoError(t, err)
		require.Empty(t, text)
		n, err = none.Int()
		require.NoError(t, err)
		require.Zero(t, n)
		values, err := list.List()
		require.NoError(t, err)
		require.Equal(t, []any{"a", int64(1), []any{"b"}}, values)
		all, err := texts.Texts()
		require.NoError(t, err)
		require.Equal(t, []string{"x", "", "2"}, all)
		_, err = list.Texts()
		require.ErrorContains(t, err, fmt.Sprintf("test.lua on %q: the reply is []interface {}, not a list of texts", key))
		_, err = list.Int()
		require.ErrorContains(t, err, "not an integer")
		_, err = sum.List()
		require.ErrorContains(t, err, "not a list")

		// A failed call fails only itself. Its error has the name and the key, and no value.
		wrong, unknown := Command("HGET", key, "secret"), Command("NONSENSE", key, "secret")
		raised := testScript("return redis.error_reply('BAD thing')").Call([]string{key}, "secret")
		err = s.Do(t.Context(), wrong, unknown, get, raised)
		require.ErrorContains(t, err, fmt.Sprintf("HGET on %q: WRONGTYPE", key))
		require.ErrorContains(t, err, fmt.Sprintf("NONSENSE on %q: the server does not have this command", key))
		require.ErrorContains(t, err, fmt.Sprintf("test.lua on %q: BAD thing", key))
		require.NotContains(t, err.Error(), "secret")
		require.NoError(t, get.Err())
		require.Error(t, wrong.Err())
		_, err = wrong.Text()
		require.ErrorIs(t, err, wrong.Err())
		many := []*Call{wrong, wrong, wrong, wrong, wrong}
		require.ErrorContains(t, s.Do(t.Context(), many...), "and 2 more calls failed")
	})
}

func TestACallBeforeDoHasAnError(t *testing.T) {
	t.Parallel()
	c := Command("GET", "k")
	_, err := c.Text()
	require.ErrorIs(t, err, errNotSent)
	require.False(t, c.Missing())
	require.ErrorIs(t, New().Server(nil).Do(t.Context(), c), errNotStarted)
	require.ErrorIs(t, c.Err(), errNotStarted)
}

// Scripts that the server does not have are sent again together, with their text.
func TestMissingScriptsAreSentWithTheirText(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		c := server.Client(t)
		s, key := serverOf(c), redistest.Stream(t, c)
		script := testScript(fmt.Sprintf("return redis.call('INCR', KEYS[1]) -- %s", key))
		commands := redistest.Watch(c)
		do := func() (sum int64) {
			calls := make([]*Call, 50)
			for i := range calls {
				calls[i] = script.Call([]string{key}).Once()
			}
			require.NoError(t, s.Do(t.Context(), calls...))
			for _, call := range calls {
				n, err := call.Int()
				require.NoError(t, err)
				sum += n
			}
			return sum
		}
		require.EqualValues(t, 50*51/2, do())
		require.Equal(t, 50, commands.Count("eval"))
		require.EqualValues(t, 50*51/2+50*50, do())
		require.Equal(t, 50, commands.Count("eval"), "the server has the script now")
		require.Equal(t, 100, commands.Count("evalsha"))
	})
}

// The change is made in any case. A WAIT follows each attempt in its pipeline.
func TestACallWaitsForReplicas(t *testing.T) {
	redistest.EachReal(t, func(t *testing.T, server redistest.Server) {
		c := server.Client(t)
		s, key := serverOf(c), redistest.Stream(t, c)
		script := testScript(fmt.Sprintf("return redis.call('INCR', KEYS[1]) -- %s", key))
		commands := redistest.Watch(c)
		call := script.Call([]string{key})
		require.NoError(t, s.DoReplicated(t.Context(), 0, 10*time.Millisecond, call))
		require.Equal(t, 2, commands.Count("wait"), "once more after the text of the script")
		err := s.DoReplicated(t.Context(), 1, 10*time.Millisecond, call)
		require.ErrorIs(t, err, ErrNotReplicated)
		n, err := call.Int()
		require.NoError(t, err)
		require.EqualValues(t, 2, n)
		require.Equal(t, 3, commands.Count("wait"))
		wrong := Command("HGET", key, "a")
		require.ErrorContains(t, s.DoReplicated(t.Context(), 0, time.Millisecond, wrong), "WRONGTYPE")
		require.ErrorIs(t, New().Server(nil).DoReplicated(t.Context(), 1, time.Millisecond, wrong), errNotStarted)
	})
}

// A call that waits for replicas follows its key while a slot is moved to another node of a Cluster, one that the client
// does not know.
func TestACallThatWaitsForReplicasFollowsASlot(t *testing.T) {
	redistest.EachCluster(t, func(t *testing.T, first, second *redistest.Own) {
		cluster := goredis.NewClusterClient(&goredis.ClusterOptions{Addrs: []string{first.Addr}, Protocol: 2, DisableIdentity: true})
		t.Cleanup(func() { require.NoError(t, cluster.Close()) })
		s := serverOf(cluster)
		add := testScript("redis.call('INCR', KEYS[2]) return redis.call('INCR', KEYS[1])")
		want := int64(0)
		start := func() (c *Call, ended chan error) {
			c, ended = add.Call([]string{"{room}a", "{room}b"}), make(chan error, 1)
			go func() { ended <- s.DoReplicated(t.Context(), 0, 10*time.Millisecond, c) }()
			return c, ended
		}
		finish := func(when string, c *Call, ended chan error) {
			require.NoError(t, <-ended, when)
			n, err := c.Int()
			require.NoError(t, err, when)
			want++
			require.Equal(t, want, n, when)
		}
		call := func(when string) {
			c, ended := start()
			finish(when, c, ended)
		}
		from, to := first.Client(t), second.Client(t)
		slot := from.ClusterKeySlot(t.Context(), "{room}a").Val()
		do := func(c *goredis.Client, args ...any) string {
			text, err := c.Do(t.Context(), args...).Text()
			require.NoError(t, err, args)
			return text
		}
		host, port, err := net.SplitHostPort(second.Addr)
		require.NoError(t, err)
		move := func(key string) { do(from, "migrate", host, port, key, 0, 5000) }
		one, two := do(from, "cluster", "myid"), do(to, "cluster", "myid")
		call("before")
		do(to, "cluster", "setslot", slot, "importing", one)
		do(from, "cluster", "setslot", slot, "migrating", two)
		call("while no key has moved")
		move("{room}a")
		c, ended := start()
		redistest.Eventually(t, "it is refused for now", func() bool {
			return strings.Contains(from.Info(t.Context(), "errorstats").Val()+to.Info(t.Context(), "errorstats").Val(), "TRYAGAIN")
		})
		move("{room}b")
		finish("which began while one of its keys had moved", c, ended)
		call("while the slot has no key here")
		do(to, "cluster", "setslot", slot, "node", two)
		do(from, "cluster", "setslot", slot, "node", two)
		call("when the slot has moved")
	})
}

// lossyConn loses one reply, and ends then.
type lossyConn struct {
	net.Conn
	lose *atomic.Bool
}

func (c lossyConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.lose.Swap(false) {
		return 0, io.EOF
	}
	return n, err
}

// lossyClient returns a client that loses the next reply when lose becomes true.
func lossyClient(t *testing.T, server redistest.Server) (c *goredis.Client, lose *atomic.Bool) {
	lose = new(atomic.Bool)
	return server.Client(t, func(o *goredis.Options) {
		o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, network, addr)
			return lossyConn{conn, lose}, err
		}
	}), lose
}

// After a lost reply the client sends a call again, but not one that may run once.
func TestACallThatMayRunOnceIsNotSentAgain(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		c, lose := lossyClient(t, server)
		s, key := serverOf(c), redistest.Stream(t, c)
		script := testScript("return redis.call('INCR', KEYS[1])")
		get := func() int64 {
			n, err := c.Get(t.Context(), key).Int64()
			require.NoError(t, err)
			return n
		}
		require.NoError(t, s.Do(t.Context(), script.Call([]string{key})))
		lose.Store(true)
		require.NoError(t, s.Do(t.Context(), script.Call([]string{key})))
		require.EqualValues(t, 3, get(), "the client sent it again")
		lose.Store(true)
		require.ErrorIs(t, s.Do(t.Context(), script.Call([]string{key}).Once()), io.EOF)
		require.EqualValues(t, 4, get())
	})
}

// halves returns a client of a Cluster whose two nodes have one half of the slots each.
func halves(t *testing.T, one, other string, readTimeout time.Duration) *goredis.ClusterClient {
	c := goredis.NewClusterClient(&goredis.ClusterOptions{
		Protocol: 2, DisableIdentity: true, ContextTimeoutEnabled: true, ReadTimeout: readTimeout,
		ClusterSlots: func(context.Context) ([]goredis.ClusterSlot, error) {
			return []goredis.ClusterSlot{
				{Start: 0, End: 8191, Nodes: []goredis.ClusterNode{{Addr: one}}},
				{Start: 8192, End: 16383, Nodes: []goredis.ClusterNode{{Addr: other}}},
			}, nil
		},
	})
	t.Cleanup(func() { require.NoError(t, c.Close()) })
	return c
}

func onNode(t *testing.T, c *goredis.ClusterClient, key, addr string) bool {
	node, err := c.MasterForKey(t.Context(), key)
	require.NoError(t, err)
	return strings.HasSuffix(addr, node.Options().Addr)
}

// A node of a Cluster that does not answer fails only the calls on its own keys.
func TestASilentNodeFailsOnlyItsCalls(t *testing.T) {
	t.Parallel()
	answers, silent := redistest.Mini(t), redistest.Mini(t)
	proxy := redistest.NewProxy(t, silent.Addr)
	c := halves(t, answers.Addr, proxy.Addr(), time.Minute)
	s := serverOf(c)
	script := testScript("return redis.call('INCR', KEYS[1])")
	calls := func() (all []*Call) {
		for i := range 20 {
			all = append(all, script.Call([]string{fmt.Sprint("key:", i)}), commandKey(2, "ZUNION", 1, fmt.Sprint("set:", i)))
		}
		return all
	}
	require.NoError(t, s.Do(t.Context(), calls()...))

	proxy.Mute()
	proxy.Cut()
	// The calls of the other node end earlier.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	all, failed := calls(), 0
	require.Error(t, s.Do(ctx, all...))
	for _, call := range all {
		if onNode(t, c, call.key, answers.Addr) {
			require.NoError(t, call.Err(), call.key)
		} else {
			require.Error(t, call.Err(), call.key)
			failed++
		}
	}
	require.InDelta(t, 20, failed, 12)
	proxy.SetDown(true)
}

func TestAServerOfItsOwn(t *testing.T) {
	redistest.Each(t, func(t *testing.T, server redistest.Server) {
		config := DefaultClientConfig()
		config.Addrs = []string{server.Addr}
		s := New().Server(&config, "test:rights")
		require.Nil(t, s.Client())
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, s.Start(t.Context()))
		require.NoError(t, s.Do(t.Context(), Command("GET", "test:rights")))
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, s.Stop(t.Context()))
		require.Error(t, s.Do(t.Context(), Command("GET", "test:rights")), "the client is closed")
	})
}

// The start with a client of its own waits for the server.
func TestAServerOfItsOwnIsUnavailable(t *testing.T) {
	t.Parallel()
	config := DefaultClientConfig()
	config.Addrs = []string{"127.0.0.1:1"}
	s := New().Server(&config)
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, s.Start(ctx), pipeline.ErrUnavailable)
	require.NoError(t, s.Stop(t.Context()))
}

// A server without settings of its own uses the shared client, and does not close it.
func TestTheSharedServer(t *testing.T) {
	redistest.EachClient(t, func(t *testing.T, c goredis.UniversalClient) {
		p := New()
		s := p.Server(nil, "test:rights")
		require.ErrorIs(t, s.Start(t.Context()), errNotStarted)
		p.client = c
		require.NoError(t, s.Start(t.Context()))
		require.NoError(t, s.Stop(t.Context()))
		require.NoError(t, s.Do(t.Context(), Command("GET", "test:rights")))
	})
}
