package setting

import (
	"net"
	"strings"
)

// Loopback reports whether all addresses, each host:port or a host, are of this machine: localhost,
// 127.0.0.0/8 or ::1. No message to them crosses a network. It resolves no names. Loopback
// of nothing is true.
func Loopback(addrs ...string) bool {
	for _, addr := range addrs {
		host := addr
		if h, _, err := net.SplitHostPort(addr); err == nil {
			host = h
		}
		host = strings.Trim(host, "[]")
		if ip := net.ParseIP(host); !strings.EqualFold(host, "localhost") && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}
