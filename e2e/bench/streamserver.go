package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/e2e/services/servers"
	"github.com/millrace-io/millrace/plugins/token"
)

// The roles of the processes.
const (
	routerPart     = "router"
	gatewayPart    = "gateway"
	brokerPart     = "broker"
	dispatcherPart = "dispatcher"
)

// streamServer is a process whose clients have streams: a gateway, or a broker.
type streamServer struct {
	*process
	addr, operations string // of the streams, and of the metrics
	before           int64  // memory without connections
}

// startRole runs the binary with the profile of a role.
func (t *trial) startRole(ctx context.Context, role string, settings map[string]any) *process {
	settings["profile"], settings["instance_id"], settings["log.format"] = role, role, "json"
	settings["plugins.redis.addrs"] = []string{t.fleet.Addr(servers.Redis)}
	return t.startProduct(ctx, role, settings)
}

// startStreams runs the binary with a role that serves streams.
func (t *trial) startStreams(ctx context.Context, role string, settings map[string]any) streamServer {
	key := filepath.Join(t.dir, "token.pem")
	check(token.CreateKey(key)) // if there is none
	s := streamServer{addr: unusedAddress(ctx), operations: unusedAddress(ctx)}
	settings["plugins.telemetry.listen"], settings["plugins.web.listen"] = s.operations, s.addr
	settings["plugins.web.drain_window"] = "1s"
	settings["plugins.token.keys"] = []map[string]string{{"kid": "bench", "file": key}}
	s.process = t.startRole(ctx, role, settings)
	s.before = s.memory(resident)
	return s
}

// perConnection returns the memory of each of n connections, in KB.
func (s streamServer) perConnection(n int) float64 {
	return float64(s.memory(resident)-s.before) / 1024 / float64(n)
}

// watch connects the clients. They are a process of their own.
func (t *trial) watch(ctx context.Context, c watchConfig) *process {
	p := t.start("watchers", t.self, "watch", string(must(json.Marshal(c))))
	p.await(ctx, "connected\n")
	return p
}

func phaseReport(phase int) string { return fmt.Sprintf("phase %d: ", phase) }

// watchConfig is what the process of the watchers gets on its command line.
type watchConfig struct {
	Addr    string // of the gateway or broker
	Jobs    int    // that are watched
	Clients int    // of each job
	Room    string // not empty: the event that each client waits for, instead of jobs
	// Deliveries is how many events all clients receive together in each phase.
	Deliveries []int
}

// arrival is the promotion of a client.
type arrival struct {
	Client int
	At     int64 // the time at which the client received it, in µs
}

// delays are the times from publishing an event to its clients in one phase.
type delays struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
}

func delaysOf(values []float64) delays { return delays{quantile(values, 0.5), quantile(values, 0.99)} }

// keepStuck opens streams one after another, and reads none.
func keepStuck(ctx context.Context, open func() net.Conn) {
	const lasts = 6 * time.Second // the server ends a write that hangs after 5 s
	for ctx.Err() == nil {
		conn := open()
		_ = sleep(ctx, lasts) // or until the phase is over
		_ = conn.Close()
	}
}

// stuck opens a stream with small buffers.
func (s streamServer) stuck(request string) net.Conn {
	small := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		failed := c.Control(func(fd uintptr) {
			err = errors.Join(
				syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<10),
				// The sender's buffer depends on it.
				syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, 536),
			)
		})
		return errors.Join(failed, err)
	}}
	conn := must(small.Dial("tcp", s.addr))
	must(conn.Write([]byte(request)))
	return conn
}

// awaitMetric waits until the sum of the series is positive.
func (s streamServer) awaitMetric(ctx context.Context, reason string, series ...string) {
	within(ctx, time.Minute, reason, func(ctx context.Context) {
		until(ctx, 100*time.Millisecond, func() bool {
			text, sum := string(get(ctx, "http://"+s.operations+"/metrics")), 0.0
			for _, one := range series {
				_, value, _ := strings.Cut(text, "\n"+one+" ")
				value, _, _ = strings.Cut(value, "\n")
				sum += must(strconv.ParseFloat(value, 64))
			}
			return sum > 0
		})
	})
}
