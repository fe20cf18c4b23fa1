package httpserver

import (
	"log/slog"
	"math"
	"net"
	"net/http"
	"time"
)

// Limits of a tool.
const (
	toolHeader     = 10 * time.Second // to send the headers
	toolRequest    = 30 * time.Second // to send a complete request
	toolIdle       = 2 * time.Minute  // between two requests
	toolHeaderSize = 16 << 10         // bytes of the headers and the address
)

// Tool returns a server for h, and l with a limit of connections, which is that of a public server
// with the file descriptors of the process. It is for a program that helps a person or a test, such
// as a simulator: requests have limits of time and size, and answers may take any time. There are no
// metrics. Refused connections are logged as one warning per minute and reason, and lines of net/http at
// debug.
func Tool(l net.Listener, h http.Handler, log *slog.Logger) (*http.Server, net.Listener) {
	most := math.MaxInt32
	if descriptors, limited := Descriptors(); limited {
		most = Public(descriptors)
	}
	return tool(l, h, log, most)
}

func tool(l net.Listener, h http.Handler, log *slog.Logger, most int) (*http.Server, net.Listener) {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: toolHeader, ReadTimeout: toolRequest, IdleTimeout: toolIdle, MaxHeaderBytes: toolHeaderSize,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}, NewConnections("tool").Listen(l, Limits{Total: most}, log)
}
