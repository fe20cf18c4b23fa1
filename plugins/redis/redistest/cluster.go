package redistest

import (
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2/server"
)

// MiniCluster starts a Cluster of two miniredis with one half of the slots each. Clients reach the
// second one through the proxy.
func MiniCluster(t testing.TB) (first, second Server, proxy *Proxy) {
	t.Helper()
	first, second = Mini(t), Mini(t)
	proxy = NewProxy(t, second.Addr)
	t.Cleanup(func() { proxy.SetDown(true) })
	hook := func(client *server.Peer, command string, args ...string) bool {
		if !strings.EqualFold(command, "cluster") || len(args) == 0 || !strings.EqualFold(args[0], "slots") {
			return false
		}
		client.WriteLen(2)
		for i, addr := range []string{first.Addr, proxy.Addr()} {
			host, port, _ := net.SplitHostPort(addr)
			number, _ := strconv.Atoi(port)
			client.WriteLen(3)
			client.WriteInt(i * 8192)
			client.WriteInt(i*8192 + 8191)
			client.WriteLen(2)
			client.WriteBulk(host)
			client.WriteInt(number)
		}
		client.Flush()
		return true
	}
	first.Mini.Server().SetPreHook(hook)
	second.Mini.Server().SetPreHook(hook)
	return first, second, proxy
}
